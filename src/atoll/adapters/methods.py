"""What of an encoder is trained: the methods that a `Tuning` takes.

Methods behind the encoder (`AttAI`, `Bottleneck`, `PromptFL`, `LinearHead`) take its features, which are computed once and kept. Methods inside it (`Peft`, `BitFit`,
`WholeModel`) run the encoder in every step.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from atoll.core.errors import ConfigError, nearest
from atoll.core.extras import need
from atoll.core.validation import Checked

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .encoder import Encoder

__all__ = ["AttAI", "BitFit", "Bottleneck", "LinearHead", "Peft", "PromptFL", "TuningMethod", "WholeModel", "method_of"]


@dataclass(frozen=True)
class EncoderTarget:
    """What a tuned encoder tells apart.

    Attributes:
        classes: their number; 0 for a language model.
        prompts: features of a text for each class, ``(classes, width)``; ``None`` for a linear head.
        scale: factor on the cosine of a row with a prompt.
        labels: the classes' names.
        prompt: the text that the prompts were made of; empty for the names alone.
    """

    classes: int
    prompts: NDArray[Any] | None
    scale: float
    labels: tuple[str, ...] = ()
    prompt: str = ""


class TuningMethod(Checked):
    """Base class of the methods.

    Attributes:
        features: whether it takes the encoder's features instead of tokens or images.
        prompted: whether it scores classes by their prompts also where none is given: then the prompt is the class's name. An encoder of images alone has no prompts.
    """

    features: ClassVar[bool] = True
    prompted: ClassVar[bool] = False

    def build(self, encoder: Encoder, target: EncoderTarget) -> Any:
        """Return the module that is trained: rows -> class scores. Its parameters with ``requires_grad`` are all that travels."""
        raise NotImplementedError


@dataclass(frozen=True)
class AttAI(TuningMethod):
    """The attention adapter of FedCLIP (Lu, Hu, Wang, Xie 2023, "FedCLIP: Fast Generalization and Personalization for CLIP in Federated Learning", section 3).

    ``x* = softmax(W2 tanh(W1 x + b1) + b2) * x``, both layers of the features' width m: ``2 (m^2 + m)`` values. A class scores ``scale * cos(x*, prompt)``.
    On the side of texts the same is done to the prompts' features ``t``, ``scale * cos(x, t*)``, as in the figure 3 of the source; on both sides with values of their own.
    Before an encoder of images alone, a linear head scores ``x*``.

    Attributes:
        side: ``"input"``: the features of rows, texts or images; ``"text"``: those of the prompts; ``"both"``.
    """

    prompted: ClassVar[bool] = True

    side: Literal["input", "text", "both"] = "input"

    def __post_init__(self) -> None:
        known = ("input", "text", "both")
        if self.side not in known:
            raise ConfigError(
                f"side={self.side!r}.{nearest(self.side, known)}",
                where="AttAI",
                remedy=f"use one of {', '.join(known)}",
            )

    def build(self, encoder: Encoder, target: EncoderTarget) -> Any:
        """Return the adapters before the cosines of rows with prompts."""
        layers = _layers()
        if self.side == "input" and _lacks_prompts(encoder, target):
            return layers.AdaptedHead(
                layers.AttentionAdapter(encoder.width), layers.linear_head(encoder.width, target.classes)
            )
        own, other = (self.side in (side, "both") for side in ("input", "text"))
        return layers.FeatureClassifier(
            layers.AttentionAdapter(encoder.width) if own else layers.unchanged(),
            _require_prompts(encoder, target),
            target.scale,
            layers.AttentionAdapter(encoder.width) if other else None,
        )


@dataclass(frozen=True)
class Bottleneck(TuningMethod):
    """A residual adapter of two layers: ``x + ratio * U relu(D x)`` (Gao et al. 2021, "CLIP-Adapter", with the residual of Houlsby et al. 2019), before prompts.

    Before an encoder of images alone, a linear head scores what it makes.

    Attributes:
        hidden: numbers between the layers.
        ratio: factor on what the layers add. They begin at zero.
    """

    prompted: ClassVar[bool] = True

    hidden: int = 64
    ratio: float = 1.0

    def __post_init__(self) -> None:
        if self.hidden < 1:
            raise ConfigError(f"hidden={self.hidden}", where="Bottleneck", remedy="use at least 1 number, such as 64")

    def build(self, encoder: Encoder, target: EncoderTarget) -> Any:
        """Return the adapter before the prompts' cosines."""
        layers = _layers()
        adapter = layers.BottleneckAdapter(encoder.width, self.hidden, self.ratio)
        if _lacks_prompts(encoder, target):
            return layers.AdaptedHead(adapter, layers.linear_head(encoder.width, target.classes))
        return layers.FeatureClassifier(adapter, _require_prompts(encoder, target), target.scale)


