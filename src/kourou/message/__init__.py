"""The record itself: what one message is, in memory and as bytes.

    model, properties, ids, sysflag, host, topics    what a message has
    codec                                            one record as bytes
    batch, compression, checksum, recall
    scan/                                            thousands of records at once, as Arrow arrays

Files, sockets and clocks are not here. This package imports nothing of Kourou but its errors.

The way of the data: Message → (compress) → properties string → `codec.encode_into` writes the record
into any writable buffer with one copy of the body; back, `codec.decode` reads one record from any
buffer, `scan.columns.read_columns` reads thousands.
"""

from kourou.message.batch import decode_batch, encode_batch
from kourou.message.codec import (
    BLANK_MAGIC,
    MAGIC_V1,
    MAGIC_V2,
    StoredMessage,
    body_crc,
    decode,
)
from kourou.message.compression import CompressionType, compress, decompress
from kourou.message.host import format_host, pack_host, parse_host, unpack_host
from kourou.message.ids import (
    MessageId,
    UniqueIdGenerator,
    decode_offset_message_id,
    decode_unique_id,
    offset_message_id,
)
from kourou.message.model import Message
from kourou.message.properties import decode_properties, encode_properties, java_hash, tags_code

__all__ = [
    "BLANK_MAGIC",
    "MAGIC_V1",
    "MAGIC_V2",
    "CompressionType",
    "Message",
    "MessageId",
    "StoredMessage",
    "UniqueIdGenerator",
    "body_crc",
    "compress",
    "decode",
    "decode_batch",
    "decode_offset_message_id",
    "decode_properties",
    "decode_unique_id",
    "decompress",
    "encode_batch",
    "encode_properties",
    "format_host",
    "java_hash",
    "offset_message_id",
    "pack_host",
    "parse_host",
    "tags_code",
    "unpack_host",
]
