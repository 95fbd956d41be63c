"""The bits of a record's SYSFLAG (MessageSysFlag).

| bits  | meaning |
|-------|---------|
| 0     | the body is compressed |
| 1     | several tags |
| 2..3  | transaction: 0 none, 1 prepared, 2 commit, 3 rollback |
| 4     | born host is IPv6 (20 bytes instead of 8) |
| 5     | store host is IPv6 |
| 6     | a consumer must unwrap the inner batch |
| 7     | the body is an inner batch |
| 8..10 | compression type: 0 and 3 ZLIB, 1 LZ4, 2 ZSTD |
"""

from __future__ import annotations

COMPRESSED = 0x1
MULTI_TAGS = 0x2
TRANSACTION_NOT = 0x0
TRANSACTION_PREPARED = 0x4
TRANSACTION_COMMIT = 0x8
TRANSACTION_ROLLBACK = 0xC
TRANSACTION_MASK = 0xC
BORN_HOST_V6 = 0x10
STORE_HOST_V6 = 0x20
NEED_UNWRAP = 0x40
INNER_BATCH = 0x80
COMPRESSION_SHIFT = 8
COMPRESSION_MASK = 0x7 << COMPRESSION_SHIFT
