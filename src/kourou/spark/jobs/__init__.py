"""What `kourou spark …` does, each job a function of a Spark session.

What lives here: inputs (`inputs`: a store, a cluster or an archive as a DataFrame), and the jobs `archive`,
`audit`, `rebuild`, `replay`, `lag`. What does not: arguments and tables, which are `kourou.cli.spark`'s.
"""
