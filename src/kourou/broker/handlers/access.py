"""Users and access control lists: requests 3001 to 3010 (ACL 2.0)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kourou.auth.model import (
    CUSTOM,
    POLICY_TYPES,
    SUPER,
    USER_TYPES,
    AccessError,
    Acl,
    Resource,
    User,
    one_of,
)
from kourou.remoting.connection import Connection
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.bodies import read_body
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.header import BadRequestError
from kourou.remoting.signing import ACCESS_KEY

if TYPE_CHECKING:
    from kourou.broker.server import Broker


class _BlankNameError(BadRequestError):
    response_code = ResponseCode.INVALID_PARAMETER


def _name(request: RemotingCommand) -> str:
    name = request.ext_fields.get("username", "").strip()
    if not name:
        raise _BlankNameError("The username is blank")
    return name


def _check_super(broker: Broker, request: RemotingCommand, what: str, *types: object) -> None:
    """Who is not a super user touches none. Without a user, authentication is off."""
    asking = request.ext_fields.get(ACCESS_KEY)
    if asking and SUPER in types and not broker.access.is_super(asking):
        raise AccessError(f"The super user can only be {what} by super user")


def _type_of(broker: Broker, name: str) -> str | None:
    user = broker.access.users.get(name)
    return None if user is None else user.type


def create_user(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """AUTH_CREATE_USER."""
    value = {**read_body(request.body, "a user"), "username": _name(request)}
    _check_super(broker, request, "create", one_of(USER_TYPES, value.get("userType")))
    broker.access.create_user(value)
    return request.response()


def update_user(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """AUTH_UPDATE_USER."""
    name = _name(request)
    value = {**read_body(request.body, "a user"), "username": name}
    _check_super(broker, request, "update", one_of(USER_TYPES, value.get("userType")), _type_of(broker, name))
    broker.access.update_user(value)
    return request.response()


def delete_user(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """AUTH_DELETE_USER."""
    name = _name(request)
    _check_super(broker, request, "update", _type_of(broker, name))
    broker.access.delete_user(name)
    return request.response()


def _shown(broker: Broker, request: RemotingCommand, user: User) -> dict[str, str]:
    """A user as others see it: with a secret, by which anybody could be that user, for super users only."""
    value = user.to_json()
    asking = request.ext_fields.get(ACCESS_KEY)
    if asking and not broker.access.is_super(asking):
        del value["password"]
    return value


def get_user(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """AUTH_GET_USER."""
    user = broker.access.users.get(_name(request))
    return request.response(body=None if user is None else lenient_json.dumps(_shown(broker, request, user)))


def list_users(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """AUTH_LIST_USER."""
    found = broker.access.list_users(request.ext_fields.get("filter"))
    users = [_shown(broker, request, user) for user in found]
    return request.response(body=lenient_json.dumps(users) if users else None)


def put_acl(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """AUTH_CREATE_ACL and AUTH_UPDATE_ACL: both add to what there is."""
    value = read_body(request.body, "an access control list")
    broker.access.put_acl(Acl.from_json(value, value.get("subject") or request.ext_fields.get("subject")))
    return request.response()


def delete_acl(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """AUTH_DELETE_ACL: all of it, or what it says of a resource."""
    fields = request.ext_fields
    resource = fields.get("resource")
    broker.access.delete_acl(
        fields.get("subject", ""),
        one_of(POLICY_TYPES, fields.get("policyType")) or CUSTOM,
        Resource.parse(resource) if resource else None,
    )
    return request.response()


def get_acl(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """AUTH_GET_ACL."""
    acl = broker.access.get_acl(request.ext_fields.get("subject", ""))
    return request.response(body=None if acl is None else lenient_json.dumps(acl.to_json()))


def list_acls(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """AUTH_LIST_ACL."""
    fields = request.ext_fields
    acls = broker.access.list_acls(fields.get("subjectFilter"), fields.get("resourceFilter"))
    return request.response(body=lenient_json.dumps([acl.to_json() for acl in acls]) if acls else None)


HANDLERS = {
    RequestCode.AUTH_CREATE_USER: create_user,
    RequestCode.AUTH_UPDATE_USER: update_user,
    RequestCode.AUTH_DELETE_USER: delete_user,
    RequestCode.AUTH_GET_USER: get_user,
    RequestCode.AUTH_LIST_USER: list_users,
    RequestCode.AUTH_CREATE_ACL: put_acl,
    RequestCode.AUTH_UPDATE_ACL: put_acl,
    RequestCode.AUTH_DELETE_ACL: delete_acl,
    RequestCode.AUTH_GET_ACL: get_acl,
    RequestCode.AUTH_LIST_ACL: list_acls,
}
