"""The data source `format("rocketmq")`: what Spark calls, and which road a call takes.

With a path it reads store directories (`store_plan` says how), with the option `namesrv` brokers
(`broker_road`, `offsets`, `stream`, `sink` say what their options mean). Spark makes an instance in a
planner process of the driver, asks it for a reader, and sends the reader to its workers: everything kept in
these objects must travel, and heavy libraries are imported only where rows are made.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)

from kourou.errors import KourouError
from kourou.spark import schema as columns
from kourou.spark.options import OptionError, Options, check_given
from kourou.spark.read.wanted import Wanted
from kourou.spark.sentence import in_one_sentence, rows_in_one_sentence

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

    from kourou.spark.read.store_plan import StoreOptions

STORE_OPTIONS = frozenset(
    ("brokerName", "brokerConf", "rangeBytes", "readBy", "checkCrc", "topic", "topics", "keys", "decompress",
     "failOnBadBody", "failOnDataLoss")
)  # fmt: skip

_PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


class RocketmqDataSource(DataSource):
    """Messages of RocketMQ as rows."""

    @classmethod
    def name(cls) -> str:
        """What format() is given."""
        return "rocketmq"

    @in_one_sentence
    def schema(self) -> str:
        """All columns; a schema of the user's own is a projection of these."""
        check_given(self.options)
        return columns.ddl()

    @in_one_sentence
    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of a batch query."""
        names = columns.columns_of(schema)
        make = PushdownReader if _filters_come() else RocketmqReader
        return make(self._road(names))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The reader of a stream, which comes from brokers."""
        from kourou.spark.read.stream import RefusedReader, RocketmqStreamReader

        try:
            return RocketmqStreamReader(dict(self.options), columns.columns_of(schema))
        except KourouError as error:  # which Spark 4.3 would hide behind one of its own
            return RefusedReader(error)

    @in_one_sentence
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The writer of a batch query."""
        from kourou.spark.write.sink import RocketmqWriter

        check_given(self.options)
        return RocketmqWriter(dict(self.options), schema, overwrite)

    @in_one_sentence
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """The writer of a stream."""
        from kourou.spark.write.sink import RocketmqStreamWriter

        check_given(self.options)
        return RocketmqStreamWriter(dict(self.options), schema, overwrite)

    def _road(self, names: tuple[str, ...]) -> Road:
        given = dict(self.options)
        check_given(given)
        if "namesrv" in given:
            from kourou.spark.read.broker_road import BrokerRoad

            return BrokerRoad(given, names)
        if not given.get("path") and not given.get("paths"):
            raise OptionError("namesrv", 'name the name servers, or a store directory with load("…")')
        return StoreRoad(given, names)


def _filters_come() -> bool:
    """Whether Spark is about to push filters down.

    Spark refuses a reader that could take filters unless spark.sql.python.filterPushdown.enabled is on,
    and does not say whether it is; but filters are pushed by a worker of their own, and this runs in it.
    """
    main = getattr(sys.modules["__main__"], "__spec__", None)
    return _PUSHDOWN_WORKER in sys.modules or (main is not None and main.name == _PUSHDOWN_WORKER)


class Nothing(InputPartition):
    """A partition of no rows: Spark makes one of its own where there is none."""

    def __init__(self) -> None:
        super().__init__(None)


class RocketmqReader(DataSourceReader):
    """Reads by one of the roads."""

    def __init__(self, road: Road) -> None:
        self._road = road

    @in_one_sentence
    def partitions(self) -> Sequence[InputPartition]:
        """What the tasks read."""
        return [InputPartition(part) for part in self._road.plan()] or [Nothing()]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of a partition."""
        if partition.value is None:
            return iter(())
        return rows_in_one_sentence(self._road.read(partition.value))


class PushdownReader(RocketmqReader):
    """A reader that takes filters."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take what can be taken; the rest is Spark's."""
        return self._road.narrow(filters)


class Road(Protocol):
    """A way to read messages: planned in the driver, read in tasks."""

    def narrow(self, filters: list[Filter]) -> list[Filter]:
        """Take filters; those that are left are returned."""

    def plan(self) -> Sequence[Any]:
        """What there is to read, cut for the tasks."""

    def read(self, part: Any) -> Iterator[Any]:
        """The rows of a part."""


class StoreRoad:
    """Reads store directories."""

    def __init__(self, given: dict[str, str], names: tuple[str, ...]) -> None:
        from kourou.spark.read.store_plan import READ_BY, StoreOptions, split_paths

        options = Options(given, STORE_OPTIONS)
        path = options.text("path") or options.text("paths") or ""
        options.only_one_of("topic", "topics")
        topics = options.names("topics") or options.names("topic")
        keys = options.names("keys")
        self.options: StoreOptions = StoreOptions(
            paths=split_paths(path),
            config_file=options.text("brokerConf"),
            broker_name=options.text("brokerName"),
            range_bytes=options.size("rangeBytes"),
            read_by=options.choice("readBy", READ_BY, "auto"),
        )
        self.wanted = Wanted(
            topics=None if topics is None else frozenset(topics),
            keys=None if keys is None else frozenset(keys),
        )
        self._names = names
        self._decompress = options.flag("decompress", True)
        self._fail_on_bad_body = options.flag("failOnBadBody", False)
        self._check_crc = options.flag("checkCrc", False)
        self._fail_on_data_loss = options.flag("failOnDataLoss", True)

    def narrow(self, filters: list[Filter]) -> list[Filter]:
        """Take filters; those that are left are returned."""
        self.wanted, left = self.wanted.narrow(filters)
        return left

    def plan(self) -> Sequence[Any]:
        """The parts of the stores to read."""
        from kourou.spark.read.store_plan import plan

        return plan(self.options, self.wanted)

    def read(self, part: Any) -> Iterator[Any]:
        """The rows of a part."""
        from kourou.spark.read.rows import RowMaker
        from kourou.spark.read.store_read import read_part

        maker = RowMaker(
            self._names,
            wanted=self.wanted,
            broker_name=self.options.broker(),
            decompress_body=self._decompress,
            fail_on_bad_body=self._fail_on_bad_body,
            check_crc=self._check_crc,
        )
        return read_part(part, self.options, maker, fail_on_data_loss=self._fail_on_data_loss)
