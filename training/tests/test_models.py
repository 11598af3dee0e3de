"""Training: networks compared with transformers, resumed runs, and exported checkpoints."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soxr
import torch
from safetensors.torch import load_file
from torch import Tensor

from codec.families.higgs.checkpoint import open_higgs
from talker.families.higgs_v3 import HiggsV3
from talker.prompts import PromptSource
from tests.embedded.golden import CHECKPOINT
from text.english.normaliser import normalise
from text.english.sounds import sounds
from training import adversary, decoder_training, encoder_training, export
from training.adversary import Adversary
from training.codec_training import parts
from training.decoder_training import Example, decode, decoder_error, train_decoder
from training.encoder_training import Heard, encoder_error, equalised, train_encoder
from training.pitch import HOP, PITCH_CODES
from training.progress import Progress
from training.quantise import COMPONENTS, LATENT, PITCH_BOOK
from training.scripts import Script, Utterance, sounded, write
from training.spectra import spectra
from training.talker import VOCABULARY, Shape, TalkerNet
from training.talker_training import collated, losses
from training.tokenizer_model import new_model, resample
from training.warm import quantiser_of


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    torch.set_num_threads(1)


def small() -> TalkerNet:
    torch.manual_seed(0)
    net = TalkerNet(Shape(hidden=32, layers=2, heads=2, kv_heads=1, head=16, ffn=48, guided=(0, 1)))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return net


def test_backbone_equals_qwen3() -> None:
    from transformers import Qwen3Config, Qwen3Model

    net = small()
    s = net.shape
    theirs = Qwen3Model(
        Qwen3Config(
            hidden_size=s.hidden, num_hidden_layers=s.layers, num_attention_heads=s.heads,
            num_key_value_heads=s.kv_heads, head_dim=s.head, intermediate_size=s.ffn,
            vocab_size=64, rms_norm_eps=1e-6, attn_implementation="eager",
            rope_parameters={"rope_type": "default", "rope_theta": s.theta},
        )
    ).eval()  # fmt: skip
    found = theirs.load_state_dict(
        {k: v for k, v in net.state_dict().items() if k.startswith(("layers.", "norm."))},
        strict=False,
    )
    assert found.missing_keys == ["embed_tokens.weight"]
    assert not found.unexpected_keys
    x = torch.randn(2, 30, s.hidden)
    with torch.no_grad():
        ours, seen = net(x, guide=True)
        assert torch.allclose(ours, theirs(inputs_embeds=x).last_hidden_state, atol=1e-5)
    assert len(seen) == 2
    assert seen[0].shape == (2, 30, 30)


def script(seed: int) -> Script:
    random = np.random.default_rng(seed)
    said = Utterance(
        "go on.", random.integers(0, 1024, (9, 8)), np.linspace(0, 6, 9, dtype=np.float32)
    )
    return write([said], reference=None, transcript=False, random=random)


def test_learning_lowers_losses_and_padding_has_no_targets() -> None:
    net, batch = small(), [script(0), script(1)]
    before, guide_before, count = losses(net, batch)
    assert (
        int(count) == 2 * 10 + 2 * 2
    )  # nine codes and an EOC; the last codebook ends two rows later
    ids, _rows, is_row, targets, look = collated([*batch, write_longer()])
    assert ids.shape[1] > collated(batch)[0].shape[1]
    assert not is_row[0, -5:].any()
    assert (targets[0, -5:] < 0).all()
    assert (look[0, -5:] < 0).all()
    optimiser = torch.optim.AdamW(net.parameters(), 5e-3)
    for _ in range(25):
        books, guide, _ = losses(net, batch)
        (books.sum() + guide).backward()
        optimiser.step()
        optimiser.zero_grad()
    after, guide_after, _ = losses(net, batch)
    assert (after < before - 0.3).all()
    assert guide_after < guide_before


def write_longer() -> Script:
    random = np.random.default_rng(2)
    said = Utterance("go on and on.", random.integers(0, 1024, (30, 8)), np.zeros(30, np.float32))
    return write([said], reference=None, transcript=False, random=random)


def _trained(folder: Path, until: tuple[int, ...]) -> torch.Tensor:
    for steps in until:
        torch.manual_seed(0)
        module = torch.nn.Linear(4, 4)
        adam = torch.optim.AdamW(module.parameters(), 1e-2)
        progress = Progress("line", folder, until[-1], every=steps)
        progress.restore(module, adam)
        for step in progress:
            module(torch.full((1, 4), float(step))).pow(2).sum().backward()
            adam.step()
            adam.zero_grad()
            if progress.due:
                progress.keep(module, adam)
            if step + 1 == steps:
                break
    return module.weight.detach().clone()


def test_resumed_run_equals_uninterrupted_run(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert torch.equal(_trained(tmp_path / "a", (12,)), _trained(tmp_path / "b", (4, 12)))


def test_progress_stops_run_with_nan_loss(tmp_path: Path) -> None:
    with pytest.raises(ArithmeticError, match="loss is nan at step 0"):
        Progress("x", tmp_path, 3).note(loss=float("nan"))


def test_progress_stops_run_with_exploding_loss(tmp_path: Path) -> None:
    progress = Progress("x", tmp_path, 3)
    for loss in (2.0, 1.0, 6.0, 0.5):
        progress.note(loss=loss)
    with pytest.raises(ArithmeticError, match="loss is 60 at step 0, after 2"):
        progress.note(loss=60.0)


def test_codec_training_improves_encoder_and_decoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a few steps on one sound, the errors of both are smaller."""
    for module in (decoder_training, encoder_training):
        monkeypatch.setattr(module, "_TESTED", 1)
    torch.manual_seed(0)
    model = new_model(decoder_hidden=32, encoder_hidden=4)
    random = np.random.default_rng(0)
    latents = torch.from_numpy(random.standard_normal((24, LATENT))).half()
    sound = torch.from_numpy(random.standard_normal(24 * HOP) * 0.05).half()
    table = quantiser_of(CHECKPOINT)
    pitch = torch.from_numpy(random.integers(1, PITCH_CODES, 24))
    said = Example(latents, sound)
    heard = Heard(sound, pitch)

    def errors() -> tuple[float, float]:
        found = decoder_error(model, [said])
        return found["spectral"] + found["mel"], sum(encoder_error(model, [heard], table))

    before = errors()
    small: dict[str, Any] = {"size": 2, "frames": 8}
    train_decoder(model, [said] * 3, Progress("decoder", tmp_path, 30), **small)
    train_encoder(model, [heard] * 3, table, Progress("encoder", tmp_path, 12), **small)
    after = errors()
    assert after[0] < before[0] - 0.05
    assert after[1] < before[1]
    states = {f"{n}.{kind}.safetensors" for n in parts(model) for kind in ("state", "steady")}
    assert {f.name for f in tmp_path.iterdir()} == states


