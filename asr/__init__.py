"""Speech recognition for clips that come without their text: optional, in a process of its own."""
