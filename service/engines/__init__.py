"""Talker, codec and recogniser as the gateway sees them: contracts, chunk settings, pace."""
