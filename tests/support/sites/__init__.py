"""Servers and clients that run in a test."""
