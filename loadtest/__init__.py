"""An open-loop load generator for native sockets or OpenAI's HTTP API, and its evaluation."""