def test_equalised_changes_spectra_smoothly_and_keeps_phases() -> None:
    random = np.random.default_rng(0)
    sound = torch.from_numpy(random.standard_normal(20 * HOP) * 0.1).float()
    made = equalised(sound, random)
    gain = torch.fft.rfft(made)[1:-1] / torch.fft.rfft(sound)[1:-1]
    assert gain.imag.abs().max() < 1e-3
    levels = gain.real.log()
    assert levels.std() > 0.1
    assert levels.diff().abs().max() < 0.02
    assert equalised(sound * 100, random).abs().max() <= 1


def test_encoder_batch_has_latents_of_equalised_samples() -> None:
    table, random = quantiser_of(CHECKPOINT), np.random.default_rng(0)
    sound = torch.from_numpy(random.standard_normal(24 * HOP) * 0.05).half()
    heard = Heard(sound, torch.full((24,), 7))
    samples, latents = encoder_training._batch([heard], table, random, size=4, frames=24)
    unchanged = table.components(spectra(sound.float()))[1:-1]
    for piece, wanted in zip(samples, latents, strict=True):
        found, told = table.components(spectra(piece))[1:-1], wanted[1:-1, :COMPONENTS]
        assert (found - told).pow(2).mean() < 1e-3  # the hiss
        assert (found - unchanged).pow(2).mean() > 5e-3
        assert torch.equal(
            wanted[:, COMPONENTS:], table.books[PITCH_BOOK, 7, COMPONENTS:].expand(24, -1)
        )


