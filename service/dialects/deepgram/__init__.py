"""Deepgram's speech API."""
