"""Voices: reading clips safely, storing codes with consent, looking names up."""
