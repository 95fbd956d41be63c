"""Users, resources and access control lists, in the JSON forms of Java's requests.

A user is `Super`, who may do everything, or `Normal`, who may do what the entries of an ACL allow. An entry
is about a resource, written `Topic:orders`, `Topic:orders*`, `Group:*`, `Cluster:name` or `*`. The most
specific entry that fits a request decides: of a type before any, a name before a prefix, a long prefix
before a short one, and `Deny` before `Allow`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kourou.errors import KourouError
from kourou.remoting.protocol.codes import ResponseCode

SUPER, NORMAL = "Super", "Normal"
ENABLE, DISABLE = "enable", "disable"
CUSTOM, DEFAULT = "Custom", "Default"
ALLOW, DENY = "Allow", "Deny"
ANY, CLUSTER, TOPIC, GROUP = "Any", "Cluster", "Topic", "Group"
ALL_ACTIONS = "All"

USER_TYPES = (SUPER, NORMAL)
USER_STATUSES = (ENABLE, DISABLE)
POLICY_TYPES = (CUSTOM, DEFAULT)
DECISIONS = (ALLOW, DENY)
RESOURCE_TYPES = (ANY, CLUSTER, "Namespace", TOPIC, GROUP)
ACTIONS = (ALL_ACTIONS, "Pub", "Sub", "Create", "Update", "Delete", "Get", "List")
_USER_PREFIX = "User:"


class AccessError(KourouError):
    """An unknown user, or one without the permission."""

    response_code = ResponseCode.NO_PERMISSION


def one_of(known: Iterable[str], text: str | None) -> str | None:
    """The word of the list that equals this one, ignoring case."""
    wanted = (text or "").casefold()
    return next((word for word in known if word.casefold() == wanted), None)


@dataclass(frozen=True, slots=True)
class User:
    """Somebody who signs requests. The secret is needed as it is to check a signature."""

    name: str
    password: str = field(repr=False)
    type: str = NORMAL
    status: str = ENABLE

    def to_json(self) -> dict[str, str]:
        """The form of Java's UserInfo."""
        return {
            "password": self.password,
            "userStatus": self.status,
            "userType": self.type,
            "username": self.name,
        }


@dataclass(frozen=True, slots=True)
class Resource:
    """What an entry or a request is about. `name` is None for any; a prefix ends with an asterisk."""

    type: str
    name: str | None
    is_prefix: bool = False

    @classmethod
    def parse(cls, text: str | None) -> Resource:
        """`Topic:orders`, `Topic:orders*`, `Topic:*` or `*`."""
        if text == "*":
            return cls(ANY, None)
        kind, colon, name = (text or "").partition(":")
        known = one_of(RESOURCE_TYPES, kind)
        if known is None or not colon or not name:
            raise AccessError(f"{text!r} is no resource: write Topic:name, Topic:prefix*, Group:name or *")
        if name == "*":
            return cls(known, None)
        return cls(known, name.partition("*")[0], True) if name.endswith("*") else cls(known, name)

    def __str__(self) -> str:
        if self.type == ANY:
            return "*"
        return f"{self.type}:{'*' if self.name is None else self.name}{'*' if self.is_prefix else ''}"

    def covers(self, other: Resource) -> bool:
        """Whether what is said of this holds for the other, which is one thing."""
        if self.type == ANY:
            return True
        if self.type != other.type:
            return False
        if self.name is None:
            return True
        name = other.name or ""
        return name.startswith(self.name) if self.is_prefix else name == self.name

    @property
    def rank(self) -> tuple[bool, int, int]:
        """Sorts the more specific first."""
        kind = 2 if self.name is None else 1 if self.is_prefix else 0
        return self.type == ANY, kind, -len(self.name or "") if self.is_prefix else 0


