"""Checkpoints for the gateway: shape, defaults, tokenizer file."""

from __future__ import annotations

import errno
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

from talker.alignment import Alignment, read_alignment
from talker.families import find_family
from talker.families.family import Family, Licence, SamplingDefaults
from talker.prompts import PromptBuilder, PromptSource
from talker.row_ceiling import RowCeiling
from talker.shape import CheckpointError, TalkerShape
from talker.weights import check_weights
from text.front_end import FrontEnd, TextFrontEnd
from text.turns import SentencePauses

#: A model card, of which the licence is read.
CARD = "README.md"
#: Files that a talker needs of a repository on the hub; code files are never fetched.
_HUB_FILES = ("*.json", "*.safetensors", "merges.txt", CARD)
#: Errors of a download that are this machine's.
_DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES})
#: The range of ``default_speed``, within which stretched speech sounds natural.
_DEFAULT_SPEEDS = (0.5, 2.0)
#: Lower temperatures turn logits into infinities; 0 itself means greedy.
MIN_TEMPERATURE = 0.01
#: The licence in the front matter of a model card, as the hub defines it.
_CARD_LICENCE = re.compile(r"---\n(?:(?!---).*\n)*?license: *([\w.-]+) *\n")
#: The frame table links each row to that many before it, at four bytes each.
MAX_RAS_WINDOW = 64
T = TypeVar("T")
D = TypeVar("D")


@dataclass(frozen=True, slots=True)
class Quantisation:
    """Quantisation of a checkpoint's weights. ``method`` is vLLM's name ("fp8",
    "compressed-tensors"). ``is_packed``: several weights share a machine word (4 bits), for which
    only some devices have kernels. ``has_matrix_scales``: FP8 with one scale per matrix, not per
    block.
    """

    method: str
    is_packed: bool
    has_matrix_scales: bool


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checked checkpoint in a local folder."""

    #: Its folder or hub id as the operator gave it.
    name: str
    folder: Path
    family: Family
    #: Sizes of the model.
    shape: TalkerShape
    #: Sampling parameters of requests that do not set them.
    defaults: SamplingDefaults
    #: Its terms, which are logged at the start.
    licence: Licence
    #: The heads that attend to the text being spoken.
    alignment: Alignment = field(default_factory=Alignment)
    #: Name of the front end that normalises its text.
    text_frontend: str | None = None
    #: Whether it was trained on prompts with earlier turns before the text.
    has_continuity: bool = False
    #: Maximum positions of these prompts, if there is one.
    continuation_positions: int | None = None
    #: The longest text that it was trained to speak at once; None if only the maximum number of
    #: frames limits it.
    segment_chars: int | None = None
    #: Silence between its utterances.
    pauses: SentencePauses = field(default_factory=SentencePauses)
    #: The factor of its own speed at which it is played by default.
    default_speed: float = 1.0
    #: Maximum rows of an utterance by its text.
    row_ceiling: RowCeiling = Family.row_ceiling
    #: Settings from generation_config.json for the family's sampler.
    sampler_rules: Mapping[str, Any] = field(default_factory=dict)
    #: None for floats.
    quantisation: Quantisation | None = None
    #: The values of generation_config.json that are ignored.
    warnings: tuple[str, ...] = ()

    @property
    def tokenizer_file(self) -> Path:
        """The tokenizer, in the format that the family's builder reads."""
        return self.folder / self.family.tokenizer_files[0]

    def prompt_builder(
        self, max_positions: int, front_end: TextFrontEnd | None = None
    ) -> PromptBuilder:
        """Make its prompt builder. Raises CheckpointError."""
        return self.family.builder(
            PromptSource(self.tokenizer_file, self.shape, max_positions, front_end)
        )


