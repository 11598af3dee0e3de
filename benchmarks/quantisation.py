"""Effect of 8 and 4 bits on the talker's codes: ``python -m benchmarks.quantisation``.

``benchmarks.reference_talker`` speaks some sentences in float32. Then each scheme computes the odds
of the same rows, teacher-forced. The results are the share of best codes that differ from
float32's, and the odds' distance from float32's (Kullback-Leibler, in nats per code, at temperature
1). Schemes are simulated by rounding weights and inputs to the reduced number of bits, as the real
kernels do; ``int8`` and ``fp8`` are the presets of the setting ``talker_quantization`` (fp8
checkpoints are the same), ``int4`` is that of ``talker.pack``, the others show the effect of their
parts. ``--quantised FOLDER`` compares the weights that such a copy of the model stores. Speed is
measured with the real kernels, by ``benchmarks.talker_steps --model FOLDER``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from benchmarks.reference_talker import Chance, ReferenceTalker
from loadtest.program import (
    bounded,
    environment,
    failing,
    markdown_table,
    output_file,
    print_facts,
    write_json,
)
from streaming.spec import Codes
from talker.checkpoint import choose_front_end, open_checkpoint
from talker.pack import BITS, GROUP
from talker.shape import CheckpointError
from talker.weights import weight_files
from text.registry import FRONT_ENDS

SENTENCES = (
    "The morning train was late again, so we walked along the river.",
    "Could you tell me how far it is to the nearest station?",
    "She put the letters on the table and opened the window.",
    "There is nothing left to do but wait for the rain to stop.",
    "Our guests will arrive at seven, and dinner should be ready by then.",
    "He never said why he had left the city so suddenly.",
)
_MOST_ROWS = 400
_FP8_MOST = 448.0
_CODE_EMBEDDING = "tied.embedding.modality_embeddings.0.embedding.weight"
Rounding = Callable[[Tensor], Tensor]


def fake_int8(x: Tensor) -> Tensor:
    """Round each row of ``[..., n]`` to INT8 with its own scale, and convert it back."""
    scale = (x.abs().amax(-1, keepdim=True) / 127).clamp_min(1e-12)
    return (x / scale).round().clamp(-127, 127) * scale


def fake_fp8(x: Tensor) -> Tensor:
    """Round each row to FP8 (e4m3) with its own scale, and convert it back."""
    scale = (x.abs().amax(-1, keepdim=True) / _FP8_MOST).clamp_min(1e-12)
    return (x / scale).to(torch.float8_e4m3fn).float() * scale


def fake_fp8_per_tensor(x: Tensor) -> Tensor:
    """Round everything to FP8 with one scale, and convert it back."""
    return fake_fp8(x.reshape(1, -1)).reshape(x.shape)


def fake_int4(x: Tensor) -> Tensor:
    """Round groups of each row to 4 bits with their own scales, as ``talker.pack``, and convert
    back.
    """
    groups = x.view(*x.shape[:-1], -1, GROUP)
    scale = (groups.abs().amax(-1, keepdim=True) / 7).clamp_min(1e-12)
    rounded: Tensor = ((groups / scale).round().clamp(-8, 7) * scale).flatten(-2)
    return rounded


def to_bfloat16(x: Tensor) -> Tensor:
    """Round to bfloat16, and convert back."""
    return x.bfloat16().float()


@dataclass(frozen=True)
class Scheme:
    """Rounding of the linear layers' weights and inputs; None leaves them.

    ``head`` also rounds the code embedding, which is the head.
    """

    name: str
    weight: Rounding
    inputs: Rounding | None
    head: bool = False


SCHEMES = (
    Scheme("int8", fake_int8, fake_int8),
    Scheme("int8, weights alone", fake_int8, None),
    Scheme("int8, code embedding too", fake_int8, fake_int8, head=True),
    Scheme("fp8", fake_fp8, fake_fp8),
    Scheme("fp8, one scale per tensor", fake_fp8_per_tensor, fake_fp8),
    Scheme("fp8, weights alone", fake_fp8, None),
    Scheme("fp8, code embedding too", fake_fp8, fake_fp8, head=True),
    Scheme("int4", fake_int4, None),
    Scheme("bfloat16, to compare", to_bfloat16, to_bfloat16),
)


class FakeQuantTalker(ReferenceTalker):
    """The reference talker with reduced precision simulated in float32: slow, and saves nothing."""

    def __init__(self, folder: Path, scheme: Scheme) -> None:
        super().__init__(folder)
        self._inputs = scheme.inputs
        for name, weight in self._weights.items():
            if name.endswith("_proj.weight"):
                self._weights[name] = scheme.weight(weight)
        if scheme.head:
            flat = scheme.weight(self._weights[_CODE_EMBEDDING])
            self._embedding = flat.view(self._embedding.shape)
            self._head = self._embedding

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return super()._linear(self._inputs(x) if self._inputs else x, name)


class StoredTalker(FakeQuantTalker):
    """The reference talker with the weights that a quantised copy of a checkpoint stores."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, Scheme("as stored", lambda weight: weight, None))
        for file in weight_files(folder):
            stored = load_file(file)
            for name in [n for n in stored if n.endswith("_proj.weight_scale")]:
                weight = name.removesuffix("_scale")
                scale = stored[name].float()
                if (packed := stored.get(f"{weight}_packed")) is not None:
                    self._weights[weight] = unpack(packed, scale)
                else:
                    self._weights[weight] = stored[weight].float() * scale
                    # inputs then have as many bits, and a scale per token
                    is_whole = stored[weight].dtype == torch.int8
                    self._inputs = fake_int8 if is_whole else fake_fp8


