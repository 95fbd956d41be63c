"""Who comes in: `gate` looks at every request, `login` asks for a name and a password, `sessions` and `users`
know who is who.
"""
