"""The gateway: sockets, HTTP, metrics, settings and the command line."""

from enum import IntEnum

__version__ = "0.1.0"


class Exit(IntEnum):
    """Exit codes. 0 is success; 2 is wrong usage, by convention."""

    FAILED = 1
    USAGE = 2
    NO_SERVER = 3
    REFUSED = 4
