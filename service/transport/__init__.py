"""Transport: sockets and HTTP responses."""
