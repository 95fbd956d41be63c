"""What was recorded from Java."""
