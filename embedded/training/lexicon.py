"""Makes the lexicon of ``embedded.pronunciation``: ``python -m embedded.training.lexicon``.

It is misaki's American one (hexgrad, Apache-2.0), its verified entries before its guessed ones.
Names are also found in lower case. Of words with several pronunciations the usual one is kept.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from collections.abc import Mapping
from pathlib import Path

from embedded.pronunciation import FILE, written

_WORD = re.compile(r"[a-z]+(?:'[a-z]+)*")
_SOURCES = ("us_gold.json", "us_silver.json")
Entries = Mapping[str, "str | Mapping[str, str | None]"]


def entries(sources: list[Entries]) -> dict[str, str]:
    """Return ``{word: sounds}`` from the first source that has a word. A word in lower case takes
    precedence over a name with the same letters.
    """
    found: dict[str, str] = {}
    for source in sources:
        for is_name in (False, True):
            for word, sounds in source.items():
                small = word.lower()
                if (small != word) is not is_name or not _WORD.fullmatch(small):
                    continue
                usual = sounds if isinstance(sounds, str) else sounds.get("DEFAULT")
                if usual:
                    found.setdefault(small, written(usual))
    return found


def pack(words: Mapping[str, str]) -> bytes:
    """Pack one word per line, sorted, so that the same words give the same bytes."""
    lines = "".join(f"{word} {sounds}\n" for word, sounds in sorted(words.items()))
    return gzip.compress(lines.encode(), compresslevel=9, mtime=0)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=FILE)
    options = parser.parse_args()
    import misaki.data

    folder = Path(misaki.data.__path__[0])
    sources = [json.loads((folder / name).read_text(encoding="utf-8")) for name in _SOURCES]
    options.out.write_bytes(pack(entries(sources)))


if __name__ == "__main__":
    main()
