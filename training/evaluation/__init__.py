"""The evaluation of the embedded voice, as run by ``python -m training.evaluate``."""
