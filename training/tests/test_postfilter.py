"""The learned postfilter: envelopes, their filter, and training with and without the critic."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from training import postfilter
from training.pitch import HOP, RATE
from training.postfilter import ENVELOPES, ORDER, Critic, Pair, Postfilter
from training.progress import Progress, restore_weights
from training.quantise import LATENT
from training.spectra import CEPSTRA, STEP, SUBFRAMES, WIDTH, curves

FRAMES = 40
#: A ripple of the spectrum with one period in 1,200 Hz is a cepstrum at this quefrency.
QUEFRENCY = RATE // 1200


def noise(seed: int = 0) -> torch.Tensor:
    """White noise."""
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(FRAMES * HOP)).float() * 0.1


def rippled(contrast: float) -> torch.Tensor:
    """The same noise, filtered exactly: its spectrum rises and falls by ``contrast`` nepers."""
    found = torch.fft.rfft(noise())
    at = torch.fft.rfftfreq(FRAMES * HOP, 1 / RATE)
    return torch.fft.irfft(found * (contrast * torch.cos(2 * torch.pi * at / 1200)).exp())


def test_envelopes_hold_ripple_at_its_quefrency() -> None:
    before, after = postfilter.envelopes(noise()), postfilter.envelopes(rippled(0.4))
    assert after.shape == (FRAMES * ENVELOPES, ORDER)
    change = (after - before)[10:-10].mean(0)
    # log magnitudes are c0 + 2 * sum of c[k] * cos(k * w)
    assert float(2 * change[QUEFRENCY]) == pytest.approx(0.4, abs=0.03)
    change[QUEFRENCY] = 0
    assert float(change.abs().max()) < 0.03


def test_filtered_equals_exact_filter() -> None:
    change = torch.zeros(FRAMES * ENVELOPES, ORDER)
    change[:, QUEFRENCY] = 0.2
    made, wanted = postfilter.filtered(noise(), change), rippled(0.4)
    inside = slice(HOP, -HOP)
    error = (made - wanted)[inside].square().mean() / wanted[inside].square().mean()
    assert float(error) < 1e-3
    plain = postfilter.filtered(noise(), torch.zeros_like(change))
    torch.testing.assert_close(plain, noise(), atol=1e-5, rtol=0)


def test_filtered_changes_only_the_frames_told() -> None:
    change = torch.zeros(FRAMES * ENVELOPES, ORDER)
    change[: FRAMES // 2 * ENVELOPES, 0] = 0.5
    made = postfilter.filtered(noise(), change)
    half = FRAMES // 2 * HOP
    torch.testing.assert_close(made[half + 512 :], noise()[half + 512 :], atol=1e-5, rtol=0)
    early = slice(512, half - 512)
    torch.testing.assert_close(made[early], noise()[early] * np.exp(0.5), atol=1e-4, rtol=1e-3)


def test_filtered_limits_change() -> None:
    change = torch.zeros(FRAMES * ENVELOPES, ORDER)
    change[:, 0] = 10.0
    made = postfilter.filtered(noise(), change)
    torch.testing.assert_close(made, noise() * np.exp(3.0), atol=1e-3, rtol=1e-3)


def test_coded_interpolates_in_time_and_frequency() -> None:
    spectra = torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(0))
    made = postfilter._coded(spectra)
    assert made.shape == (2, 5 * ENVELOPES, 64)
    hz = 700 * np.expm1(np.linspace(np.log1p(60 / 700), np.log1p(11_500 / 700), 64))
    fine = np.arange(60_001) * RATE / 120_000
    rows = (spectra[1].reshape(5 * SUBFRAMES, CEPSTRA) @ curves(120_000)).numpy()
    columns = np.stack([np.interp(hz, fine, row) for row in rows])
    # a spectrum of a code is that of 10 ms, an envelope is centred where its window begins
    times, wanted = (np.arange(5 * SUBFRAMES) + 0.5) * STEP, []
    for n in range(5 * ENVELOPES):
        at = n * HOP / ENVELOPES
        wanted.append([np.interp(at, times, columns[:, k]) for k in range(64)])
    np.testing.assert_allclose(made[1].numpy(), np.array(wanted), atol=1e-3)


def lively() -> Postfilter:
    """A postfilter that changes something."""
    torch.manual_seed(0)
    net = Postfilter().eval()
    torch.nn.init.normal_(net.last.weight, std=0.1)
    return net


def test_postfilter_is_causal() -> None:
    """A later frame changes nothing before it."""
    net, random = lively(), torch.Generator().manual_seed(0)
    latents = torch.randn(1, 20, LATENT, generator=random)
    own = torch.randn(1, 20 * ENVELOPES, ORDER, generator=random)
    before = net(latents, own)
    latents[:, 12], own[:, 12 * ENVELOPES :] = 5.0, 1.0
    after = net(latents, own)
    torch.testing.assert_close(after[:, : 12 * ENVELOPES], before[:, : 12 * ENVELOPES])
    assert not torch.allclose(after[:, 12 * ENVELOPES :], before[:, 12 * ENVELOPES :], atol=1e-2)


def test_untrained_postfilter_keeps_speech() -> None:
    made = Postfilter().eval().apply_to(noise(), torch.randn(FRAMES, LATENT))
    torch.testing.assert_close(made, noise(), atol=1e-5, rtol=0)


def test_postfilter_applies_its_own_changes() -> None:
    net, latents = lively(), torch.randn(FRAMES, LATENT)
    change = net(latents[None], postfilter.envelopes(noise())[None])[0].detach()
    wanted = postfilter.filtered(noise(), change)
    torch.testing.assert_close(net.apply_to(noise(), latents), wanted)
    assert not torch.allclose(wanted, noise(), atol=1e-2)


def taught(count: int = 100) -> list[Pair]:
    """Pairs in which one latent tells the height of a ripple that the decoder's speech lacks. No
    latent tells the sign of another ripple.
    """
    random, made = torch.Generator().manual_seed(0), []
    for _ in range(count):
        latents = torch.zeros(FRAMES, LATENT)
        latents[:, 0] = torch.randn(FRAMES, generator=random)
        own = torch.zeros(FRAMES * ENVELOPES, ORDER)
        known = latents[:, 0].repeat_interleave(ENVELOPES)
        teacher = own + 0.01 * torch.randn(own.shape, generator=random)
        teacher[:, 8] += 0.15 * known
        teacher[:, 20] += 0.2 * (torch.rand(len(own), generator=random) > 0.5) - 0.1
        spectra = torch.zeros(FRAMES, WIDTH)
        made.append(Pair(*(x.half() for x in (latents, spectra, own, teacher))))
    return made


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    for name, value in {"_LENGTH": 12, "_UNKNOWN": 2, "_UNSEEN": 2, "_BATCH": 4}.items():
        monkeypatch.setattr(postfilter, name, value)


@pytest.mark.usefixtures("_small")
def test_postfilter_learns_what_latents_tell(tmp_path: Path) -> None:
    known = taught()
    net = postfilter.train(known, Progress("postfilter", tmp_path, 150))
    before, after = (postfilter.distance(x, known[:2]) for x in (None, net))
    assert after < 0.75 * before
    latents, own = known[0].latents.float()[None], known[0].own.float()[None]
    change = net(latents, own)[0].detach()
    told = latents[0, :, 0].repeat_interleave(ENVELOPES)
    assert float(torch.corrcoef(torch.stack([change[:, 8], told]))[0, 1]) > 0.9
    loaded = postfilter.load(tmp_path)
    torch.testing.assert_close(loaded(latents, own), net(latents, own))


@pytest.mark.long
@pytest.mark.usefixtures("_small")
def test_critic_teaches_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the distance, what the critic sees brings envelopes closer to the teacher's. It tells
    the decoder's own ones from these.
    """
    known, compared = taught(), postfilter._distance
    monkeypatch.setattr(postfilter, "ALONE", 0)
    with monkeypatch.context() as blind:
        blind.setattr(postfilter, "_distance", lambda made, wanted: 0 * compared(made, wanted))
        net = postfilter.train(known, Progress("postfilter", tmp_path, 120))
    before, after = (postfilter.distance(x, known[:2]) for x in (None, net))
    assert after < 0.9 * before
    both = postfilter._networks()
    assert restore_weights("postfilter", tmp_path, both)
    right, wrong = (
        float(both["critic"](x.float()[None], torch.zeros(1, len(x), 64))[-1].detach().mean())
        for x in (known[0].teacher, known[0].own)
    )
    assert right > wrong + 0.2


def test_critic_sees_all_three_images() -> None:
    torch.manual_seed(0)
    critic = Critic()
    cepstra = torch.randn(1, 24, ORDER, requires_grad=True)
    coded = torch.randn(1, 24, 64, requires_grad=True)
    critic(cepstra, coded)[-1].sum().backward()
    assert cepstra.grad is not None
    assert coded.grad is not None
    assert bool((cepstra.grad.abs().amax((0, 1)) > 0).all())
    assert bool((coded.grad.abs().amax((0, 1)) > 0).all())


def test_load_requires_training(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="stage `postfilter` has kept no state"):
        postfilter.load(tmp_path)
