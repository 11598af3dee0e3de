"""OpenAI's speech API."""