@dataclass(frozen=True)
class PromptFL(TuningMethod):
    """Learnt vectors in the prompts of the classes (Guo et al. 2023, "PromptFL: Let Federated Participants Cooperatively Learn Prompts Instead of Models").

    The text of a class is ``[v_1] ... [v_n] name``, with ``v_i`` in place of the embeddings of words: ``n w`` values of that width w, shared by all classes (Zhou et al. 2022, "CoOp").
    A class scores ``scale * cos(x, t(v, name))``; the side of texts is frozen, and runs in every step on one text a class. Rows are encoded once.
    Words of ``Tuning.prompt`` before ``{label}`` are where the vectors begin, so that the first scores are those of zero-shot.

    Example::

        Tuning(encoder="clip", method=PromptFL(), image="image", prompt="a photo of a {label}")

    Attributes:
        tokens: n; ``None`` for as many as the prompt has before the name, and 16 where it has none. Vectors without words are drawn from N(0, 0.02^2).
    """

    prompted: ClassVar[bool] = True

    tokens: int | None = None

    def __post_init__(self) -> None:
        if self.tokens is not None and self.tokens < 0:
            raise ConfigError(f"tokens={self.tokens}", where="PromptFL", remedy="use 1 or more, such as 16")

    def build(self, encoder: Encoder, target: EncoderTarget) -> Any:
        """Return the prompts' classifier.

        Raises:
            ConfigError: the prompts do not fit the encoder, or it takes no texts.
        """
        layers = _layers()
        _require_prompts(encoder, target)
        prompts = layers.ContextPrompts.make(encoder, target.labels, target.prompt, self.tokens)
        return layers.ContextClassifier(encoder, prompts, target.scale)


@dataclass(frozen=True)
class LinearHead(TuningMethod):
    """A linear layer on the frozen features."""

    def build(self, encoder: Encoder, target: EncoderTarget) -> Any:
        """Return the layer, which begins at zero: no class is ahead."""
        return _layers().linear_head(encoder.width, target.classes)


@dataclass(frozen=True)
class BitFit(TuningMethod):
    """The biases of all layers (Ben Zaken, Ravfogel, Goldberg 2022, "BitFit")."""

    features: ClassVar[bool] = False

    def build(self, encoder: Encoder, target: EncoderTarget) -> Any:
        """Return the encoder with its biases trainable, and the head."""
        layers = _layers()
        body = layers.copy_trainable(layers.tower_of(encoder), lambda name: name.endswith("bias"))
        if not any(p.requires_grad for p in body.parameters()):
            raise ConfigError("the encoder has no biases", where="BitFit", remedy="use Peft or WholeModel")
        return layers.tokens_of(body, encoder, target)


@dataclass(frozen=True)
class WholeModel(TuningMethod):
    """All weights of the encoder: they travel in every round."""

    features: ClassVar[bool] = False

    def build(self, encoder: Encoder, target: EncoderTarget) -> Any:
        """Return the encoder, all of it trainable, and the head."""
        layers = _layers()
        return layers.tokens_of(layers.copy_trainable(layers.tower_of(encoder), lambda name: True), encoder, target)


