# cython: language_level=3, boundscheck=False, wraparound=False
"""encode_records in C: the same as batch_records.encode_in_python, with no object for what only passes through."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.string cimport memchr, memcmp, memcpy, memset

from kourou.errors import CorruptRecordError
from kourou.message import batch_records
from kourou.message.checksum import crc32
from kourou.message.properties import tags_code

ctypedef const unsigned char* Bytes

cdef enum:
    BATCH_HEAD = 20  # of a message in a batch: size, magic, CRC, flag, body length
    FLAG_IN_BATCH = 12
    LENGTH_IN_BATCH = 16
    CRC_AT = 8  # in a record
    FLAG_AT = 16
    QUEUE_OFFSET_AT = 20
    OFFSET_AT = 28
    MAX_PROPERTIES = 0x7FFF


cdef inline int int_at(Bytes at) noexcept:
    return <int>((<unsigned int>at[0] << 24) | (at[1] << 16) | (at[2] << 8) | at[3])


cdef inline void put_int(unsigned char* at, unsigned int value) noexcept:
    at[0] = value >> 24
    at[1] = value >> 16 & 0xFF
    at[2] = value >> 8 & 0xFF
    at[3] = value & 0xFF


cdef inline void put_long(unsigned char* at, unsigned long long value) noexcept:
    put_int(at, <unsigned int>(value >> 32))
    put_int(at + 4, <unsigned int>(value & 0xFFFFFFFF))


cdef inline str text_of(Bytes start, Py_ssize_t length):
    return PyUnicode_DecodeUTF8(<const char*>start, length, b"replace")


cdef inline Py_ssize_t crc_bytes(Bytes properties, Py_ssize_t length, Py_ssize_t room) noexcept:
    """How much longer properties get by their CRC: a separator may be missing before it."""
    if room == 0:
        return 0
    return room + (1 if length > 0 and properties[length - 1] != 2 else 0)


cdef object add_keys(
    Bytes start, Py_ssize_t length, list keys, tuple prefixes, object offset, object timestamp
):
    """Add the keys that a property string names; the code of its tags."""
    cdef Bytes end = start + length
    cdef Bytes at = start
    cdef Bytes segment_end
    cdef Py_ssize_t size
    cdef str unique_id = None
    cdef str own_keys = None
    cdef str tags = None
    while at < end:
        segment_end = <Bytes>memchr(at, 2, end - at)
        if segment_end == NULL:
            segment_end = end
        size = segment_end - at
        if size > 9 and memcmp(at, b"UNIQ_KEY\x01", 9) == 0:  # without a value it is no property
            unique_id = text_of(at + 9, size - 9)
        elif size > 5 and memcmp(at, b"KEYS\x01", 5) == 0:
            own_keys = text_of(at + 5, size - 5)
        elif size > 5 and memcmp(at, b"TAGS\x01", 5) == 0:
            tags = text_of(at + 5, size - 5)
        elif size > 6 and memcmp(at, b"INNER_", 6) == 0:
            batch_records.check_in_batch(text_of(start, length))
        at = segment_end + 1
    if unique_id is not None:
        keys.append(prefixes[0])
        keys.append(unique_id)
        keys.append(offset)
        keys.append(timestamp)
    if own_keys is not None:
        for key in own_keys.split(" "):
            if key:
                keys += (prefixes[0], key, offset, timestamp)
    if tags is None:
        return 0
    keys += (prefixes[1], tags, offset, timestamp)
    return tags_code(tags)


cdef Py_ssize_t measure(
    Bytes data, Py_ssize_t end, Py_ssize_t overhead, Py_ssize_t room
) except -1:
    """How long the records of a batch are together; CorruptRecordError if it is none."""
    cdef Py_ssize_t at = 0, total = 0, size, body_length, body_end, length, following, more
    while at < end:
        if end - at < BATCH_HEAD + 2:
            raise CorruptRecordError(f"batch body ends inside a message at {at}")
        size = int_at(data + at)
        body_length = int_at(data + at + LENGTH_IN_BATCH)
        body_end = at + BATCH_HEAD + body_length
        if body_length < 0 or body_end + 2 > end:
            raise CorruptRecordError(f"batch body has a bad body length {body_length} at {at}")
        length = (data[body_end] << 8) | data[body_end + 1]
        following = body_end + 2 + length
        if length > MAX_PROPERTIES or following > end or size != following - at:
            raise CorruptRecordError(f"batch body has a bad message size {size} at {at}")
        more = crc_bytes(data + body_end + 2, length, room)
        if length + more > MAX_PROPERTIES:
            raise batch_records.TooLongError(f"properties of {length + more} bytes")
        total += overhead + body_length + 2 + length + more
        at = following
    return total


def encode_records(
    const unsigned char[::1] batch,
    bytes header,
    bytes topic_field,
    Py_ssize_t crc_room,
    long long offset,
    long long queue_offset,
    object timestamp,
    tuple prefixes,
):
    """See batch_records.encode_in_python."""
    cdef Py_ssize_t end = batch.shape[0], header_length = len(header), field_length = len(topic_field)
    cdef list offsets = [], sizes = [], codes = [], keys = []
    if end == 0:
        return b"", offsets, sizes, codes, keys
    cdef Bytes data = &batch[0]
    cdef Py_ssize_t at = 0, body_length, body_end, length, more, size
    cdef Py_ssize_t total = measure(data, end, header_length + field_length, crc_room)
    cdef bytes encoded = PyBytes_FromStringAndSize(NULL, total)
    cdef unsigned char* out = <unsigned char*>PyBytes_AS_STRING(encoded)
    cdef unsigned int crc
    cdef object whole = memoryview(batch)
    cdef object this_offset
    while at < end:
        body_length = int_at(data + at + LENGTH_IN_BATCH)
        body_end = at + BATCH_HEAD + body_length
        length = (data[body_end] << 8) | data[body_end + 1]
        more = crc_bytes(data + body_end + 2, length, crc_room)
        size = header_length + body_length + field_length + 2 + length + more
        this_offset = offset
        codes.append(add_keys(data + body_end + 2, length, keys, prefixes, this_offset, timestamp))
        crc = crc32(whole[at + BATCH_HEAD : body_end])
        memcpy(out, PyBytes_AS_STRING(header), header_length)
        put_int(out, <unsigned int>size)
        put_int(out + CRC_AT, crc & 0x7FFFFFFF)
        memcpy(out + FLAG_AT, data + at + FLAG_IN_BATCH, 4)
        put_long(out + QUEUE_OFFSET_AT, queue_offset)
        put_long(out + OFFSET_AT, offset)
        put_int(out + header_length - 4, <unsigned int>body_length)
        out += header_length
        memcpy(out, data + at + BATCH_HEAD, body_length)
        out += body_length
        memcpy(out, PyBytes_AS_STRING(topic_field), field_length)
        out += field_length
        out[0] = (length + more) >> 8
        out[1] = (length + more) & 0xFF
        memcpy(out + 2, data + body_end + 2, length)
        out += 2 + length
        if more:
            memset(out, 0, more)
            if more > crc_room:
                out[0] = 2
            out += more
        offsets.append(this_offset)
        sizes.append(size)
        offset += size
        queue_offset += 1
        at = body_end + 2 + length
    return encoded, offsets, sizes, codes, keys
