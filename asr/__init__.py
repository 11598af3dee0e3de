"""Speech recognition for clips without a transcript: optional, in a process of its own."""
