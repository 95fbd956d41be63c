"""Timer messages on disk: the wheel of slots, the log that they point into, and both as a store."""
