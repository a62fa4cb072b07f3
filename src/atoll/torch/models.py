"""Conversions between a ``torch.nn.Module`` and a tree of arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import nn

from atoll.core.algebra.rng import Rng
from atoll.core.errors import DataError, nearest

__all__ = ["NamedInputs", "array_of", "buffers_of", "init", "load", "params_of", "precision_of"]


def params_of(module: nn.Module) -> dict[str, np.ndarray]:
    """Return copies of the trainable parameters, by name.

    Parameters with ``requires_grad=False`` stay with the model and do not travel. A tied parameter appears once, under its
    first name.
    """
    return {name: array_of(p) for name, p in module.named_parameters() if p.requires_grad}


def precision_of(module: nn.Module) -> str:
    """Return in which precision a model is trained: double if all its trainable parameters are double, else single."""
    kinds = {p.dtype for p in module.parameters() if p.requires_grad}
    return "float64" if kinds == {torch.float64} else "float32"


def buffers_of(module: nn.Module) -> dict[str, np.ndarray]:
    """Return copies of the floating-point buffers that belong to the model's state, by name (BatchNorm's running statistics)."""
    kept = module.state_dict(keep_vars=True)
    return {name: array_of(b) for name, b in module.named_buffers() if name in kept and b.is_floating_point()}


def array_of(tensor: torch.Tensor) -> np.ndarray:
    """Return a copy of a tensor as an array."""
    return tensor.detach().to("cpu", copy=True).numpy()


def load(module: nn.Module, tree: Mapping[str, np.ndarray]) -> nn.Module:
    """Return a copy of the module with parameters (or buffers) from a tree; the given module is not changed.

    Raises:
        DataError: a name that the module does not have, a missing parameter, or another shape.
    """
    made = deepcopy(module)
    named = dict(made.named_parameters()) | dict(made.named_buffers())
    for name, value in tree.items():
        if name not in named:
            raise DataError(
                f"the model has no parameter {name!r}.{nearest(name, named)}",
                where=type(module).__name__,
                remedy="load parameters of the same model",
            )
        if tuple(named[name].shape) != np.shape(value):
            raise DataError(
                f"parameter {name!r} has shape {np.shape(value)}, the model needs {tuple(named[name].shape)}",
                where=type(module).__name__,
                remedy="load parameters of the same model",
            )
    own = dict(made.named_parameters())
    missing = [name for name, p in own.items() if p.requires_grad and name not in tree]
    if missing and any(name in own for name in tree):
        raise DataError(
            f"parameters {missing} are missing",
            where=type(module).__name__,
            remedy="load all parameters of the model",
        )
    with torch.no_grad():
        for name, value in tree.items():
            named[name].copy_(torch.as_tensor(np.array(value)))
    return made


def init(model: nn.Module | Callable[[], nn.Module], rng: Rng) -> nn.Module:
    """Return a model with initial weights that depend only on ``rng``.

    Args:
        model: a factory, called under the stream; or a module, of which a copy is made and every layer that has
            ``reset_parameters`` is reset (layers without it keep their values).
        rng: the stream.

    Torch's global generators are unchanged.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(rng.key >> 1)
        if not isinstance(model, nn.Module):
            return model()
        made = deepcopy(model)
        for layer in made.modules():
            reset = getattr(layer, "reset_parameters", None) or getattr(layer, "_reset_parameters", None)
            if callable(reset):
                reset()
        return made


# Models that take several inputs by name, as those of Hugging Face's libraries do.


class NamedInputs(nn.Module):
    """A model that takes ``input_ids``, ``attention_mask``, ... by name, as one that takes the rows of `atoll.data.from_tokens`.

    Scores of each token, ``(rows, length, classes)`` as those libraries give them, become ``(rows, classes, length)``, as PyTorch's losses take them.

    Args:
        model: the model, called as ``model(input_ids=..., attention_mask=...)``.
        names: the names of its inputs, in the order in which they are stacked in ``x``, ``(rows, inputs, length)``.
        output: what of its output is the prediction: an attribute or a key; a tensor is taken as it is.
    """

    def __init__(
        self, model: nn.Module, names: Sequence[str] = ("input_ids", "attention_mask"), output: str = "logits"
    ) -> None:
        super().__init__()
        self.model = model
        self.names = tuple(names)
        self.output = output

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the predictions of some rows.

        Raises:
            DataError: the rows have another number of inputs, or the output lacks what was named.
        """
        if x.dim() < 2 or x.shape[1] != len(self.names):
            raise DataError(
                f"rows of shape {tuple(x.shape[1:])} for {len(self.names)} inputs ({', '.join(self.names)})",
                where="NamedInputs",
                remedy="make the data set with atoll.data.from_tokens, with the same inputs in the same order",
            )
        made: Any = self.model(**dict(zip(self.names, x.unbind(1), strict=True)))
        if isinstance(made, torch.Tensor):
            return _classes_second(made)
        found = made.get(self.output) if isinstance(made, Mapping) else getattr(made, self.output, None)
        if not isinstance(found, torch.Tensor):
            raise DataError(
                f"the output, a {type(made).__name__}, has no tensor {self.output!r}",
                where="NamedInputs",
                remedy="name another with output=",
            )
        return _classes_second(found)


def _classes_second(scores: torch.Tensor) -> torch.Tensor:
    return scores.transpose(1, 2) if scores.dim() == 3 else scores
