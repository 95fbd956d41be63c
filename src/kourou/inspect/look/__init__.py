"""A store to look at, for a browser: files to scale, pages of records and entries, records down to their
bytes, chains of the index. All of it ends after a bounded number of records, entries or bytes.
"""
