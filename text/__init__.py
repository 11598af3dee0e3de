"""All that happens to text before a talker reads it. Needs the standard library alone."""
