"""The config classes by which transformers and vLLM read a talker's config.json.

One for each family, made from the family's own reading of the file, so that a family needs none
of its own. They are attributes of this module, as pickling between vLLM's processes wants.
"""

from __future__ import annotations

from typing import Any, ClassVar

from transformers import CONFIG_MAPPING, PretrainedConfig

from talker.families import FAMILIES
from talker.families.family import Family
from talker.shape import TalkerShape


class TalkerConfig(PretrainedConfig):  # type: ignore[misc]  # untyped base
    """``config.json`` of a talker; ``published`` is the file as it is.

    ``shape`` is what the plugin works with; it raises CheckpointError where the file makes
    no sense. ``text_config`` is the backbone's config, of a class that vLLM knows.
    """

    family: ClassVar[Family]
    is_composition = True

    def __init__(self, **published: Any) -> None:
        # transformers also builds the class without arguments, to compare with the defaults
        self.published = {
            name: value.to_dict() if isinstance(value, PretrainedConfig) else value
            for name, value in published.items()
        }
        backbone = self.family.backbone_config(self.published)
        self.text_config: Any = CONFIG_MAPPING[backbone.pop("model_type")](**backbone)
        rest = {name: value for name, value in published.items() if name != "text_config"}
        super().__init__(**{**rest, "architectures": [self.family.architecture]})

    @property
    def shape(self) -> TalkerShape:
        """Codebooks, the stop id and the backbone's sizes."""
        # the stop id is overridden where only the tokenizer knows it
        return self.family.read_shape({**self.published, "eos_token_id": self.eos_token_id})

    def get_text_config(self, *_: Any, **__: Any) -> PretrainedConfig:
        """The backbone's config; vLLM sizes the KV cache by it."""
        return self.text_config


def _make_class(family: Family) -> type[TalkerConfig]:
    name = f"{type(family).__name__}Config_{family.model_type}"
    attributes = {
        "family": family,
        "model_type": family.model_type,
        "__module__": __name__,
        # transformers makes a dataclass of a config class that has none of its own
        "__init__": lambda self, **published: TalkerConfig.__init__(self, **published),
    }
    made: type[TalkerConfig] = type(name, (TalkerConfig,), attributes)
    globals()[name] = made
    return made


#: By ``model_type``.
CONFIG_CLASSES = {family.model_type: _make_class(family) for family in FAMILIES}
