from kourou.message.batch_records import Records

def encode_records(
    batch: memoryview,
    header: bytes,
    topic_field: bytes,
    crc_room: int,
    offset: int,
    queue_offset: int,
    timestamp: int,
    prefixes: tuple[int, int],
) -> Records: ...
