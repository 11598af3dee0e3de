"""Fish Audio's API: ``POST /v1/tts`` and ``WS /v1/tts/live`` (docs/reference/dialects.md)."""
