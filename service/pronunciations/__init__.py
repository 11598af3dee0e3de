"""Dictionaries of pronunciations: the operator's files, and those that clients add."""
