"""The small speaking checkpoint that ships with the project."""
