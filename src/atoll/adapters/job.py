"""`Tuning`: a training whose model is a frozen encoder with a few trained parts."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np

from atoll.core.algebra.form import safetensors_of
from atoll.core.errors import ConfigError, DataError, nearest
from atoll.core.extras import need
from atoll.core.facets import facet
from atoll.core.rooms import Named
from atoll.learn.local.own_loss import LOSS_NAMES
from atoll.learn.prepared import PreparedTraining, Trained
from atoll.learn.training import Training

from .encoded_rows import EncodedRows
from .encoder import Encoder, class_prompts, quiet
from .lora_mean import RESIDUAL, FactorRules
from .methods import AttAI, EncoderTarget, Peft, PromptFL, TuningMethod, method_of
from .saved import ABOUT, ADAPTER, HEAD, PEFT_FILES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.learn.learner import Learner, LearnerSettings

__all__ = ["Tuning"]

_LOSSES = ("class", "batch")


@dataclass(frozen=True, kw_only=True)
class Tuning(Training):
    """A training of small parts of a frozen encoder, on texts or images. It takes every setting of `Training` but the model.

    ``Tuning(encoder="models/minilm", method=peft.LoraConfig(r=8, target_modules=["query", "value"]), text="text", head=3)``. The data sets have the texts as a
    column: ``atoll.data.from_csv_folder(folder, target="label", keep=["text"], features=[])``.

    Attributes:
        encoder: a folder as ``save_pretrained`` writes it, or its name below the folder ``ATOLL_MODELS``. Every party has it; it never travels.
        method: what is trained: a configuration of peft, or a method of `atoll.adapters`.
        training: the parts of a training, ``Training(model=None, …)``, in place of the settings here.
        text: the column of texts.
        image: the column of images, in place of texts: names of files, or pixels; see `Encoder.encode_images`. The encoder is then a ``CLIPModel``, or one of images alone
            such as a ``ViTModel``. Each party may name the folder of relative names, ``ATOLL_IMAGES``.
        head: the number of classes that the data must have; 0 takes theirs.
        prompt: a text for each class, such as ``"a {label} tweet"``; classes then score by the cosine of a row with it. Empty: a linear head, or the class's name
            where the method needs prompts.
        scale: factor on that cosine.
        causal: whether the folder is a causal language model, which learns the next token of the texts.
        length: tokens of a text; longer texts are cut.
        digest: the hash that the folder must have at every party. A job between organisations must say it; ``atoll adapters hash DIR`` prints it.
        loss: also ``"class"``: cross entropy over the classes (as ``"auto"``), and ``"batch"``: FedCLIP's Eq. 8 (`in_batch_loss`).
    """

    kind: ClassVar[str] = "tuning"

    model: Any = None
    encoder: str
    method: Annotated[Any, Named("tuning method")] = dataclasses.field(default_factory=AttAI)  # type: ignore[misc]
    training: Any = None
    text: str = "text"
    image: str = ""
    head: int = 0
    prompt: str = ""
    scale: float = 20.0
    causal: bool = False
    length: int = 64
    digest: str = ""

    def __post_init__(self) -> None:
        if self.training is not None:
            self._take_training()
        object.__setattr__(self, "method", method_of(self.method))
        if self.model is not None and not isinstance(self.model, TunedModel):
            raise ConfigError(
                f"model is a {type(self.model).__name__}, and the model of a Tuning is its encoder",
                where="Tuning.model",
                remedy="leave model= out; Training(model=None, ...) gives the parts of a training",
            )
        if self.prompt and "{label}" not in self.prompt:
            raise ConfigError(
                f"prompt={self.prompt!r} is the same for all classes",
                where="Tuning.prompt",
                remedy="put {label} where the name of the class stands, as in 'a {label} tweet'",
            )
        if self.head < 0 or not self.scale > 0:
            raise ConfigError(
                f"head={self.head}, scale={self.scale}",
                where="Tuning",
                remedy="use the number of classes, or 0, and a positive scale",
            )
        if self.causal and self.method.features:
            raise ConfigError(
                f"{type(self.method).__name__} takes the features of texts, which a language model has not",
                where="Tuning.method",
                remedy="use Peft, BitFit or WholeModel",
            )
        if self.causal and self.image:
            raise ConfigError(
                f"image={self.image!r}, and a language model takes texts",
                where="Tuning.image",
                remedy="leave image= or causal= out",
            )
        model = TunedModel(
            self.encoder, self.method, self.text, self.image, self.head, self.prompt, self.scale, self.causal, self.length, self.digest
        )  # fmt: skip
        object.__setattr__(self, "model", model)
        super().__post_init__()

    def _take_training(self) -> None:
        """Take the settings of a given training; one of them given here too would be a second answer.

        Raises:
            ConfigError: it is no training, has a model, or both say the same setting.
        """
        given = self.training
        if not isinstance(given, Training) or given.model is not None:
            raise ConfigError(
                f"training is a {type(given).__name__}"
                + (" with a model of its own" if isinstance(given, Training) else ""),
                where="Tuning.training",
                remedy="give Training(model=None, rounds=...): the encoder is the model",
            )
        blank = Training(model=None)
        for one in dataclasses.fields(Training):
            if one.name == "model":
                continue
            own, theirs, first = (getattr(job, one.name) for job in (self, given, blank))
            if own != first and own != theirs:
                raise ConfigError(
                    f"{one.name} is a setting here and in training=",
                    where="Tuning",
                    remedy=f"say {one.name}= in one place",
                )
            object.__setattr__(self, one.name, theirs)
        object.__setattr__(self, "training", None)

    @property
    def title(self) -> str:
        """The class, and the method: ``Tuning (AttAI)``."""
        own = self.method.type if isinstance(self.method, Peft) else type(self.method).__name__
        return f"Tuning ({own})"

    def prepare(self, data: Any) -> PreparedTraining:
        """Return the tuning prepared for clients whose data sets have a column of texts, or of images.

        Raises:
            DataError: the encoder is not there or has another hash, or there is no such column.
            CompositionError: as `Training.prepare`.
        """
        if hasattr(data, "outline") and not self.digest:
            raise ConfigError(
                "the job does not say which encoder it was made for",
                where="Tuning.digest",
                remedy="name its hash, digest=...; `atoll adapters hash DIR` prints it",
            )
        seen = data.outline() if hasattr(data, "outline") else data
        labels = () if self.causal else tuple(map(str, seen.about.labels))
        return PreparedTuning(super().prepare(self.model.rows.population(data)), self, labels)

    def learner(self, data: Any) -> Learner:
        """Return the tuned encoder, ready for this data set."""
        return super().learner(self.model.rows.population(data))

    @classmethod
    def require_settings(cls, said: Mapping[str, Any]) -> None:
        """Refuse an unknown loss."""
        loss = said.get("loss", "auto")
        known = ("auto", *_LOSSES, *LOSS_NAMES)
        if loss not in known and ":" not in loss:
            raise ConfigError(
                f"loss={loss!r} is not a known loss.{nearest(loss, known)}", remedy=f"use one of {', '.join(known)}"
            )


@dataclass(frozen=True)
class TunedModel:
    """The model of a tuning, as a part that makes a learner; see `Tuning` for the settings."""

    encoder: str
    method: TuningMethod
    text: str
    image: str
    head: int
    prompt: str
    scale: float
    causal: bool
    length: int
    digest: str

    @functools.cached_property
    def rows(self) -> EncodedRows:
        """How texts or images become rows; opens the encoder's folder, and proves its hash."""
        kind: Any = "causal" if self.causal else "encoder"
        modality: Any = "image" if self.image else "text"
        encoder = Encoder.open(self.encoder, digest=self.digest, kind=kind, length=self.length, modality=modality)
        return EncodedRows(encoder, self.image or self.text, self.method.features)

    def target(self, data: Any) -> EncoderTarget:
        """Return what is told apart.

        Raises:
            DataError: the data have another number of classes, or none.
        """
        if self.causal:
            return EncoderTarget(0, None, self.scale)
        about = data.about
        classes = about.classes
        if about.task not in ("classification", "binary") or not classes:
            raise DataError(
                f"the labels are those of a {about.task}",
                where="Tuning",
                remedy="name a target of classes; a language model (causal=True) needs none",
            )
        if self.head and self.head != classes:
            raise DataError(
                f"head={self.head}, and the data have {classes} classes",
                where="Tuning.head",
                remedy=f"use head={classes}, or leave it out",
            )
        labels = tuple(str(label) for label in about.labels)
        return EncoderTarget(classes, self._prompts(about.labels, classes), self.scale, labels, self.prompt)

    def _prompts(self, labels: Any, classes: int) -> NDArray[np.float32] | None:
        encoder = self.rows.encoder
        if not (self.prompt or self.method.prompted) or (not self.prompt and "text" not in encoder.modalities):
            return None
        if len(labels) != classes or all(str(label).isdecimal() for label in labels):
            raise DataError(
                "the classes have no names to make prompts of",
                where="Tuning.prompt",
                remedy="read labels as words, or use a linear head: leave prompt= out, with LinearHead() or a method inside the encoder",
            )
        return class_prompts(encoder, [str(label) for label in labels], self.prompt, self.method.prompted)

    def learner(self, settings: LearnerSettings, data: Any) -> Learner:
        """Return a learner for a data set whose rows are encoded."""
        layers = need("atoll.adapters.layers", "torch", "Tuning")
        target, encoder = self.target(data), self.rows.encoder
        losses = {"class": "auto", "batch": layers.in_batch_loss}
        if isinstance(settings.loss, str) and settings.loss in losses:
            settings = dataclasses.replace(settings, loss=losses[settings.loss])
        rules = facet(settings.algorithm, FactorRules)
        asked = {"residual": rules.residual, "frozen": rules.frozen}

        def build() -> Any:
            return layers.follow_rules(self.method.build(encoder, target), **asked)

        made = layers.TunedLearner(build, self.rows, settings, "tokens" if self.causal else data.about.task)
        made.check(data)
        learner: Learner = made
        return learner


