"""Stores of tests, on good disks and bad."""
