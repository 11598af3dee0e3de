"""Child processes and the messages between them: msgpack frames over a socket pair.

Nothing here knows what a codec or a talker is. Messages are msgspec structs with a fixed
schema; nothing is ever unpickled.
"""
