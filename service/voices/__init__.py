"""Voices: clips read safely, codes kept with consent, and names to speak with."""
