"""Audio out: samples at the codec's rate become the bytes that a client asked for."""