def test_encoder_loss_counts_bad_frames_by_logarithm() -> None:
    """So a frame whose latents exploded cannot spoil the weights."""
    wrong = torch.tensor([0.01, 40_000.0], requires_grad=True)
    encoder_training._robust(wrong).sum().backward()
    assert wrong.grad is not None
    assert wrong.grad[0] == pytest.approx(1, abs=0.05)
    assert wrong.grad[1] < 1e-5


def test_trained_decoder_is_causal(tmp_path: Path) -> None:
    """Earlier samples are equal bit for bit, although the weights before training looked ahead."""
    torch.manual_seed(0)
    model, random = new_model(decoder_hidden=32, encoder_hidden=4), np.random.default_rng(0)
    ahead = {
        name: torch.randn_like(weight) * 0.05 if weight.dim() == 3 else weight
        for name, weight in model.acoustic_decoder.state_dict().items()
    }
    model.acoustic_decoder.load_state_dict(ahead)
    latents = torch.from_numpy(random.standard_normal((24, LATENT))).half()
    said = Example(latents, torch.from_numpy(random.standard_normal(24 * HOP) * 0.05).half())
    train_decoder(model, [said] * 17, Progress("decoder", tmp_path, 2), size=2, frames=8)
    plain, others = latents.float(), latents.float()
    others[13:] = torch.from_numpy(random.standard_normal((11, LATENT)))
    with torch.no_grad():
        a, b = (decode(model, x[None])[0] for x in (plain, others))
    assert torch.equal(a[: 13 * HOP], b[: 13 * HOP])
    assert not torch.equal(a[13 * HOP : 14 * HOP], b[13 * HOP : 14 * HOP])


def test_pieces_have_exact_latents_of_same_frames() -> None:
    """Where latents are known before they were quantised; elsewhere, those of the codes."""
    frames = torch.arange(24).half()[:, None].expand(-1, LATENT)
    known = Example(frames, torch.zeros(24 * HOP).half(), exact=frames + 100)
    random = np.random.default_rng(0)
    for pool, apart in (([known], 100), ([replace(known, exact=None)], 0)):
        latents, _, _, exact, _ = decoder_training.batch(pool, random, 8, 5)
        assert torch.equal(exact, latents + apart)
        assert len(set(latents[:, 0, 0].tolist())) > 1, "pieces from several places"