@dataclass(frozen=True, slots=True)
class Entry:
    """Who has this may, or may not, do these things with a resource, from these addresses."""

    resource: Resource
    actions: tuple[str, ...]
    decision: str
    source_ips: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Entry:
        """From Java's PolicyEntryInfo; AccessError says what is wrong with it."""
        actions = tuple(known for text in value.get("actions") or () if (known := one_of(ACTIONS, text)))
        if not actions:
            raise AccessError(f"The actions is empty: there are {', '.join(ACTIONS)}")
        decision = one_of(DECISIONS, value.get("decision"))
        if decision is None:
            raise AccessError("The decision is null or illegal: it is Allow or Deny")
        ips = tuple(str(text) for text in value.get("sourceIps") or ())
        for text in ips:
            try:
                ipaddress.ip_network(text, strict=False)
            except ValueError as error:
                raise AccessError(f"The source ip is invalid: {text!r}") from error
        return cls(Resource.parse(value.get("resource")), actions, decision, ips)

    def to_json(self) -> dict[str, Any]:
        """The form of Java's PolicyEntryInfo."""
        value: dict[str, Any] = {
            "actions": list(self.actions), "decision": self.decision, "resource": str(self.resource),
        }  # fmt: skip
        return {**value, "sourceIps": list(self.source_ips)} if self.source_ips else value

    def fits(self, resource: Resource, actions: Iterable[str], source_ip: str) -> bool:
        """Whether it says anything about this."""
        if not self.resource.covers(resource):
            return False
        if ALL_ACTIONS not in self.actions and not any(action in self.actions for action in actions):
            return False
        return not self.source_ips or any(is_in(source_ip, text) for text in self.source_ips)


def is_in(address: str, network: str) -> bool:
    """Whether an address is of a network, or is that address."""
    try:
        known = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = getattr(known, "ipv4_mapped", None)  # an IPv4 peer of a socket for both
    return (mapped or known) in ipaddress.ip_network(network, strict=False)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True, slots=True)
class Policy:
    """Entries; those of `Default` count where none of `Custom` fits."""

    type: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Acl:
    """What is allowed and denied to a subject, `User:name`."""

    subject: str
    policies: tuple[Policy, ...]

    @classmethod
    def from_json(cls, value: Mapping[str, Any], subject: str | None = None) -> Acl:
        """From Java's AclInfo, or from its body and the subject in the header."""
        policies = tuple(
            Policy(
                one_of(POLICY_TYPES, policy.get("policyType")) or CUSTOM,
                tuple(Entry.from_json(entry) for entry in policy.get("entries") or ()),
            )
            for policy in value.get("policies") or ()
        )
        if not any(policy.entries for policy in policies):
            raise AccessError("The policies is empty: name a resource, actions and a decision")
        return cls(check_subject(subject or value.get("subject")), policies)

    def to_json(self) -> dict[str, Any]:
        """The form of Java's AclInfo."""
        policies = [
            {"entries": [entry.to_json() for entry in policy.entries], "policyType": policy.type}
            for policy in self.policies
        ]
        return {"policies": policies, "subject": self.subject}

    def merged(self, other: Acl) -> Acl:
        """With the entries of another: those for a resource that is here already take its place."""
        policies = {policy.type: policy for policy in self.policies}
        for policy in other.policies:
            old = policies.get(policy.type)
            entries = {entry.resource: entry for entry in (*(old.entries if old else ()), *policy.entries)}
            policies[policy.type] = Policy(policy.type, tuple(entries.values()))
        return replace(self, policies=tuple(policies.values()))

    def without(self, policy_type: str, resource: Resource) -> Acl:
        """Without what is said of one resource."""
        policies = (
            Policy(p.type, tuple(e for e in p.entries if p.type != policy_type or e.resource != resource))
            for p in self.policies
        )
        return replace(self, policies=tuple(policy for policy in policies if policy.entries))

    def decide(self, resource: Resource, actions: Iterable[str], source_ip: str) -> str | None:
        """`Allow`, `Deny`, or None if nothing fits."""
        actions = tuple(actions)
        for wanted in POLICY_TYPES:
            fitting = [
                entry
                for policy in self.policies
                if policy.type == wanted
                for entry in policy.entries
                if entry.fits(resource, actions, source_ip)
            ]
            if fitting:
                return min(fitting, key=lambda entry: (entry.resource.rank, entry.decision != DENY)).decision
        return None

    def allows_some(self, kind: str, action: str, source_ip: str) -> bool:
        """Whether an entry allows an action on something of a type."""
        return any(
            entry.decision == ALLOW and entry.fits(replace(entry.resource, type=kind), (action,), source_ip)
            for policy in self.policies
            for entry in policy.entries
        )


def check_subject(subject: str | None) -> str:
    """A subject in its one form; raises AccessError if it is not one."""
    if subject is None or one_of((_USER_PREFIX[:-1],), subject.partition(":")[0]) is None:
        raise AccessError(f"{subject!r} is no subject: write User:name")
    name = subject.partition(":")[2]
    if not name.strip():
        raise AccessError("a subject needs a name: write User:name")
    return subject_of(name)


def subject_of(name: str) -> str:
    """The subject that a user is."""
    return _USER_PREFIX + name
