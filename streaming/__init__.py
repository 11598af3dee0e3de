"""The pure core: what happens to codes, text and messages, without I/O, torch or a clock.

Everything here is decided from arguments alone; the caller passes ``now`` in.
"""
