"""The pages that `make_reference.py` makes from the code, a module for each."""
