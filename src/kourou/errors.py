"""The one hierarchy of errors that Kourou raises on purpose.

Each class carries the response code of the remoting protocol that a server answers with when the
error reaches it, so that no layer has to translate.
"""

from __future__ import annotations


class KourouError(Exception):
    """Anything Kourou raises on purpose; the message says what to do."""

    response_code = 1  # SYSTEM_ERROR


class BadMessageError(KourouError):
    """A message that cannot be stored or sent as it is."""

    response_code = 13  # MESSAGE_ILLEGAL


class CorruptRecordError(KourouError):
    """Bytes that do not decode to a record."""


class StoreError(KourouError):
    """The store cannot do what was asked."""


class NotAStoreError(StoreError):
    """A directory that holds no RocketMQ store."""


class StoreLockedError(StoreError):
    """Another process has this store open."""


class StoreDamagedError(StoreError):
    """Files that contradict each other in a way recovery must not decide alone."""


class DiskFullError(StoreError):
    """The disk has no room for the bytes that must be written."""

    response_code = 14  # SERVICE_NOT_AVAILABLE


class ConfigError(KourouError):
    """A configuration key with a value that cannot be used."""
