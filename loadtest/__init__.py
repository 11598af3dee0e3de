"""An open-loop load generator, on native sockets or OpenAI's HTTP, and what it makes of its records."""
