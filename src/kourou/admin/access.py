"""Users and access control lists (ACL 2.0). Each broker has its own: changes go to all that are named."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kourou.admin.link import AdminError, Link
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import RequestCode


class Access:
    """Who may do what at the brokers of a cluster."""

    def __init__(self, link: Link) -> None:
        self._link = link

    # Users

    async def users(self, address: str, text: str = "") -> list[dict[str, Any]]:
        """The users of a broker whose names contain a text, without their secrets."""
        return [_without_secret(user) for user in await self._users(address, text)]

    async def user(self, address: str, name: str) -> dict[str, Any] | None:
        """A user of a broker, without the secret; None if there is none."""
        found = await self._get(address, RequestCode.AUTH_GET_USER, {"username": name})
        return None if found is None else _without_secret(found)

    async def require(self, addresses: Iterable[str], name: str) -> None:
        """Raises AdminError where none of the brokers knows such a user."""
        if not any((await self._link.each(addresses, lambda one: self.user(one, name))).values()):
            raise AdminError(f"there is no user {name}: `kourou admin user list` has those that there are")

    async def create_user(self, addresses: Iterable[str], name: str, password: str, kind: str) -> list[str]:
        """A new user; the brokers that have it now."""
        body = {"password": password, "userType": kind, "userStatus": "enable"}
        return await self._tell(addresses, RequestCode.AUTH_CREATE_USER, {"username": name}, body)

    async def update_user(
        self,
        addresses: Iterable[str],
        name: str,
        *,
        password: str | None = None,
        kind: str | None = None,
        status: str | None = None,
    ) -> list[str]:
        """Change what is given of a user; the brokers that did."""
        body = {"password": password, "userType": kind, "userStatus": status}
        given = {key: value for key, value in body.items() if value is not None}
        return await self._tell(addresses, RequestCode.AUTH_UPDATE_USER, {"username": name}, given)

    async def delete_user(self, addresses: Iterable[str], name: str) -> list[str]:
        """Forget a user, and what it was allowed."""
        return await self._tell(addresses, RequestCode.AUTH_DELETE_USER, {"username": name}, None)

    async def copy_users(self, source: str, target: str, names: Sequence[str] | None = None) -> list[str]:
        """Make users of one broker, or all, users of another, with their secrets; their names."""
        fields = [{"username": name} for name in names or ()]
        found = (
            await self._users(source, "")
            if names is None
            else [await self._get(source, RequestCode.AUTH_GET_USER, one) for one in fields]
        )
        copied = []
        for user in found:
            if user is None:
                continue
            name = {"username": str(user["username"])}
            known = await self._get(target, RequestCode.AUTH_GET_USER, name)
            code = RequestCode.AUTH_CREATE_USER if known is None else RequestCode.AUTH_UPDATE_USER
            await self._tell([target], code, name, user)
            copied.append(name["username"])
        return copied

    # Access control lists

    async def acl(self, address: str, subject: str) -> dict[str, Any] | None:
        """What a broker says of a subject; None if nothing."""
        return await self._get(address, RequestCode.AUTH_GET_ACL, {"subject": subject})

    async def acls(self, address: str, subject: str = "", resource: str = "") -> list[dict[str, Any]]:
        """The lists of a broker, of subjects and for resources that contain a text."""
        fields = {"subjectFilter": subject, "resourceFilter": resource}
        return await self._list(address, RequestCode.AUTH_LIST_ACL, fields)

    async def put_acl(
        self,
        addresses: Iterable[str],
        subject: str,
        resources: Sequence[str],
        actions: Sequence[str],
        decision: str,
        source_ips: Sequence[str] = (),
        *,
        is_new: bool = False,
    ) -> list[str]:
        """Allow or deny a subject something, in place of what was said of these resources before.

        `is_new` asks by the other request that there is, which does the same at brokers of today.
        """
        entries = [
            {
                "resource": resource,
                "actions": list(actions),
                "decision": decision,
                "sourceIps": list(source_ips),
            }
            for resource in resources
        ]
        body = {"subject": subject, "policies": [{"policyType": "Custom", "entries": entries}]}
        code = RequestCode.AUTH_CREATE_ACL if is_new else RequestCode.AUTH_UPDATE_ACL
        return await self._tell(addresses, code, {"subject": subject}, body)

    async def delete_acl(
        self, addresses: Iterable[str], subject: str, resource: str | None = None
    ) -> list[str]:
        """Forget what is said of a resource, or all that is said of a subject."""
        fields = {"subject": subject, **({"resource": resource} if resource else {})}
        return await self._tell(addresses, RequestCode.AUTH_DELETE_ACL, fields, None)

    async def copy_acls(self, source: str, target: str, subjects: Sequence[str] | None = None) -> list[str]:
        """Say at one broker what another says of subjects, or of all; the subjects."""
        found = (
            await self.acls(source)
            if subjects is None
            else [await self.acl(source, subject) for subject in subjects]
        )
        copied = []
        for acl in found:
            if acl is None:
                continue
            subject = str(acl["subject"])
            is_known = await self.acl(target, subject) is not None
            code = RequestCode.AUTH_UPDATE_ACL if is_known else RequestCode.AUTH_CREATE_ACL
            await self._tell([target], code, {"subject": subject}, acl)
            copied.append(subject)
        return copied

    async def _users(self, address: str, text: str) -> list[dict[str, Any]]:
        return await self._list(address, RequestCode.AUTH_LIST_USER, {"filter": text})

    async def _get(self, address: str, code: RequestCode, fields: dict[str, str]) -> dict[str, Any] | None:
        answer = await self._link.ask(address, code, fields)
        found: dict[str, Any] | None = lenient_json.loads(bytes(answer.body)) if answer.body else None
        return found

    async def _list(self, address: str, code: RequestCode, fields: dict[str, str]) -> list[dict[str, Any]]:
        answer = await self._link.ask(address, code, fields)
        found: list[dict[str, Any]] = lenient_json.loads(bytes(answer.body)) if answer.body else []
        return found

    async def _tell(
        self, addresses: Iterable[str], code: RequestCode, fields: dict[str, str], body: Any
    ) -> list[str]:
        data = None if body is None else lenient_json.dumps(body)
        return list(
            await self._link.each(addresses, lambda address: self._link.ask(address, code, fields, data))
        )


def _without_secret(user: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in user.items() if key != "password"}
