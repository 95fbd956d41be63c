"""Messages in and out: `send` takes one from its request to the log, `pull` brings them back, `filters` and
`sql92` say which.
"""
