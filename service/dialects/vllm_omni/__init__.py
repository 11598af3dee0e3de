"""vLLM-Omni's WebSocket protocol."""