def open_checkpoint(model: str, revision: str | None = None) -> Checkpoint:
    """Resolve a local folder or a hub id, and check it. Blocks; may download.

    Raises CheckpointError before anything expensive is started.
    """
    folder = resolve_folder(model, revision)
    config = _read_json(folder / "config.json")
    with _naming(folder / "config.json"):
        family = find_family(config)
        shape = family.read_shape(config)
        quantisation = read_quantisation(config, family)
    check_weights(folder, family, shape, is_quantised=quantisation is not None)
    for name in family.tokenizer_files:
        if not (folder / name).is_file():
            raise CheckpointError(f"{folder} has no {name}")
    file = folder / "generation_config.json"
    generation = _read_json(file) if os.path.lexists(file) else {}
    with _naming(file):
        defaults, muted = read_defaults(generation, family, shape)
        rules = family.sampler_rules(generation, shape)
        if defaults.ras_longest:
            rules["look_back"] = defaults.ras_longest
        alignment = read_alignment(generation, folder, shape)
        refused = () if alignment.refusal is None else (alignment.refusal,)
        return Checkpoint(
            name=model,
            folder=folder,
            family=family,
            shape=shape,
            defaults=defaults,
            licence=read_licence(folder, family),
            alignment=alignment,
            text_frontend=_own(generation, "text_frontend", str, "a name", None),
            has_continuity=_own(
                generation, "continuation", bool, "true or false", family.has_continuity
            ),
            continuation_positions=read_count(generation, "continuation_positions"),
            segment_chars=read_count(generation, "segment_chars") or family.segment_chars,
            pauses=SentencePauses(
                (read_count(generation, "sentence_pause_ms") or 0) / 1000,
                (read_count(generation, "paragraph_pause_ms") or 0) / 1000,
            ),
            default_speed=read_default_speed(generation),
            row_ceiling=read_row_ceiling(generation, family),
            sampler_rules=rules,
            quantisation=quantisation,
            warnings=(*(f"{file}: {text}" for text in muted), *refused),
        )


def read_licence(folder: Path, family: Family) -> Licence:
    """Return the licence from the folder's own model card, since other makers may have published
    the checkpoint. Without one, return the terms of the family's published weights.
    """
    try:
        named = _CARD_LICENCE.match((folder / CARD).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return family.licence
    return Licence(named[1]) if named and named[1] != "other" else family.licence


def read_quantisation(config: Mapping[str, Any], family: Family) -> Quantisation | None:
    """Read the quantisation from config.json; None for floats. Raises CheckpointError."""
    settings = config.get("quantization_config")
    if settings is None:
        return None
    method = settings.get("quant_method") if isinstance(settings, Mapping) else None
    if not isinstance(method, str):
        raise CheckpointError(f"quantization_config has no quant_method: {settings!r}")
    if not family.loads_quantised:
        raise CheckpointError(f"{family.title}: checkpoints quantised by {method} are not served")
    return Quantisation(
        method,
        is_packed=settings.get("format") == "pack-quantized" or method in ("awq", "gptq"),
        has_matrix_scales=method == "fp8" and settings.get("weight_block_size") is None,
    )


def resolve_folder(model: str, revision: str | None = None) -> Path:
    """Return a folder with the checkpoint's files: ``model`` itself, or a snapshot from the hub.

    Blocks; may download. Raises CheckpointError.
    """
    folder = local_folder(model)
    if folder is not None:
        return folder
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=list(_HUB_FILES)))
    except Exception as error:
        # Any exception means that there is no model. If a connection breaks, the hub's package
        # raises exceptions of the HTTP package that it happens to use.
        raise CheckpointError(f"cannot get {model} from the hub: {_hub_reason(error)}") from error


