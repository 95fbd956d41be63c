"""What is said: RemotingCommand in its two forms (command, layouts), the fields of each request (header,
headers), the codes, and bodies: heartbeats, registrations, subscriptions, and Java's JSON where it is not
strict (lenient_json).
"""
