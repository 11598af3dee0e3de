"""English text normalisation: written text to spoken words."""
