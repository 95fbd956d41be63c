"""read_store: a store directory as a DataFrame, by the shortest road.

`format("rocketmq")` brings each row through Spark's conversion from Arrow twice, mapInArrow once. So this
is the road for large logs; columns and filters are arguments here, since Spark pushes nothing through
mapInArrow.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from kourou.spark.read.wanted import MAX_LONG, Wanted
from kourou.spark.schema import ALL_COLUMNS, check_columns, ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Paths = str | Sequence[str]


def read_store(
    spark: SparkSession,
    path: Paths,
    columns: Sequence[str] | None = None,
    topics: str | Collection[str] | None = None,
    begin: datetime | int | None = None,
    end: datetime | int | None = None,
    *,
    keys: Collection[str] | None = None,
    decompress: bool = True,
    broker_name: str | None = None,
    config_file: str | None = None,
    read_by: str = "auto",
    range_bytes: int | None = None,
    check_crc: bool = False,
    fail_on_bad_body: bool = False,
    fail_on_data_loss: bool = True,
) -> DataFrame:
    """The messages of one or several store directories.

    columns: which, in this order; all by default. The map of properties is the dearest.
    topics: only of these.
    begin, end: store times, the end not included; aware datetimes or milliseconds since 1970.
    keys: only messages with one of these keys, or with this unique id; found through the index.
    fail_on_bad_body: fail at a body that cannot be read; by default it is as stored, and bodyError says why.
    """
    from kourou.spark.read.store_plan import StoreOptions, plan

    names = check_columns(columns or ALL_COLUMNS)
    wanted = Wanted(
        topics=None if topics is None else frozenset([topics] if isinstance(topics, str) else topics),
        keys=None if keys is None else frozenset(keys),
        begin_ms=0 if begin is None else to_ms(begin),
        end_ms=MAX_LONG if end is None else to_ms(end),
    )
    options = StoreOptions(
        paths=(path,) if isinstance(path, str) else tuple(map(str, path)),
        config_file=config_file,
        broker_name=broker_name,
        read_by=read_by,
        range_bytes=range_bytes,
    )
    parts = plan(options, wanted)
    broker = options.broker()

    def read(batches: Iterator[Any]) -> Iterator[Any]:
        from kourou.spark.read.rows import RowMaker
        from kourou.spark.read.store_read import read_part

        maker = RowMaker(
            names, wanted=wanted, broker_name=broker, decompress_body=decompress, check_crc=check_crc,
            fail_on_bad_body=fail_on_bad_body,
        )  # fmt: skip
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from read_part(parts[number], options, maker, fail_on_data_loss=fail_on_data_loss)

    return spark.range(0, len(parts), 1, max(len(parts), 1)).mapInArrow(read, ddl(names))


def to_ms(moment: datetime | int) -> int:
    """Milliseconds since 1970; a datetime without a zone is in UTC."""
    if isinstance(moment, int):
        return moment
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return int(aware.timestamp() * 1000)
