"""The gateway: sockets, HTTP, metrics, settings and the command line."""

__version__ = "0.1.0"
