"""An open-loop load generator for the native protocol, and what it makes of its records."""
