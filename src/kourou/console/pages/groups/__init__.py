"""Pages of consumer groups: all, one, a client of it, its offsets."""
