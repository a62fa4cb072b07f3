"""A saved adapter over its encoder: a classifier of texts, or of images."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import ConfigError, DataError
from atoll.core.extras import need

from . import methods
from .encoded_rows import EncodedRows
from .encoder import Encoder, class_prompts, quiet

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ABOUT", "ADAPTER", "HEAD", "PEFT_FILES", "AdaptedClassifier", "load_adapter"]

ABOUT = "tuning.json"
"""What a saved adapter belongs to."""
ADAPTER = "adapter.safetensors"
"""The trained values of a method of Atoll."""
HEAD = "head.safetensors"
"""The trained values of a head."""
PEFT_FILES = ("adapter_config.json", "adapter_model.safetensors")
"""What peft calls an adapter's settings and values."""
_SETTINGS = {"digest", "method", "settings", "prompt", "scale", "length", "causal", "labels"}


@dataclass(frozen=True)
class AdaptedClassifier:
    """A tuned encoder that classifies texts, or images if that is its encoder's modality.

    Attributes:
        encoder: the encoder.
        module: the tuned module.
        features: whether it takes features.
        labels: the classes' names.
    """

    encoder: Encoder
    module: Any
    features: bool
    labels: tuple[str, ...]

    def score(self, rows: Sequence[Any]) -> NDArray[np.float32]:
        """Return the scores of texts, or of images as `Encoder.encode_images` takes them, ``(rows, classes)``; of a language model, of each next token ``(rows, vocabulary, length)``."""
        torch = need("torch", "torch", "an adapter")
        x = EncodedRows(self.encoder, "", self.features).inputs(rows)
        with torch.no_grad():
            return np.asarray(self.module.eval()(torch.from_numpy(np.array(x))).numpy())

    def predict(self, rows: Sequence[Any]) -> list[str]:
        """Return the class of each text or image, by name."""
        return [self.labels[int(code)] for code in self.score(rows).argmax(1)]


def load_adapter(folder: str | Path, encoder: str) -> AdaptedClassifier:
    """Return a saved adapter over its encoder.

    Args:
        folder: the folder that ``result.save`` wrote.
        encoder: the encoder's folder, or its name; see `Encoder.open`.

    Raises:
        DataError: there is no adapter, its values are missing, another's or not finite, or the encoder is another one than it was trained on.
    """
    place, torch = Path(folder), need("torch", "torch", "an adapter")
    if not (place / ABOUT).is_file():
        raise DataError(
            f"there is no {ABOUT} in {str(folder)!r}",
            where="load_adapter",
            remedy="give the folder that result.save(folder) wrote",
        )
    about = _read_about(place)
    if about["method"] not in methods.__all__ or about["method"] == "TuningMethod":
        raise ConfigError(
            f"the adapter's method {about['method']!r} is unknown", where="load_adapter", remedy="save it again"
        )
    kind: Any = "causal" if about["causal"] else "encoder"
    modality: Any = "image" if about.get("modality") == "image" else "text"
    found = Encoder.open(encoder, digest=about["digest"], kind=kind, length=about["length"], modality=modality)
    method = getattr(methods, about["method"])(**about["settings"])
    labels = tuple(about["labels"])
    prompts = class_prompts(found, list(labels), about["prompt"], method.prompted) if labels else None
    target = methods.EncoderTarget(len(labels), prompts, about["scale"], labels, about["prompt"])
    with quiet(), torch.random.fork_rng(devices=[]):
        if isinstance(method, methods.Peft):
            layers = need("atoll.adapters.layers", "torch", "an adapter")
            module = layers.tokens_of(_load_peft(layers.tower_of(found), place), found, target)
        else:
            module = method.build(found, target)
    _fill(module, place, method)
    return AdaptedClassifier(found, module, method.features, labels)


