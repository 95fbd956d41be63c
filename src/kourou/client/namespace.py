"""Namespaces: several tenants on one cluster, each with names of its own (NamespaceUtil).

On the wire a name of a namespace is `namespace%name`; in a retry or dead-letter topic the namespace stands
behind the prefix, `%RETRY%namespace%group`. Names of the system belong to no namespace.
"""

from __future__ import annotations

from kourou.message.topics import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_PREFIX, SYSTEM_TOPICS

SEPARATOR = "%"
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"


def wrap(namespace: str | None, resource: str) -> str:
    """The name of a topic or group on the wire; one that has its namespace already stays as it is."""
    if not namespace or not resource or is_system(resource):
        return resource
    prefix, name = _split(resource)
    if name.startswith(namespace + SEPARATOR):
        return resource
    return f"{prefix}{namespace}{SEPARATOR}{name}"


def unwrap(namespace: str | None, resource: str) -> str:
    """The name of a topic or group as its users know it; one of another namespace stays as it is."""
    if not namespace or not _split(resource)[1].startswith(namespace + SEPARATOR):
        return resource
    return unwrap_any(resource)


def unwrap_any(resource: str) -> str:
    """The name of a topic or group without its namespace, whichever that is."""
    if not resource or is_system(resource):
        return resource
    prefix, name = _split(resource)
    namespace, separator, rest = name.partition(SEPARATOR)
    return prefix + rest if namespace and separator else resource


def is_system(resource: str) -> bool:
    """Whether a topic or group is the system's own."""
    return resource in SYSTEM_TOPICS or resource.startswith((SYSTEM_PREFIX, SYSTEM_GROUP_PREFIX))


def _split(resource: str) -> tuple[str, str]:
    """A name and the prefix before it that says what kind of topic it is."""
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if resource.startswith(prefix):
            return prefix, resource[len(prefix) :]
    return "", resource
