"""The store browser's reading: files to scale, records and index files taken apart, bytes as HTML."""