def test_distances_are_measured_from_speech_of_exact_latents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The critics, on the other hand, are shown what the codes represent."""
    monkeypatch.setattr(adversary, "ALONE", 1)
    torch.manual_seed(0)
    model, table = new_model(decoder_hidden=32, encoder_hidden=4), quantiser_of(CHECKPOINT)
    said, judged = list[Tensor](), list[Tensor]()

    def before(latents: Tensor) -> Tensor:
        said.append(latents)
        return torch.zeros(len(latents), latents.shape[1] * HOP)

    critics = Adversary(table, model.device, before)
    teach = critics.losses

    def taught(made: Tensor, wanted: Tensor, latents: Tensor, slope: float) -> dict[str, Tensor]:
        judged.append(latents)
        return teach(made, wanted, latents, slope)

    monkeypatch.setattr(critics, "losses", taught)
    sound = 0.05 * torch.randn(24 * HOP).half()
    one = Example(torch.zeros(24, LATENT).half(), sound, exact=torch.ones(24, LATENT).half())
    progress = Progress("adversary", tmp_path, 2)
    train_decoder(model, [one] * 17, progress, size=2, frames=8, adversary=critics)
    assert [float(x.mean()) for x in said] == [1, 1]
    assert [float(x.mean()) for x in judged] == [0, 0]


def test_resample_keeps_low_and_removes_high_frequencies() -> None:
    time = np.arange(24000) / 24000
    low, high = np.sin(2 * np.pi * 1000 * time), np.sin(2 * np.pi * 11000 * time)
    made = resample(torch.tensor(low)[None], 24000, 16000)[0].numpy()
    wanted = soxr.resample(low, 24000, 16000)
    assert len(made) == 16000
    assert np.abs(made - wanted)[200:-200].max() < 5e-3
    assert resample(torch.tensor(high)[None], 24000, 16000).abs()[0, 200:-200].max() < 0.02


def test_exported_tokenizer_builds_prompts(tmp_path: Path) -> None:
    codec = SimpleNamespace(config=SimpleNamespace(to_dict=dict))
    export.tokenizer().save(str(tmp_path / "tokenizer.json"))
    family = HiggsV3()
    shape = family.read_shape(export.config(small(), codec))
    builder = family.builder(PromptSource(tmp_path / "tokenizer.json", shape, 2048, sounds))
    text = "Hé, it\u2019s 2 <|audio|> words!"
    assert list(builder.build(text).ids[2:-1]) == [VOCABULARY[sign] for sign in sounds(text).text]


def test_sounded_utterance_matches_front_end() -> None:
    text, frames = "the two apples to eat.", 50
    place = np.linspace(0, len(text), frames, dtype=np.float32)
    codes = np.zeros((frames, 8), np.int64)
    made = sounded(Utterance(text, codes, place), np.random.default_rng(1))
    plain, said = normalise(text), sounds(text)
    assert made.text == said.text  # with this seed none is left in letters
    for before, after in zip(plain.spans, said.spans, strict=True):
        inside = (place > before.start) & (place < before.end)
        assert ((made.place[inside] > after.start) & (made.place[inside] < after.end)).all()
    utterance, seeds = Utterance(text, codes, place), range(40)
    others = {sounded(utterance, np.random.default_rng(seed)).text for seed in seeds}
    assert others > {said.text}


_WHOLE = """
import sys, torch
from pathlib import Path
from safetensors.torch import save_file
from training import export, tokenizer_model
from training.quantise import BOOKS, CODES, COMPONENTS, LATENT, Quantiser
from training.spectra import WIDTH
from training.talker import Shape, TalkerNet
torch.manual_seed(0)
books = torch.randn(BOOKS, CODES, LATENT)
table = Quantiser(torch.zeros(WIDTH), torch.eye(WIDTH)[:, :COMPONENTS], torch.ones(()), books)
model = tokenizer_model.new_model(32, 4)
tokenizer_model.set_books(model, table)
export.write(Path(sys.argv[1]), TalkerNet(Shape(layers=2)), model, table, {"temperature": 0.5}, {})
codes = torch.randint(0, 1024, (1, 8, 6))
with torch.inference_mode():
    model = model.bfloat16().float()
    samples = model.decode(codes).audio_values[0, 0].contiguous()
save_file({"codes": codes[0], "samples": samples}, sys.argv[1] + "/expected.safetensors")
"""


def test_exported_checkpoint_is_loaded_by_service(tmp_path: Path) -> None:
    """Its decoder makes the samples that the class made in training."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _WHOLE, str(tmp_path)],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]

    expected = load_file(tmp_path / "expected.safetensors")
    codes, wanted = expected["codes"].to(torch.int16).numpy(), expected["samples"].numpy()
    decoder = open_higgs(str(tmp_path)).load_decoder()
    assert decoder.spec.right_frames == 0, "the taps that look ahead are zeros, and found"
    made = decoder.decode([codes])[0]
    assert made.shape == wanted.shape
    assert np.abs(made - wanted).max() < 1e-4
    written = load_file(tmp_path / "model.safetensors")
    assert "body.layers.1.mlp.up_proj.weight" in written
    assert all(tensor.dtype != torch.float32 for tensor in written.values())
