"""The gateway: sockets, HTTP, metrics, settings and the command line."""
