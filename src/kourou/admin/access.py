"""Users and access control lists (ACL 2.0). Each broker has its own: changes go to all that are named."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kourou.admin.link import Link
from kourou.remoting import lenient_json
from kourou.remoting.codes import RequestCode


class Access:
    """Who may do what at the brokers of a cluster."""

    def __init__(self, link: Link) -> None:
        self._link = link

    # Users

    async def users(self, address: str, text: str = "") -> list[dict[str, Any]]:
        """The users of a broker whose names contain a text, without their secrets."""
        found = await self._list(address, RequestCode.AUTH_LIST_USER, {"filter": text})
        return [{key: value for key, value in user.items() if key != "password"} for user in found]

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

    # Access control lists

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
    ) -> list[str]:
        """Allow or deny a subject something, in place of what was said of these resources before."""
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
        return await self._tell(addresses, RequestCode.AUTH_UPDATE_ACL, {"subject": subject}, body)

    async def delete_acl(
        self, addresses: Iterable[str], subject: str, resource: str | None = None
    ) -> list[str]:
        """Forget what is said of a resource, or all that is said of a subject."""
        fields = {"subject": subject, **({"resource": resource} if resource else {})}
        return await self._tell(addresses, RequestCode.AUTH_DELETE_ACL, fields, None)

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
