"""Makes `format("rocketmq")` known to Spark, which looks into every top-level module named `pyspark_…`."""

from kourou.spark.source import RocketmqDataSource as DefaultSource

__all__ = ["DefaultSource"]