def _hub_reason(error: BaseException) -> str:
    """Why there is no snapshot, for operators: the first known reason among the error's causes."""
    from huggingface_hub import errors

    if os.environ.get("HF_HUB_OFFLINE"):
        return "it was not downloaded before, and HF_HUB_OFFLINE is set"
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, errors.GatedRepoError):
            return "it is gated: accept its terms on its page there, and set HF_TOKEN to your token"
        if isinstance(cause, errors.RepositoryNotFoundError):
            return (
                "there is no such model, or it is private and HF_TOKEN is not set to a right token"
            )
        if isinstance(cause, errors.HfHubHTTPError):
            status = cause.response.status_code
            is_refused = status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
            return f"it answers with status {status}" + (": check HF_TOKEN" if is_refused else "")
        if isinstance(cause, OSError) and cause.errno in _DISK_ERRORS:
            return f"the files cannot be written: {cause.strerror}"
        cause = cause.__cause__ or cause.__context__
    return "it cannot be reached (network, proxy, HF_ENDPOINT)"


def local_folder(model: str) -> Path | None:
    """Return the real folder that ``model`` names, symbolic links resolved; None for a hub id.

    Raises CheckpointError if it is neither.
    """
    path = Path(os.path.expanduser(model))  # which returns an unknown "~name" as it is
    if model and os.path.isdir(path):  # unlike is_dir it takes names too long for the system
        return path.resolve()
    if path.is_absolute() or model.startswith((".", "~")) or model.count("/") != 1:
        raise CheckpointError(f"there is no folder {model}")
    return None


def choose_front_end(name: str | None, known: Mapping[str, FrontEnd]) -> FrontEnd | None:
    """Return the front end that a checkpoint names. Raises CheckpointError if it is not known."""
    if name is not None and name not in known:
        raise CheckpointError(f"text_frontend: {name!r} is not known here; known: {sorted(known)}")
    return None if name is None else known[name]


def read_defaults(
    generation: Mapping[str, Any], family: Family, shape: TalkerShape
) -> tuple[SamplingDefaults, list[str]]:
    """Return the family's defaults, updated from generation_config.json, and warnings.

    Talkers repeat themselves or fall silent without sampling, and files written for text models
    have ``do_sample: false``, a temperature of nearly 0 or a ``top_k`` of 1. Such values are
    ignored. A client may still ask for greedy speech. A ``top_k`` of 0 or -1 means no limit. Raises
    CheckpointError.
    """
    published = family.defaults
    warnings = list[str]()
    given = {
        name: _number(generation, name, fallback)
        for name, fallback in (
            ("temperature", published.temperature),
            ("top_p", published.top_p),
            ("top_k", published.top_k),
        )
    }
    if not generation.get("do_sample", True):
        muted = dict.fromkeys(given, "do_sample: false")
    else:
        muted = {}
        if given["temperature"] < MIN_TEMPERATURE and given["temperature"] >= 0:
            muted["temperature"] = f"temperature: {given['temperature']}"
        if given["top_k"] == 1 != published.top_k:
            muted["top_k"] = "top_k: 1"
    for name in muted:
        given[name] = getattr(published, name)
    for reason in dict.fromkeys(muted.values()):
        kept = ", ".join(f"{name} {given[name]:g}" for name in muted if muted[name] == reason)
        warnings.append(f"{reason} is not followed, since it would mute the sampling: {kept}")
    top_k = int(given["top_k"])
    window, repeats, longest = read_repetition(generation, published)
    defaults = SamplingDefaults(
        temperature=given["temperature"],
        top_p=given["top_p"],
        top_k=shape.codebook_size if top_k in (0, -1) else top_k,
        max_frames=int(_number(generation, "max_new_tokens", published.max_frames)),
        ras_win_len=window,
        ras_max_repeat=repeats,
        ras_longest=longest,
    )
    for name, value, is_sane, allowed in (
        ("temperature", defaults.temperature, 0 <= defaults.temperature <= 2, "from 0 to 2"),
        ("top_p", defaults.top_p, 0 < defaults.top_p <= 1, "above 0 and at most 1"),
        ("top_k", defaults.top_k, defaults.top_k > 0, "from 1 on, or 0 or -1 for no limit"),
        (
            "max_new_tokens", defaults.max_frames, defaults.max_frames > shape.num_codebooks,
            f"above {shape.num_codebooks}",
        ),
    ):  # fmt: skip
        if not is_sane:
            raise CheckpointError(f"{name} must be {allowed}, not {value!r}")
    return defaults, warnings


