"""Pages of the store browser."""
