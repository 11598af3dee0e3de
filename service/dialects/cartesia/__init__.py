"""Cartesia's speech API."""
