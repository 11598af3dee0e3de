"""Contexts: from what a client asks for to audio, words and their end."""