@dataclass(frozen=True)
class Peft(TuningMethod):
    """A method of the library peft: LoRA, (IA)^3, prompt tuning, p-tuning and others. In Python, give its configuration itself: ``peft.LoraConfig(r=8)``.

    Attributes:
        type: peft's name of the method: ``"LORA"``, ``"IA3"``, ``"PROMPT_TUNING"``, ``"P_TUNING"``, ``"PREFIX_TUNING"``.
        settings: settings of its configuration, plain values.
    """

    features: ClassVar[bool] = False

    type: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, config: Any) -> Peft:
        """Return the method of peft's own configuration object."""
        own = type(config)().to_dict() if not _needs_arguments(type(config)) else {}
        said = {name: _plain(value) for name, value in config.to_dict().items()}
        kept = {name: value for name, value in said.items() if value != _plain(own.get(name)) and name not in _UNSENT}
        return cls(str(_plain(config.peft_type)), kept)

    def config(self, encoder: Encoder) -> Any:
        """Return peft's configuration.

        Raises:
            ConfigError: peft has no such method or setting.
        """
        library = need("peft", "encoders", "Peft")
        known = sorted(str(_plain(one)) for one in library.PeftType)
        if self.type not in known:
            raise ConfigError(
                f"type={self.type!r}.{nearest(self.type, known)}", where="Peft", remedy=f"use one of {', '.join(known)}"
            )
        if self.type == "MULTITASK_PROMPT_TUNING":
            raise ConfigError(
                "MULTITASK_PROMPT_TUNING takes the number of a task with every row, and rows here have none",
                where="Peft",
                remedy="use PROMPT_TUNING",
            )
        task = "CAUSAL_LM" if encoder.kind == "causal" else "FEATURE_EXTRACTION"
        settings = {**({"task_type": task} if self.type in _PROMPTS else {}), **self.settings}
        try:
            return library.get_peft_config({"peft_type": self.type, **settings})
        except (TypeError, ValueError, KeyError) as error:
            raise ConfigError(
                f"peft refuses the settings: {str(error).strip().splitlines()[0]}",
                where=f"Peft({self.type})",
                remedy="give the settings of peft's configuration class",
            ) from error

    def build(self, encoder: Encoder, target: EncoderTarget) -> Any:
        """Return the encoder with peft's layers over the shared weights, and the head.

        Raises:
            ConfigError: no layer of the encoder fits the targets, or a rank exceeds a layer.
        """
        layers = _layers()
        return layers.tokens_of(layers.wrap_with_peft(encoder, self.config(encoder)), encoder, target)


_PROMPTS = ("PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING")
_UNSENT = ("peft_type", "auto_mapping", "base_model_name_or_path", "revision", "inference_mode", "peft_version")


def method_of(given: Any) -> TuningMethod:
    """Return a method, also of peft's own configuration.

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(given, TuningMethod):
        return given
    if hasattr(given, "peft_type") and hasattr(given, "to_dict"):
        return Peft.of(given)
    raise ConfigError(
        f"method is a {type(given).__name__}",
        where="Tuning",
        remedy="use a configuration of peft such as peft.LoraConfig(r=8), or a method of atoll.adapters such as AttAI()",
    )


def _layers() -> Any:
    need("torch", "torch", "a tuning method")
    return need("atoll.adapters.layers", "torch", "a tuning method")


def _lacks_prompts(encoder: Encoder, target: EncoderTarget) -> bool:
    return target.prompts is None and "text" not in encoder.modalities


def _require_prompts(encoder: Encoder, target: EncoderTarget) -> NDArray[Any]:
    if target.prompts is None:
        encoder.require_texts()
        raise ConfigError(
            "the classes have no names to make prompts of",
            where="Tuning.prompt",
            remedy="read labels as words, or use LinearHead()",
        )
    return target.prompts


def _needs_arguments(kind: type) -> bool:
    try:
        kind()
    except (TypeError, ValueError):
        return True
    return False


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(one) for one in value]
    return value
