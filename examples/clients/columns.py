"""A topic as Arrow columns, without an object for each message: for pandas, DuckDB, Polars or a file.

python examples/clients/columns.py [NAMESRV]          (needs the extra `arrow`)
"""

from __future__ import annotations

import json

import pyarrow as pa
from common import run

from kourou.client import Consumer, Message, Producer


async def main(namesrv: str) -> None:
    async with Producer(namesrv, group="shop") as producer:
        batch = [
            Message("orders", json.dumps({"id": number}).encode(), {"region": "eu" if number % 3 else "us"})
            for number in range(3000)
        ]
        await producer.send_batch(batch)

    tables: list[pa.RecordBatch] = []
    async with Consumer(namesrv, group="analysis", subscribe="orders", consume_from="first") as consumer:
        while sum(table.num_rows for table in tables) < 3000:
            columns = ["store_timestamp", "properties.region", "body"]
            tables.append(await consumer.fetch_arrow(columns=columns))
    table = pa.Table.from_batches(tables)
    regions = table.group_by("properties.region").aggregate([("body", "count")])
    print(table.num_rows, "rows;", regions.to_pydict())


if __name__ == "__main__":
    run(main)
