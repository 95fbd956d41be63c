"""Messages as a Parquet or Arrow file, through message.columns."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Any

from kourou.errors import ConfigError, KourouError

_ROWS_PER_BATCH = 8192
_BYTES_PER_BATCH = 32 * 1024 * 1024

FORMATS = {".parquet": "Parquet", ".arrow": "Arrow", ".feather": "Arrow"}


def write_file(records: Iterator[memoryview], path: str) -> int:
    """Write records as rows of columns.SCHEMA, bodies decompressed; how many. The name's ending says which.

    The file has its name only once it is whole.
    """
    ending = os.path.splitext(path)[1]
    if ending not in FORMATS:
        raise ConfigError(f"{path}: the name must end with {', '.join(FORMATS)}")
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq

        from kourou.message.scan import columns
    except ImportError:
        raise KourouError(f"{FORMATS[ending]} files need pyarrow: pip install 'kourou[arrow]'") from None
    partial = f"{path}.part"
    count = 0
    try:
        is_parquet = ending == ".parquet"
        schema = columns.schema()
        writer: Any = pq.ParquetWriter(partial, schema) if is_parquet else pa.ipc.new_file(partial, schema)
        with writer:
            for batch in _batches(records):
                for rows in columns.decode_rows(batch, decompress=True):
                    writer.write_batch(rows)
                count += len(batch)
        os.replace(partial, path)
    except OSError as error:
        raise KourouError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        if os.path.exists(partial):
            os.unlink(partial)
    return count


def _batches(records: Iterator[memoryview]) -> Iterator[list[memoryview]]:
    while True:
        batch: list[memoryview] = []
        size = 0
        for record in itertools.islice(records, _ROWS_PER_BATCH):
            batch.append(record)
            size += len(record)
            if size >= _BYTES_PER_BATCH:
                break
        if not batch:
            return
        yield batch
