"""kourou mqadmin: Java's verbs with Java's flags and words.

commands    the command
verbs       how a verb is declared, and how flags are read
words       Java's ways to print
topics, groups, messages, brokers, access    the verbs
"""
