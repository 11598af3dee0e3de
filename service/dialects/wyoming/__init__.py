"""Wyoming, the protocol of Home Assistant's voice services (docs/reference/dialects.md)."""