@dataclass(frozen=True)
class TunedOutcome(Trained):
    """The result of a tuning: that of a training, which can be saved."""

    job: Any = dataclasses.field(default=None, repr=False, compare=False)
    labels: tuple[str, ...] = ()

    def save(self, folder: str | Path) -> Path:
        """Write what was trained, without the encoder's weights.

        A method of peft is written as peft writes it: ``PeftModel.from_pretrained(base, folder)`` loads it, and the vectors of `PromptFL` too. Any other is
        ``adapter.safetensors``, and a head ``head.safetensors``. ``tuning.json`` says what they belong to; `atoll.adapters.load_adapter` reads all of them.

        Raises:
            ConfigError: the parameters stay at the sites.
        """
        if not self.params:
            raise ConfigError(
                "the parameters stay at the sites", where="save", remedy="use a training with a model of the server's"
            )
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        for name in (ADAPTER, HEAD, ABOUT, *PEFT_FILES):  # an earlier adapter's values are none of this one's
            (place / name).unlink(missing_ok=True)
        head, own = dict[str, Any](), dict[str, Any]()
        inside = hasattr(self.model, "body")
        for name, value in self.params.items():
            (head if inside and name.startswith("head.") else own)[name] = value
        if isinstance(self.job.method, Peft):
            self._save_peft(place)
        elif isinstance(self.job.method, PromptFL):
            layers = need("atoll.adapters.layers", "torch", "save")
            layers.save_context(self.job.model.rows.encoder, np.asarray(own["context"]), place)
        else:
            (place / ADAPTER).write_bytes(safetensors_of(own, {}))
        if head:
            (place / HEAD).write_bytes(safetensors_of(head, {}))
        model = self.job.model
        about = {
            "digest": model.rows.encoder.digest, "method": type(model.method).__name__, "settings": dataclasses.asdict(model.method),
            "prompt": model.prompt, "scale": model.scale, "length": model.length, "causal": model.causal, "modality": model.rows.encoder.modality, "labels": list(self.labels),
        }  # fmt: skip
        (place / ABOUT).write_text(json.dumps(about, indent=1) + "\n", "utf-8")
        return place

    def _save_peft(self, place: Path) -> None:
        """Let peft write its adapter; residuals of an aggregation go into factors of a higher rank."""
        body = self.model.body
        if any(name.endswith(f".{RESIDUAL}") for name in self.params):
            layers = need("atoll.adapters.layers", "torch", "save")
            settings, factors = layers.merge_residuals(body, self.job.method.settings)
            with quiet():
                encoder = self.job.model.rows.encoder
                body = layers.copy_with_peft(encoder, Peft("LORA", settings).config(encoder), factors)
        body.save_pretrained(str(place), save_embedding_layers=False)  # "auto" asks a hub


class PreparedTuning(PreparedTraining):
    """A prepared training whose result can be saved, and which checks a site's rows.

    Args:
        inner: the training.
        job: the tuning.
        classes: the names of the classes.
    """

    def __init__(self, inner: PreparedTraining, job: Tuning, classes: tuple[str, ...]) -> None:
        vars(self).update(vars(inner))
        self._job, self._classes = job, classes

    def check(self, population: Any) -> None:
        """Let the learner check a site's own rows, encoded."""
        super().check(self._job.model.rows.population(population))

    def outcome(self, value: Trained) -> TunedOutcome:
        """Return the outcome with the tuned encoder, if the server has it."""
        made = super().outcome(value)
        own = {one.name: getattr(made, one.name) for one in dataclasses.fields(made)}
        return TunedOutcome(**own, job=self._job, labels=self._classes)