def _read_about(place: Path) -> dict[str, Any]:
    """Return what an adapter says of itself.

    Raises:
        DataError: it is no JSON, or lacks a setting.
    """
    try:
        about = json.loads((place / ABOUT).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise _refuse(place, f"{ABOUT} is no JSON") from error
    lacking = sorted(_SETTINGS - set(about)) if isinstance(about, dict) else ["settings"]
    if lacking:
        raise _refuse(place, f"{ABOUT} lacks {lacking[0]!r}")
    scale = about["scale"]  # JSON in Python has NaN and Infinity
    if not (isinstance(scale, int | float) and 0 < scale < math.inf):
        raise _refuse(place, f"{ABOUT} has the scale {scale!r}")
    made: dict[str, Any] = about
    return made


def _load_peft(body: Any, place: Path) -> Any:
    """Return peft's model of a saved adapter.

    Where a file is missing, peft itself would take a pickle, or ask a hub; where the settings name other layers, it leaves values out.

    Raises:
        DataError: a file is missing or cannot be read, or its values are none of the layers that its settings name.
    """
    library = need("peft", "encoders", "Peft")
    absent = next((name for name in PEFT_FILES if not (place / name).is_file()), None)
    if absent is not None:
        raise _refuse(place, f"there is no {absent}")
    try:
        saved = need("safetensors.numpy", "torch", "an adapter").load_file(str(place / PEFT_FILES[1]))
        made = library.PeftModel.from_pretrained(body, str(place), local_files_only=True, use_safetensors=True)
    except Exception as error:  # each library has errors of its own
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise _refuse(place, f"peft cannot load it: {said}") from error
    odd = sorted(set(saved) ^ set(library.get_peft_model_state_dict(made, save_embedding_layers=False)))
    if odd:
        raise _refuse(place, f"its values are none of this adapter's: {odd[0]!r} is missing or unknown")
    _require_finite(place, saved)
    return made


def _require_finite(place: Path, values: Mapping[str, Any]) -> None:
    """Refuse an adapter that would score every row NaN, which is the first class.

    Raises:
        DataError: a value is NaN or infinite.
    """
    name = next((name for name, value in sorted(values.items()) if not np.isfinite(value).all()), None)
    if name is not None:
        raise _refuse(place, f"{name!r} has a value that is not finite", "train again, with a smaller rate")


def _refuse(place: Path, what: str, remedy: str = "save it again with result.save(folder)") -> DataError:
    return DataError(what, where=f"adapter {place.name!r}", remedy=remedy)


def _read_values(place: Path, method: methods.TuningMethod) -> dict[str, Any]:
    """Return the saved values that peft does not load itself, by the parameter's name."""
    files, library = need("safetensors.numpy", "torch", "an adapter"), need("safetensors", "torch", "an adapter")
    names = [ADAPTER, HEAD, *([PEFT_FILES[1]] if isinstance(method, methods.PromptFL) else [])]
    found: dict[str, Any] = {}
    for file in (place / name for name in names):
        try:
            found |= files.load_file(str(file)) if file.is_file() else {}
        except (OSError, library.SafetensorError) as error:
            raise _refuse(place, f"{file.name} cannot be read: {error}") from error
    if isinstance(method, methods.PromptFL) and "prompt_embeddings" in found:
        found["context"] = found.pop("prompt_embeddings")  # as peft calls them
    return found


def _fill(module: Any, place: Path, method: methods.TuningMethod) -> None:
    """Put the saved values in.

    Raises:
        DataError: one is missing, unknown, of another shape or not finite.
    """
    torch, values = need("torch", "torch", "an adapter"), _read_values(place, method)
    named = dict(module.named_parameters())
    inside = isinstance(method, methods.Peft)  # whose body peft has filled
    wanted = {name for name, p in named.items() if p.requires_grad and not (inside and name.startswith("body."))}
    odd = sorted(wanted - values.keys()) or sorted(
        name for name, value in values.items() if name not in named or named[name].shape != value.shape
    )
    if odd:
        raise _refuse(
            place, f"its values are none of this adapter's: {odd[0]!r} is missing, unknown or of another shape"
        )
    _require_finite(place, values)
    with torch.no_grad():
        for name, value in values.items():
            named[name].copy_(torch.from_numpy(value))
