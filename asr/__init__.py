"""Hears the words of a clip that came without its text: optional, in a process of its own."""
