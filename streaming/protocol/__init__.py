"""The native protocol's messages, its binary header, and its AsyncAPI document."""
