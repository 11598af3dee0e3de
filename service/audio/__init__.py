"""Audio encoding: from samples at the codec's rate to the format that a client asked for."""
