"""One module per wire dialect; each is thin, and none reaches into another."""
