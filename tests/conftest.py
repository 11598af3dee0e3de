"""Settings for all tests."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import HealthCheck, settings

# No deadline for an example, since machines are shared. Each run uses the same examples, so that
# a failure is due to the change under test; `--hypothesis-profile explore` draws new ones.
slow = [HealthCheck.too_slow]
settings.register_profile("same", deadline=None, derandomize=True, suppress_health_check=slow)
settings.register_profile("explore", deadline=None, suppress_health_check=slow)
settings.load_profile("same")

# Programs started by tests import the client of this tree, as the tests do.
_CLIENT = Path(__file__).resolve().parents[1] / "clients" / "python" / "src"
os.environ["PYTHONPATH"] = os.pathsep.join(
    part for part in (os.environ.get("PYTHONPATH"), str(_CLIENT)) if part
)
