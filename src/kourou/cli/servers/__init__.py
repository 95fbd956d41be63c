"""Verbs that run until they are told to stop: broker, namesrv, console, and all of them at once (up)."""
