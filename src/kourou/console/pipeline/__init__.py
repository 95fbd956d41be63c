"""Spark jobs from the console: what a form asks for (jobs), run as processes (runs, child), and what they
bring (result).
"""
