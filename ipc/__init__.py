"""Child processes, and messages to and from them: msgpack frames over a socket pair.

This package knows nothing of codecs or talkers. Messages are msgspec structs with a fixed schema;
nothing is ever unpickled.
"""
