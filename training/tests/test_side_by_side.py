"""The comparison of the embedded voice with other systems."""

import asyncio
import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from loadtest.run import LoadTestError
from training.evaluation import side_by_side
from training.evaluation.side_by_side import Heard, Load, figures, loads, peer, table, texts

#: A peer's process that speaks 10 audible samples a sentence, in .5 s of processor time.
FAKE_PEER = """
import base64, json, sys
print("ready", flush=True)
for line in sys.stdin:
    told = [
        {"began": 1.0, "rate": 10, "parts": [
            [2.0 + i, base64.b64encode(b"\\x00\\x40" * 10).decode()] for i in range(len(text))
        ]}
        for texts in json.loads(line) for text in texts
    ]
    print(json.dumps({"busy_s": 0.5, "utterances": told}), flush=True)
"""


def heard(*parts: tuple[float, int]) -> Heard:
    """An utterance begun at 1 s: for each part the time, and the seconds of tone at 1000 Hz."""
    tone = np.full(1000, 8000, "<i2").tobytes()
    return Heard(["Hello."], 1.0, 1000, [(at, tone * seconds) for at, seconds in parts])


def test_figures_of_a_load_with_one_late_part() -> None:
    found = figures(Load([heard((1.2, 1), (2.0, 1)), heard((1.4, 1), (2.6, 1))], 1.0))
    assert found == {
        "first_sound_p50_ms": pytest.approx(300),
        "first_sound_worst_ms": pytest.approx(400),
        "gap_free": 0.5,
        "processor": 0.25,
    }


def test_every_speaker_has_its_own_texts() -> None:
    spread = loads(3, 2)
    assert [len(one) for one in spread] == [2, 2, 2]
    assert sorted(text[0] for one in spread for text in one) == sorted(t[0] for t in texts(6))
    assert all(len(text) == 2 for text in texts(30))


def test_processor_time_counts_children() -> None:
    spin = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"

    async def children() -> float:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", spin,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert child.stdout is not None
        await child.stdout.readline()
        own = time.process_time()
        both = side_by_side._busy_s(os.getpid())
        await child.communicate(b"\n")
        return both - own

    assert asyncio.run(children()) > 0.2


async def test_peer_answers_a_load_and_its_end_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "peer_voices.py"
    script.write_text(FAKE_PEER)
    monkeypatch.setattr(side_by_side, "__file__", str(tmp_path / "side_by_side.py"))
    with peer("Fake", "fake", Path(sys.executable)) as found:
        load = await found.speak([[["One."], ["Two.", "Three."]], [["Four."]]])
        found._process.terminate()
        found._process.wait()
        with pytest.raises(LoadTestError, match="Fake ended"):
            await found.speak([[["Five."]]])
    assert [one.text for one in load.heard] == [["One."], ["Two.", "Three."], ["Four."]]
    assert [len(one.samples) for one in load.heard] == [10, 20, 10]
    assert figures(load)["processor"] == 0.125


def test_missing_peer_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "__file__", str(tmp_path / "side_by_side.py"))
    with (
        pytest.raises(LoadTestError, match="make side-by-side"),
        peer("No", "x", Path(sys.executable)),
    ):
        raise AssertionError


def test_table_has_judges_figures_once_a_system() -> None:
    measured = {"first_sound_p50_ms": 1.0, "gap_free": 1.0}
    result = {"speakers": {"1": measured, "4": measured}, "quality": {"words_misheard": 0.1}}
    lines = table({"A": result, "B": result}).splitlines()
    assert [line.count("0.1") for line in lines[2:]] == [1, 0, 1, 0]
