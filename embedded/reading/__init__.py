"""How English writing is read aloud: the parts of ``embedded.text``."""
