"""Settings of all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# No time limit for an example: machines are shared. The same examples in each run, so that a
# change fails for what it changed; `--hypothesis-profile explore` draws new ones.
slow = [HealthCheck.too_slow]
settings.register_profile("same", deadline=None, derandomize=True, suppress_health_check=slow)
settings.register_profile("explore", deadline=None, suppress_health_check=slow)
settings.load_profile("same")
