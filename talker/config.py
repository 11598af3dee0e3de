"""The config classes by which transformers and vLLM read a talker's config.json.

There is one class for each family, made from the family's own parser, so that families need none of
their own. The classes are attributes of this module, so that they can be pickled between vLLM's
processes.
"""

from __future__ import annotations

from typing import Any, ClassVar

from transformers import CONFIG_MAPPING, PretrainedConfig

from talker.families import FAMILIES
from talker.families.family import Family
from talker.shape import TalkerShape


class TalkerConfig(PretrainedConfig):  # type: ignore[misc]  # untyped base
    """``config.json`` of a talker; ``published`` is the file as it is.

    ``shape`` is used by the plugin, and raises CheckpointError for an invalid file. ``text_config``
    is the backbone's config, of a class that vLLM knows.
    """

    family: ClassVar[Family]
    is_composition = True

    def __init__(self, **published: Any) -> None:
        # transformers also creates the class without arguments, to compare with the defaults
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
        # eos_token_id is overridden if only the tokenizer knows the stop id
        return self.family.read_shape({**self.published, "eos_token_id": self.eos_token_id})

    def get_text_config(self, *_: Any, **__: Any) -> PretrainedConfig:
        """Return the backbone's config, by which vLLM sizes the KV cache."""
        return self.text_config


def _make_class(family: Family) -> type[TalkerConfig]:
    name = f"{type(family).__name__}Config_{family.model_type}"
    attributes = {
        "family": family,
        "model_type": family.model_type,
        "__module__": __name__,
        # without an __init__ of its own transformers makes the class a dataclass
        "__init__": lambda self, **published: TalkerConfig.__init__(self, **published),
    }
    config: type[TalkerConfig] = type(name, (TalkerConfig,), attributes)
    globals()[name] = config
    return config


#: Config classes by ``model_type``.
CONFIG_CLASSES = {family.model_type: _make_class(family) for family in FAMILIES}
