"""The contract of a talker family: an object with all that differs between families.

A family is found from ``model_type`` in config.json (``talker.families.find_family``). Its object
imports neither torch nor vLLM, because the gateway reads checkpoints and builds prompts. The model
that runs inside vLLM is named by its import path. Frame table, runner adapters, pausing,
preemption, prefix cache and processes are shared and do not depend on the family.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from talker.prompts import PromptBuilder
from talker.row_ceiling import RowCeiling
from talker.shape import TalkerShape

#: Shapes of weights by name.
WeightShapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """Sampling parameters for requests that do not set them.

    ``ras_longest`` is the longest window of repetition-aware sampling that a client may ask for; 0
    if the family has no such sampling.
    """

    temperature: float = 1.0
    top_p: float = 0.95
    top_k: int = 50
    max_frames: int = 2048
    ras_win_len: int = 0
    ras_max_repeat: int = 1
    ras_longest: int = 0


@dataclass(frozen=True, slots=True)
class Licence:
    """Terms of the published weights. ``notice`` is shown to the operator who chooses the model;
    empty if there is nothing to observe beyond the licence's text.
    """

    name: str
    notice: str = ""


class Family(ABC):
    """One published format of one talker family."""

    #: ``model_type`` of config.json, by which the family is found.
    model_type: ClassVar[str]
    #: Its name for operators.
    title: ClassVar[str]
    #: A checkpoint's id on the hub, for error texts.
    example: ClassVar[str]
    #: The vLLM model, as ``module:class``.
    model_class: ClassVar[str]
    #: Names that ``architectures`` of config.json may have; a checkpoint with others is refused.
    architectures: ClassVar[tuple[str, ...]]
    #: Name prefixes of weights that the talker does not read.
    ignored: ClassVar[tuple[str, ...]] = ()
    #: The class that builds its prompts.
    builder: ClassVar[type[PromptBuilder]]
    #: Files of its tokenizer; the first is given to the builder.
    tokenizer_files: ClassVar[tuple[str, ...]] = ("tokenizer.json",)
    #: Terms of the published weights.
    licence: ClassVar[Licence]
    #: Sampling parameters if generation_config.json does not set them.
    defaults: ClassVar[SamplingDefaults] = SamplingDefaults()
    #: Whether quantised checkpoints of it can be loaded.
    loads_quantised: ClassVar[bool] = True
    #: Whether the model was trained to continue its earlier turns.
    has_continuity: ClassVar[bool] = False
    #: The longest text, in characters, that it speaks well in one generation; longer texts are
    #: spoken sentence by sentence. None: only ``max_frames`` limits it.
    segment_chars: ClassVar[int | None] = None
    #: Seconds of silence after which an utterance that has been audible is taken to be over; 0: it
    #: may pause for longer.
    end_silence_s: ClassVar[float] = 0.0
    #: Whether its sampler can leave out codes of a stream's first frames.
    masks_codes: ClassVar[bool] = False
    #: Rows for a second of audio, with the published codec.
    frames_per_s: ClassVar[float] = 25.0
    #: Maximum rows of an utterance by its text.
    row_ceiling: ClassVar[RowCeiling] = RowCeiling.of_slow_speech(frames_per_s)

    @property
    def architecture(self) -> str:
        """The model's name in vLLM's registry."""
        return "Talkwire" + self.model_class.rpartition(":")[2]

    @abstractmethod
    def read_shape(self, config: Mapping[str, Any]) -> TalkerShape:
        """Read the shape from a parsed config.json. Raises CheckpointError."""

    @abstractmethod
    def backbone_config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``model_type`` and arguments of transformers' config class for the backbone."""

    @abstractmethod
    def expected_weights(self, shape: TalkerShape) -> WeightShapes:
        """Return the shape of every weight that the talker needs, by its name in the checkpoint."""

    def num_states(self, shape: TalkerShape) -> int:
        """Numbers of the sampler's state after a row, as the frame table keeps them."""
        return 2

    def canonical_name(self, name: str) -> str | None:
        """Return the name in ``expected_weights`` of a checkpoint's weight, which may have several
        names; None if the talker does not read it.
        """
        return None if name.startswith(self.ignored) else name

    def sampler_rules(self, generation: Mapping[str, Any], shape: TalkerShape) -> dict[str, Any]:
        """Return settings of the model's sampler from generation_config.json, beside the shape.
        They are plain JSON, since they travel inside vLLM's settings. Raises CheckpointError.
        """
        return {}
