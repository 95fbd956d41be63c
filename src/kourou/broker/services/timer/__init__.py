"""Timer messages: the service, what it has delivered, what waits by topic, and the time of the wheel."""
