"""Conversions between a ``torch.nn.Module`` and a tree of arrays."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy as is_uninitialized
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm

from atoll.core.algebra.rng import Rng
from atoll.core.errors import DataError, nearest

__all__ = [
    "NamedInputs",
    "array_of",
    "buffers_of",
    "copy_module",
    "copy_owned",
    "init",
    "is_lazy",
    "keep_activations",
    "load",
    "params_of",
    "precision_of",
    "shape_module",
    "spectral_layers",
    "spectral_units",
]


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


@contextmanager
def keep_activations() -> Iterator[None]:
    """Run passes in which ``torch.utils.checkpoint`` keeps what it would compute again in the backward pass.

    By then a model has its own parameters again, and dropout other masks: gradients would be wrong without a word. Results are those of the pass without it.
    """
    from torch.utils import checkpoint as module

    class Kept:
        @staticmethod
        def apply(function: Any, preserve: bool, *args: Any) -> Any:
            del preserve
            return function(*args)

    def keep(*args: Any, **options: Any) -> Iterator[None]:
        del args, options
        yield

    ours = {"CheckpointFunction": Kept, "_checkpoint_without_reentrant_generator": keep}
    before = {name: getattr(module, name) for name in ours}
    vars(module).update(ours)
    try:
        yield
    finally:
        vars(module).update(before)


def array_of(tensor: torch.Tensor) -> np.ndarray:
    """Return a copy of a tensor as an array; bfloat16, which NumPy lacks, as float32."""
    made = tensor.detach().to("cpu", copy=True)
    return (made.float() if made.dtype == torch.bfloat16 else made).numpy()


def load(module: nn.Module, tree: Mapping[str, np.ndarray]) -> nn.Module:
    """Return a copy of the module with parameters (or buffers) from a tree; the given module is not changed.

    Raises:
        DataError: a name that the module does not have, a missing parameter, or another shape.
    """
    made = copy_module(module)
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
        for name, unit in spectral_units(made, named, tree).items():
            named[name].copy_(unit)
    return made


# Spectral normalisation divides a weight by ``u' W v``, where the unit vectors u and v are buffers, near the first singular vectors of W. They follow from W, so the
# mean of several clients' vectors, which is shorter than 1 and belongs to no W, is made again: by power iterations, as PyTorch does when it makes the layer.

_ITERATIONS = 30
_UNIT = 1e-4  # a mean of vectors that differ is shorter by more; rounding is less


@dataclass(frozen=True)
class _Spectral:
    """A spectral normalisation: the names of its vectors and of its weight, and the axis of the weight's rows."""

    u: str
    v: str
    weight: str | None
    axis: int


def spectral_layers(module: nn.Module) -> list[_Spectral]:
    """Return the spectral normalisations of a model, of both of PyTorch's kinds."""
    found: list[_Spectral] = []
    for prefix, layer in module.named_modules():
        dot = f"{prefix}." if prefix else ""
        for hook in layer._forward_pre_hooks.values():
            if isinstance(hook, SpectralNorm):
                at = f"{dot}{hook.name}"
                found.append(_Spectral(f"{at}_u", f"{at}_v", f"{at}_orig", hook.dim))
        if not parametrize.is_parametrized(layer):
            continue
        for name, chain in layer.parametrizations.items():
            for i, part in enumerate(chain):
                if isinstance(part, _SpectralNorm) and hasattr(part, "_u"):
                    at = f"{dot}parametrizations.{name}"
                    weight = f"{at}.original" if i == 0 and hasattr(chain, "original") else None
                    found.append(_Spectral(f"{at}.{i}._u", f"{at}.{i}._v", weight, part.dim))
    return found


