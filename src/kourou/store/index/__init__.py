"""The index: from a key to places in the log; and how it catches up after a crash."""