def read_repetition(
    generation: Mapping[str, Any], published: SamplingDefaults
) -> tuple[int, int, int]:
    """Return the family's repetition-aware sampling, updated from ``ras_win_len`` and
    ``ras_win_max_num_repeat`` of generation_config.json, and the longest window allowed. A window
    of 0 turns it off, as null does upstream. For a family without it nothing is read. Raises
    CheckpointError.
    """
    if not published.ras_longest:
        return 0, published.ras_max_repeat, 0
    window = generation.get("ras_win_len", published.ras_win_len)
    window = 0 if window is None else window
    repeats = generation.get("ras_win_max_num_repeat", published.ras_max_repeat)
    for name, value in (("ras_win_len", window), ("ras_win_max_num_repeat", repeats)):
        if type(value) is not int or value > MAX_RAS_WINDOW:
            raise CheckpointError(f"{name} must be a number up to {MAX_RAS_WINDOW}, not {value!r}")
    if window > 0 and repeats < 1:
        raise CheckpointError(f"ras_win_max_num_repeat must be at least 1, not {repeats!r}")
    return max(0, window), max(1, repeats), max(published.ras_longest, window)


def read_count(generation: Mapping[str, Any], name: str) -> int | None:
    """Return a limit from generation_config.json; None if it is not set. ``segment_chars``: the
    longest text that the model was trained to speak at once. ``continuation_positions``: the
    longest prompt, in positions, with which it was trained to continue earlier turns.
    ``ceiling_rows``: see ``read_row_ceiling``. ``sentence_pause_ms`` and ``paragraph_pause_ms``:
    silence between its utterances. Raises CheckpointError.
    """
    value = generation.get(name)
    if value is not None and (type(value) is not int or value < 1):
        raise CheckpointError(f"{name} must be a number from 1 on, not {value!r}")
    return value


def read_default_speed(generation: Mapping[str, Any]) -> float:
    """Return ``default_speed`` of generation_config.json: the factor by which the speech is played
    faster than the codes say. Raises CheckpointError.
    """
    speed = _number(generation, "default_speed", 1.0)
    slowest, fastest = _DEFAULT_SPEEDS
    if not slowest <= speed <= fastest:
        raise CheckpointError(f"default_speed must be from {slowest} to {fastest}, not {speed!r}")
    return speed


def read_row_ceiling(generation: Mapping[str, Any], family: Family) -> RowCeiling:
    """Return the family's ceiling of an utterance's rows, updated from ``ceiling_rows`` and
    ``ceiling_rows_per_char`` of generation_config.json. Raises CheckpointError.
    """
    published = family.row_ceiling
    per_char = _number(generation, "ceiling_rows_per_char", published.per_char)
    if per_char < 0:
        raise CheckpointError(f"ceiling_rows_per_char must not be negative, but is {per_char!r}")
    constant = read_count(generation, "ceiling_rows") or published.constant
    return replace(published, constant=constant, per_char=per_char)


@contextmanager
def _naming(file: Path) -> Iterator[None]:
    """Put the name of ``file`` before the text of a CheckpointError."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{file}: {error}") from None


def _own(generation: Mapping[str, Any], name: str, kind: type[T], words: str, default: D) -> T | D:
    """Return a value of generation_config.json, else the default. Raises CheckpointError."""
    value: T | D = generation.get(name, default)
    if value is not default and not isinstance(value, kind):
        raise CheckpointError(f"{name} must be {words}, not {value!r}")
    return value


def _number(section: Mapping[str, Any], name: str, fallback: float) -> float:
    value: float | None = section.get(name)
    if value is None:
        return fallback
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not abs(value) <= sys.float_info.max:
        raise CheckpointError(f"{name} must be a number, not {value!r}")
    return value


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # with line and column
        raise CheckpointError(f"{file}: not JSON: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{file}: not a JSON object")
    return content
