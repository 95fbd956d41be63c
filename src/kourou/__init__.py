"""Kourou: RocketMQ in Python, byte-compatible with Apache RocketMQ 5.5 on disk and on the wire.

Nothing lives here but the version. Import what you need from the packages below.
"""

__version__ = "0.1.0"
