"""Benchmark commands: each prints its results, the machine and the versions."""
