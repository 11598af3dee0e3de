"""Commands that measure: each prints its figures, the machine and the versions."""
