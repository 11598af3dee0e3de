"""ElevenLabs' speech API."""