def unpack(packed: Tensor, scale: Tensor) -> Tensor:
    """Unpack the result of ``talker.pack.pack`` into ``[out, in]`` floats."""
    shifts = torch.arange(0, 32, BITS)
    codes = (packed.to(torch.int64)[..., None] >> shifts & (1 << BITS) - 1) - (1 << BITS - 1)
    groups = codes.view(*scale.shape, GROUP) * scale[..., None].float()
    return groups.flatten(-2)


@dataclass(frozen=True)
class Spoken:
    """One sentence: its prompt and the rows drawn in float32."""

    ids: tuple[int, ...]
    rows: Codes


@dataclass(frozen=True)
class Figure:
    """``changed``: the share of best codes that differ; KL per code, mean and 99th percentile."""

    scheme: str
    codes: int
    changed: float
    kl_mean: float
    kl_p99: float


@failing("benchmarks.quantisation", CheckpointError)
def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print a Markdown report, and write ``--json`` if asked."""
    parser = argparse.ArgumentParser(prog="benchmarks.quantisation", description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("embedded/checkpoint"))
    parser.add_argument("--sentences", type=bounded(int, 1, len(SENTENCES)), default=len(SENTENCES))
    parser.add_argument("--quantised", type=Path, help="a copy of the model in few bits")
    parser.add_argument("--json", type=output_file)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    spoken = speak(options.model, SENTENCES[: options.sentences])
    talkers: dict[str, ReferenceTalker] = {}
    if options.quantised:
        talkers[f"stored in {options.quantised.name}"] = StoredTalker(options.quantised)
    talkers |= {scheme.name: FakeQuantTalker(options.model, scheme) for scheme in SCHEMES}
    figures = measure(options.model, spoken, talkers)
    facts = environment() | {"model": str(options.model), "rows": str(_rows(spoken))}
    print_facts(facts)
    print(table(figures))
    write_json(options.json, {"environment": facts, "figures": [asdict(one) for one in figures]})


def speak(folder: Path, sentences: Sequence[str]) -> list[Spoken]:
    """Speak the sentences with the reference talker, each with its own seed."""
    checkpoint = open_checkpoint(str(folder))
    prompts = checkpoint.prompt_builder(4096)
    front_end = choose_front_end(checkpoint.text_frontend, FRONT_ENDS)
    talker = ReferenceTalker(folder)
    spoken = []
    for seed, sentence in enumerate(sentences):
        ids = prompts.build(front_end(sentence).text if front_end else sentence).ids
        spoken.append(Spoken(ids, talker.speak(ids, _MOST_ROWS, Chance(seed)).rows))
    return spoken


def measure(
    folder: Path, spoken: Sequence[Spoken], talkers: Mapping[str, ReferenceTalker]
) -> list[Figure]:
    """Compare every talker with float32 on the same rows."""
    exact = [odds(ReferenceTalker(folder), one) for one in spoken]
    figures = []
    for name, talker in talkers.items():
        changed = []
        distances = []
        for one, wanted in zip(spoken, exact, strict=True):
            got = odds(talker, one)
            changed.append(got.argmax(-1) != wanted.argmax(-1))
            distances.append((wanted.exp() * (wanted - got)).sum(-1))
        kl = torch.cat(distances).numpy()
        differs = torch.cat(changed)
        share = float(differs.float().mean())
        p99 = float(np.quantile(kl, 0.99))
        figures.append(Figure(name, len(kl), share, float(kl.mean()), p99))
    return figures


@torch.inference_mode()
def odds(talker: ReferenceTalker, spoken: Spoken) -> Tensor:
    """Return the log-odds ``[n, codebook_size]`` of each real code of the rows."""
    logits = talker.logits(spoken.ids, spoken.rows)
    real = logits.shape[-1] - 2
    is_code = torch.from_numpy(spoken.rows < real)
    return logits[..., :real][is_code].log_softmax(-1)


def table(figures: Sequence[Figure]) -> str:
    """Format the results in Markdown."""
    head = ["scheme", "codes", "best code changed", "KL mean", "KL p99"]
    rows = [
        [f.scheme, f.codes, f"{100 * f.changed:.2f} %", f"{f.kl_mean:.2g}", f"{f.kl_p99:.2g}"]
        for f in figures
    ]
    return markdown_table(head, rows)


def _rows(spoken: Sequence[Spoken]) -> int:
    return sum(len(one.rows) for one in spoken)


if __name__ == "__main__":
    main()
