"""Coverage-guided fuzzing: ``python -m tests.fuzz.run TARGET FOLDER [libFuzzer's options]``.

FOLDER keeps the interesting cases. Requires Atheris, which has an environment of its own:
``make fuzz``.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(
    include=["streaming", "text", "service", "talker", "codec", "ipc", "json", "starlette",
             "python_multipart", "tomllib"]
):  # fmt: skip
    from tests.fuzz.seeds import seeds
    from tests.fuzz.targets import TARGETS


def main() -> None:
    """Run until libFuzzer stops; a case that breaks the target is kept."""
    name, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds()[name]):
        (folder / f"seed-{number}").write_bytes(seed)
    logging.disable()
    atheris.Setup([sys.argv[0], str(folder), *sys.argv[3:]], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
