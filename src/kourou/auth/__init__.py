"""Who may do what: users and their signatures, access control lists (ACL 2.0), and the guard of a server.

What lives here: the rules, for brokers and name servers alike. What does not: signing requests
(`kourou.remoting.signing`) and encryption (`kourou.remoting.tls`).
"""

from kourou.auth.config import AuthConfig
from kourou.auth.guard import Guard
from kourou.auth.model import AccessError, Acl, Entry, Policy, Resource, User
from kourou.auth.tables import AccessTables, Rights

__all__ = [
    "AccessError", "AccessTables", "Acl", "AuthConfig", "Entry", "Guard", "Policy", "Resource", "Rights",
    "User",
]  # fmt: skip
