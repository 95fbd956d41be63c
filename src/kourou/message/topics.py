"""Topics that belong to a consumer group, by how their names begin."""

RETRY_PREFIX = "%RETRY%"  # what the group could not consume, to be tried again
DLQ_PREFIX = "%DLQ%"  # what it never could