def spectral_units(
    module: nn.Module, named: Mapping[str, torch.Tensor], given: Collection[str]
) -> dict[str, torch.Tensor]:
    """Return the vectors of spectral normalisations that must be made again, by name.

    Args:
        module: the model.
        named: its tensors by name.
        given: names of those that came; a vector that did not come, with a weight that did, belongs to another weight.
    """
    made: dict[str, torch.Tensor] = {}
    for layer in spectral_layers(module):
        u, v = named[layer.u], named[layer.v]
        came = layer.u in given and layer.v in given
        if layer.weight not in given and not came:
            continue
        if came and all(abs(float(torch.linalg.vector_norm(unit)) - 1.0) < _UNIT for unit in (u, v)):
            continue
        with torch.no_grad():
            if layer.weight is not None:
                matrix = named[layer.weight].detach().movedim(layer.axis, 0).flatten(1)
                start = v if float(torch.linalg.vector_norm(v)) > _UNIT else matrix.sum(0)
                v = nn.functional.normalize(start, dim=0)
                for _ in range(_ITERATIONS):
                    u = nn.functional.normalize(matrix @ v, dim=0)
                    v = nn.functional.normalize(matrix.T @ u, dim=0)
            made |= {layer.u: nn.functional.normalize(u, dim=0), layer.v: nn.functional.normalize(v, dim=0)}
    return made


def is_lazy(module: nn.Module) -> bool:
    """Tell whether some parameters or buffers of a model have no shape before its first pass."""
    return any(is_uninitialized(tensor) for tensor in (*module.parameters(), *module.buffers()))


def copy_module(module: nn.Module) -> nn.Module:
    """Return a deep copy of a model, whose tensors may have no shape yet, or be attributes that a hook computes from parameters (`torch.nn.utils.weight_norm`)."""
    return copy_owned(module)[0]


def copy_owned(module: nn.Module) -> tuple[nn.Module, list[Any]]:
    """Return a copy as `copy_module` makes it, and every object that was copied: what the model does not share with the given one."""
    known = dict[int, Any]()
    for tensor in (*module.parameters(), *module.buffers()):
        if is_uninitialized(tensor):
            kind: Any = type(tensor)
            known[id(tensor)] = kind(tensor.requires_grad, tensor.device, tensor.dtype)
    own = (value for layer in module.modules() for value in vars(layer).values())
    known |= {id(t): t.detach().clone() for t in own if isinstance(t, torch.Tensor) and not t.is_leaf}
    made = deepcopy(module, known)
    for (_, given), (_, copied) in zip(module.named_parameters(), made.named_parameters(), strict=True):
        vars(copied).update(
            deepcopy(vars(given), known)
        )  # marks such as ``_no_weight_decay``, which PyTorch's copy leaves out
    known.pop(id(known), None)  # the originals, which `deepcopy` keeps alive
    return made, [*known.values()]


def shape_module(module: nn.Module, x: torch.Tensor | None, key: int | None = None) -> nn.Module:
    """Return a model whose tensors have shapes: the model itself, or a copy of a lazy one after a pass without gradients.

    Args:
        module: the model.
        x: rows of the data, or made-up rows of their form.
        key: the seed of the weights that the pass draws; ``None`` draws them from PyTorch's generator as it is.

    Raises:
        DataError: there are no rows, or the model cannot take them.
    """
    if not is_lazy(module):
        return module
    made, why = copy_module(module), "there are no rows whose form is known"
    modes = {layer: layer.training for layer in made.modules()}
    try:
        if x is not None:
            with torch.random.fork_rng(devices=[], enabled=key is not None), torch.no_grad():
                if key is not None:
                    torch.default_generator.manual_seed(key)
                made.eval()(x)
            for layer, training in modes.items():
                layer.training = training
            return made
    except Exception as error:
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    raise DataError(
        f"the model {type(module).__name__} has lazy layers, which take their shapes from a first pass: {why}",
        where="Training.model",
        remedy="call the model once on a few rows before you give it to a training",
    )


def init(model: nn.Module | Callable[[], nn.Module], rng: Rng, x: torch.Tensor | None = None) -> nn.Module:
    """Return a model with initial weights that depend only on ``rng``.

    Args:
        model: a factory, called under the stream; or a module, of which a copy is made and every layer that has
            ``reset_parameters`` is reset (layers without it keep their values).
        rng: the stream.
        x: rows for the first pass of a model with lazy layers.

    Torch's global generators are unchanged.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(rng.key >> 1)
        if not isinstance(model, nn.Module):
            return shape_module(model(), x)
        made = copy_module(model)
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
