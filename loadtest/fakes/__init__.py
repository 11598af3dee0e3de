"""Fake engines for tests, load tests and the gateway alone; no package of the server has them."""
