"""Wire protocols: one module or folder for each."""
