"""An open-loop load generator on native sockets or OpenAI's HTTP, and what its records come to."""
