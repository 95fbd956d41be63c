"""Thousands of records at once, with numpy: where they are (records), their properties and hashes, and Arrow
arrays of them (columns); loops that numpy lacks are in kernels, compiled where numba is.
"""
