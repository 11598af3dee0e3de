"""Add fuzzing results to the committed corpus: ``python -m tests.fuzz.collect FOLDER``.

FOLDER holds a folder for each target. The shortest cases of each are added to corpus.jsonl. Cases
that are there already stay, as some of them once broke something.
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path

from tests.fuzz.seeds import seeds

CORPUS = Path(__file__).with_name("corpus.jsonl")
_MOST, _LONGEST = 40, 400


def load() -> dict[str, list[bytes]]:
    """The committed cases by target."""
    cases: dict[str, list[bytes]] = {}
    for line in CORPUS.read_text().splitlines():
        entry = json.loads(line)
        cases[entry["target"]] = [base64.b64decode(case) for case in entry["cases"]]
    return cases


def main(folder: Path) -> None:
    """Rewrite the corpus file."""
    kept = load() if CORPUS.exists() else {}
    with CORPUS.open("w") as file:
        for name in sorted(seeds()):
            cases = dict.fromkeys(kept.get(name, []))
            found = [path.read_bytes() for path in sorted((folder / name).glob("*"))]
            for case in sorted(found, key=lambda case: (len(case), case)):
                if len(cases) < _MOST and len(case) <= _LONGEST:
                    cases.setdefault(case)
            texts = [base64.b64encode(case).decode() for case in cases]
            file.write(json.dumps({"target": name, "cases": texts}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
