"""Qwen3-TTS at 12.5 frames a second, with its own speakers (``Qwen/Qwen3-TTS-12Hz-*-CustomVoice``),
with a voice that instructions describe (``Qwen/Qwen3-TTS-12Hz-1.7B-VoiceDesign``), or with that of
a clip (``Qwen/Qwen3-TTS-12Hz-*-Base``).

A slow AR with Qwen3's architecture draws the first code of a frame, and a code predictor the other
fifteen in the same step. There is no delay: a row is a frame. Each position of a prompt is the sum
of a text track and a codec track (see ``talker.families.qwen3_tts.prompts``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from talker.families.backbone import layer_weights, qwen3_config, read_backbone
from talker.families.family import Family, Licence, SamplingDefaults, WeightShapes
from talker.families.qwen3_tts.prompts import Qwen3TTSPromptBuilder
from talker.families.qwen3_tts.track_ids import Track, is_prompt_id
from talker.row_ceiling import RowCeiling
from talker.shape import (
    BackboneShape,
    CheckpointError,
    TalkerShape,
    positive_int,
    positive_number,
    section,
)
from text.languages import code_of_name

#: Prefix of the slow AR's names in the checkpoint.
BODY = "talker.model."
#: Prefix of the code predictor's names.
FAST = "talker.code_predictor."
_TALKER = "talker_config."
_PREDICTOR = "talker_config.code_predictor_config."
_TOKENIZER_TYPE = "qwen3_tts_tokenizer_12hz"
#: Kinds of checkpoints (``tts_model_type``).
_CUSTOM_VOICE, VOICE_DESIGN, BASE = _KINDS = ("custom_voice", "voice_design", "base")
#: Width of a speaker's vector, if config.json does not say.
_VECTOR_SIZE = 1024
#: ``tts_model_size`` of the model with speakers that was not trained to follow instructions; the
#: makers' code drops them.
_SMALL = "0b6"


@dataclass(frozen=True, slots=True)
class Speaker:
    """A speaker of a checkpoint: its id in the codec vocabulary, and that of its dialect of Chinese
    and its name, if it speaks one.
    """

    number: int
    dialect: int | None = None
    dialect_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen3TTSShape(TalkerShape):
    """The codec vocabulary has ``codebook_size`` codes and after them ``num_specials`` ids, of
    which ``codec`` names those in use. ``text`` are ids of the text vocabulary by name.
    """

    num_specials: int
    text_width: int
    predictor: BackboneShape
    codec: Mapping[str, int]
    text: Mapping[str, int]
    speakers: Mapping[str, Speaker]
    #: Ids of the codec vocabulary by ISO 639 code.
    languages: Mapping[str, int]
    #: Whether the voice is made from instructions; there are no speakers then.
    designs_voice: bool = False
    #: Whether the voice is a clip's; there are no speakers then either.
    clones: bool = False
    takes_instructions: bool = True

    def holds_prompt(self, ids: tuple[int, ...]) -> bool:
        """See TalkerShape."""
        codec_ids = range(self.codebook_size, self.codebook_size + self.num_specials)
        return all(is_prompt_id(i, self.backbone.vocab_size, codec_ids) for i in ids)

    @property
    def track(self) -> Track:
        """The ids that stand for one of the two tracks."""
        return Track(self.text["tts_pad"], self.codec["pad"], self.codec["bos"])


class Qwen3TTS(Family):
    """See Family."""

    model_type = "qwen3_tts"
    title = "Qwen3-TTS 12 Hz"
    example = "Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice"
    model_class = "talker.families.qwen3_tts.model:Qwen3TTSForConditionalGeneration"
    architectures = ("Qwen3TTSForConditionalGeneration",)
    builder = Qwen3TTSPromptBuilder
    tokenizer_files = ("vocab.json", "merges.txt", "tokenizer_config.json")
    licence = Licence("Apache-2.0")
    #: Those of the published generation_config.json but for the length.
    defaults = SamplingDefaults(temperature=0.9, top_p=1.0, top_k=50, max_frames=2048)
    segment_chars = 300
    frames_per_s = 12.5
    row_ceiling = RowCeiling.of_slow_speech(frames_per_s)
    # other servers' operators report room tone up to the maximum length after 0.3 % of the texts
    end_silence_s = 2.0
    masks_codes = True
    # text embeddings are computed from two matrices, and scales would have to follow
    loads_quantised = False

    def read_shape(self, config: Mapping[str, Any]) -> Qwen3TTSShape:
        """See Family."""
        kind, codec_type = config.get("tts_model_type"), config.get("tokenizer_type")
        if kind not in _KINDS:
            served = ", ".join(map(repr, _KINDS))
            raise CheckpointError(f"tts_model_type is {kind!r}; served are {served}")
        if codec_type != _TOKENIZER_TYPE:
            raise CheckpointError(
                f"tokenizer_type is {codec_type!r}; only {_TOKENIZER_TYPE!r} is served"
            )
        talker = section(config, "talker_config")
        part = section(talker, "code_predictor_config")
        body = _read_part({**talker, "vocab_size": talker.get("text_vocab_size")}, _TALKER)
        predictor = _read_part(part, _PREDICTOR)
        size = predictor.vocab_size
        codec_size = positive_int(talker, "vocab_size", _TALKER)
        books = positive_int(talker, "num_code_groups", _TALKER, 64)
        if positive_int(part, "num_code_groups", _PREDICTOR, 64) != books or books < 2:
            raise CheckpointError(f"num_code_groups of talker and predictor are not {books} and 2+")

        def special(values: Mapping[str, Any], name: str, prefix: str = _TALKER) -> int:
            number = positive_int(values, name, prefix)
            if not size <= number < codec_size:
                raise CheckpointError(
                    f"{prefix}{name} must be an id from {size} to {codec_size - 1}, not {number}"
                )
            return number

        def text_id(name: str) -> int:
            number = positive_int(config, name, "")
            if number >= body.vocab_size:
                raise CheckpointError(f"{name} {number} is not within {body.vocab_size} text ids")
            return number

        vector_size = 0
        if kind == BASE:
            speakers_part = section(config, "speaker_encoder_config")
            vector_size = positive_int(
                {"enc_dim": _VECTOR_SIZE, **speakers_part}, "enc_dim", "speaker_encoder_config."
            )
            if vector_size != body.hidden_size:
                raise CheckpointError(
                    f"speaker_encoder_config.enc_dim is {vector_size}, and the talker's "
                    f"hidden_size {body.hidden_size}: a vector must be as wide as a position"
                )
        languages = section(talker, "codec_language_id")
        dialects, known_speakers = dict[str, Any](), dict[str, Any]()
        if kind == _CUSTOM_VOICE:
            dialects = dict(section(talker, "spk_is_dialect"))
            known_speakers = dict(section(talker, "spk_id"))
            if not known_speakers:
                raise CheckpointError(f"{_TALKER}spk_id names no speaker")
        speakers = {}
        for name in known_speakers:
            dialect = dialects.get(name)
            speakers[name.lower()] = Speaker(
                special(known_speakers, name, f"{_TALKER}spk_id."),
                special(languages, dialect, f"{_TALKER}codec_language_id.") if dialect else None,
                dialect or None,
            )
        return Qwen3TTSShape(
            num_codebooks=books,
            codebook_size=size,
            codebook_rows=size,
            stop_id=text_id("im_end_token_id"),
            backbone=body,
            is_delayed=False,
            num_specials=codec_size - size,
            text_width=positive_int(talker, "text_hidden_size", _TALKER),
            predictor=predictor,
            codec={
                name: special(talker, f"codec_{name}_id")
                for name in ("pad", "bos", "eos_token", "think", "nothink", "think_bos",
                             "think_eos")
            },
            text={
                name: text_id(f"{name}_token_id")
                for name in ("im_start", "im_end", "tts_pad", "tts_bos", "tts_eos")
            },
            speakers=speakers,
            languages={
                code: special(languages, name, f"{_TALKER}codec_language_id.")
                for name in languages
                if (code := code_of_name(name)) is not None
            },
            vector_size=vector_size,
            designs_voice=kind == VOICE_DESIGN,
            clones=kind == BASE,
            takes_instructions=kind == VOICE_DESIGN
            or (kind == _CUSTOM_VOICE and config.get("tts_model_size") != _SMALL),
        )  # fmt: skip

    def backbone_config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return a plain Qwen3 config: the three positions of the published rotary embedding are
        always equal.
        """
        talker = config.get("talker_config")
        if not talker:
            return {"model_type": "qwen3"}
        body = _read_part({**talker, "vocab_size": talker.get("text_vocab_size")}, _TALKER)
        return qwen3_config(body, is_tied=False)

    def num_states(self, shape: TalkerShape) -> int:
        """See Family: frames, a bit for each first code, and the two parts of a text id."""
        return 1 + -(-shape.codebook_size // 16) + 2

    def expected_weights(self, shape: TalkerShape) -> WeightShapes:
        """See Family."""
        assert isinstance(shape, Qwen3TTSShape)
        body, fast = shape.backbone, shape.predictor
        width, text = body.hidden_size, shape.text_width
        codec = shape.codebook_size + shape.num_specials
        expected: WeightShapes = {
            f"{BODY}text_embedding.weight": (body.vocab_size, text),
            f"{BODY}codec_embedding.weight": (codec, width),
            f"{BODY}norm.weight": (width,),
            "talker.text_projection.linear_fc1.weight": (text, text),
            "talker.text_projection.linear_fc1.bias": (text,),
            "talker.text_projection.linear_fc2.weight": (width, text),
            "talker.text_projection.linear_fc2.bias": (width,),
            "talker.codec_head.weight": (codec, width),
            f"{FAST}model.norm.weight": (fast.hidden_size,),
            **layer_weights(BODY, body, qk_norms=True),
            **layer_weights(f"{FAST}model.", fast, qk_norms=True),
        }
        for book in range(shape.num_codebooks - 1):
            # the tables have the slow AR's width, since a frame's input is their sum
            expected[f"{FAST}model.codec_embedding.{book}.weight"] = (shape.codebook_size, width)
            expected[f"{FAST}lm_head.{book}.weight"] = (shape.codebook_size, fast.hidden_size)
        if fast.hidden_size != width:
            expected[f"{FAST}small_to_mtp_projection.weight"] = (fast.hidden_size, width)
            expected[f"{FAST}small_to_mtp_projection.bias"] = (fast.hidden_size,)
        return expected

    def canonical_name(self, name: str) -> str | None:
        """See Family."""
        return name if name.startswith("talker.") else None

    def sampler_rules(self, generation: Mapping[str, Any], shape: TalkerShape) -> dict[str, Any]:
        """See Family. The predictor's sampling is the checkpoint's, whatever a request's own."""
        top_k = generation.get("subtalker_top_k", 50)
        if type(top_k) is not int or top_k < 1:
            raise CheckpointError(f"subtalker_top_k must be a number from 1 on, not {top_k!r}")
        top_p = positive_number(generation, "subtalker_top_p", 1.0, "")
        if top_p > 1:
            raise CheckpointError(f"subtalker_top_p must be 1 at most, not {top_p!r}")
        return {
            "penalty": positive_number(generation, "repetition_penalty", 1.05, ""),
            "sub_temperature": positive_number(generation, "subtalker_temperature", 0.9, ""),
            "sub_top_k": min(top_k, shape.codebook_size),
            "sub_top_p": top_p,
        }


def _read_part(part: Mapping[str, Any], prefix: str) -> BackboneShape:
    """Read one of the two transformers."""
    limit = positive_int(part, "max_position_embeddings", prefix)
    return read_backbone(part, prefix, max_positions=limit, theta=1e6, norm_eps=1e-6)
