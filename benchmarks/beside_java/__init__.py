"""Comparisons with Java's servers and clients, in one run."""
