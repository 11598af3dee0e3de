"""Rates WAV files with DNSMOS P.835: a script for the environment of the judges
(training/pyproject.toml).

Reads paths from stdin and answers each with a JSON list of three ratings from 1 to 5: of the
signal, of the background, and overall; after a first line when it is ready. Only the network comes
from the package ``speechmos``, whose code needs more packages than the network does. The window,
the repetition of short clips and the polynomials are those of DNSMOS
(https://github.com/microsoft/DNS-Challenge/tree/master/DNSMOS).
"""

import importlib.util
import json
import sys
import wave
from pathlib import Path

import numpy as np
import soxr

_RATE = 16_000
_WINDOW, _STEP = round(9.01 * _RATE), _RATE
#: From the network's outputs to ratings, highest power first: signal, background, overall.
_RATINGS = (
    (-0.08397278, 1.22083953, 0.0052439),
    (-0.13166888, 1.60915514, -0.39604546),
    (-0.06766283, 1.11546468, 0.04602535),
)


def main() -> None:
    """Answer until stdin ends. Exit at once if a package is missing."""
    spec = importlib.util.find_spec("speechmos")
    try:
        import onnxruntime
    except ImportError:
        sys.exit(1)
    if spec is None or spec.origin is None:
        sys.exit(1)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    network = onnxruntime.InferenceSession(
        Path(spec.origin).parent / "dnsmos_models" / "sig_bak_ovr.onnx",
        options,
        providers=["CPUExecutionProvider"],
    )
    print("ready", flush=True)
    for line in sys.stdin:
        with wave.open(line.rstrip("\n")) as speech:
            rate, pcm = speech.getframerate(), speech.readframes(speech.getnframes())
        samples = soxr.resample(np.frombuffer(pcm, "<i2").astype(np.float32) / 32768, rate, _RATE)
        while len(samples) < _WINDOW:
            samples = np.concatenate([samples, samples])
        windows = np.lib.stride_tricks.sliding_window_view(samples, _WINDOW)[::_STEP]
        found = np.mean([_ratings(network, window) for window in windows], axis=0)
        print(json.dumps(found.tolist()), flush=True)


def _ratings(network, window):  # type: ignore[no-untyped-def]
    raw = network.run(None, {"input_1": window[None]})[0][0]
    return [np.polyval(powers, one) for powers, one in zip(_RATINGS, raw, strict=True)]


if __name__ == "__main__":
    main()
