"""What `kourou spark …` does, each job a function of a Spark session.

What lives here: inputs (`inputs`: a store, a cluster or an archive as a DataFrame), and the jobs `archive`
(with `archive_write`, `archive_place`, `lake` and `json_columns`), `audit`, `rebuild` (with `rebuild_scan`
and `rebuild_lay`), `replay`, `lag`. What does not: arguments and tables, which are `kourou.cli.spark`'s.
"""
