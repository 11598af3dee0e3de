"""The page to try the service with."""
