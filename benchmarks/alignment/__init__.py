"""Finds the alignment heads of a checkpoint by calibration: ``python -m benchmarks.alignment``."""
