"""How good the embedded voice is: what ``python -m embedded.evaluate`` measures, and how."""
