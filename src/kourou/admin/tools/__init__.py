"""Larger work of an operator: a check-up (doctor), a load (bench), messages as they come, traces."""
