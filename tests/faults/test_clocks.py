"""Use of clocks: intervals are measured by a monotonic clock, the wall clock is for dates only."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("streaming", "ipc", "codec", "talker", "asr", "service", "clients")
#: Modules that may read the wall clock, and their purpose.
DATES = {
    "service/auth/authenticator.py": "until when keys are valid",
    "service/auth/keys.py": "when keys were made and end",
    "service/logs.py": "the date of log lines",
    "service/dialects/cartesia/routes.py": "the date of voices",
    "service/dialects/elevenlabs/account.py": "the date at which an account begins",
    "service/dialects/openai/routes.py": "the date of models",
    "service/dialects/voices.py": "the date of consent",
    "service/pronunciations/library.py": "the date of dictionaries",
    "service/voices/cloning.py": "the date of voices",
    "service/voices/store.py": "how old a file is that nobody finished",
}
WALL = {"time", "now", "utcnow", "today", "localtime", "gmtime", "ctime"}
#: Modules and classes whose attributes in WALL read the wall clock.
OWNERS = {"time", "datetime", "date"}


def asks_for_the_time_of_day(source: str) -> bool:
    """Whether the source calls, or passes on, a function that reads the wall clock."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in WALL:
            owner = node.value
            name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
            if name in OWNERS:
                return True
        if (
            isinstance(node, ast.ImportFrom)
            and node.module == "time"
            and WALL & {alias.name for alias in node.names}
        ):
            return True
    return False


def test_wall_clock_search_finds_calls_and_imports() -> None:
    for guilty in (
        "import time\nx = time.time()",
        "import datetime\nx = datetime.datetime.now()",
        "from datetime import datetime\nx = datetime.now(UTC)",
        "from time import time",
        "import time\nf(clock=time.time)",
    ):
        assert asks_for_the_time_of_day(guilty), guilty
    for innocent in (
        "import time\nx = time.monotonic()",
        "import asyncio\nx = loop.time()",
        "from time import monotonic",
        "x = datetime.fromisoformat(text)",
        "x = words.time",
    ):
        assert not asks_for_the_time_of_day(innocent), innocent


def test_wall_clock_is_read_only_for_dates() -> None:
    found = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if asks_for_the_time_of_day(path.read_text())
    }
    assert found == set(DATES)
