"""Parameters in the form of a script's library, and back: PyTorch modules and state dicts, estimators of scikit-learn, dicts of arrays."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from atoll.core.algebra.tree import Tree, items
from atoll.core.errors import DataError, nearest

__all__ = ["Untouched", "as_form", "load_into", "parameters_of", "state_of"]


class Untouched(dict[str, Any]):
    """The model of a task outside a federation when `connect` was given none: the script's model stays as it is."""

    def __missing__(self, name: str) -> Any:
        raise DataError(
            f"there is no parameter {name!r} outside a federation",
            where="task.model",
            remedy="give the script's model to atoll.client.connect(model): then it is the model of the one local round",
        )


def as_form(params: Tree, form: str, fixed: Tree, aliases: Mapping[str, str]) -> Any:
    """Return received parameters as the script's library takes them.

    Args:
        params: arrays by name.
        form: ``torch`` for a state dict of tensors, otherwise arrays.
        fixed: entries of the state dict that do not travel, such as counters.
        aliases: further names of tied parameters -> the name that travels.
    """
    if form != "torch":
        return params
    import torch

    named = {**params, **fixed}
    made = {name: torch.from_numpy(np.require(value, requirements=["A", "W"])) for name, value in named.items()}
    return {**made, **{alias: made[name] for alias, name in aliases.items()}}


def state_of(model: Any) -> Any:
    """Return the parameters of a script's model, for a round outside a federation."""
    if callable(getattr(model, "state_dict", None)):
        return {name: value.detach().clone() for name, value in model.state_dict().items()}
    if isinstance(model, Mapping):
        return model
    found = {name.removesuffix("_"): np.array(value, ndmin=1) for name, value in _list_fitted(model)}
    return Untouched(found)


def _list_fitted(model: Any) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in vars(model).items() if name in ("coef_", "intercept_")]


def load_into(model: Any, received: Any) -> None:
    """Set a script's model to received parameters, in place.

    Raises:
        DataError: the model has no such parameters.
    """
    if isinstance(received, Untouched):
        return
    if callable(getattr(model, "load_state_dict", None)):
        unexpected = model.load_state_dict(received, strict=False).unexpected_keys
        if unexpected:
            raise _lacks(unexpected[0], model.state_dict())
    elif isinstance(model, dict):
        model.update({name: np.array(value) for name, value in received.items()})
    else:
        for name, value in received.items():
            # A fitted estimator has shapes of its own: intercept_ of a regression is a number.
            before = getattr(model, f"{name}_", None)
            array = np.array(value) if before is None else np.array(value).reshape(np.shape(before))
            setattr(model, f"{name}_", array[()] if before is not None else array)


def parameters_of(model: Any, like: Tree) -> Tree:
    """Return the parameters that a reply sends: those that the task came with.

    Args:
        model: a PyTorch module (PEFT's and Lightning's too), a state dict, a fitted estimator, or a dict of arrays.
        like: the received parameters, whose names and shapes count.

    Raises:
        DataError: the model lacks a parameter, or has it in another shape.
    """
    if callable(getattr(model, "state_dict", None)):
        model = model.state_dict()
    elif not isinstance(model, Mapping):
        model = _Attributes(model)
    return _pick_weights(model, like, "")


class _Attributes(Mapping[str, Any]):
    """The fitted attributes of an estimator by name, without the underscore at the end."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getitem__(self, name: str) -> Any:
        try:
            return np.asarray(getattr(self._model, f"{name}_"))
        except AttributeError:
            raise KeyError(name) from None

    def __iter__(self) -> Any:
        return (name.removesuffix("_") for name in vars(self._model) if name.endswith("_"))

    def __len__(self) -> int:
        return len(list(iter(self)))


def _pick_weights(model: Mapping[str, Any], like: Tree, above: str) -> Tree:
    made: dict[str, Any] = {}
    for name, wanted in like.items():
        path = f"{above}{name}"
        if name not in model:
            raise _lacks(path, model)
        value = model[name]
        made[name] = (
            _pick_weights(value, wanted, f"{path}.") if isinstance(wanted, Mapping) else _array(value, wanted, path)
        )
    return made


def _array(value: Any, wanted: Any, path: str) -> Any:
    """Return a value as an array of the received kind."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        value = (
            value.detach().to("cpu").float().numpy() if value.dtype == torch.bfloat16 else value.detach().cpu().numpy()
        )
    array, shape = np.asarray(value), np.shape(wanted)
    if array.shape != shape and array.size == np.size(wanted) and array.ndim <= 1 and len(shape) <= 1:
        array = array.reshape(shape)  # intercept_ of a regression is a number
    if array.shape != shape:
        raise DataError(
            f"parameter {path!r} has shape {array.shape}, but it came with shape {shape}",
            where="task.reply",
            remedy="reply with the parameters that the task came with, trained; every client needs a model of one shape",
        )
    return np.ascontiguousarray(array, dtype=np.asarray(wanted).dtype).reshape(
        shape
    )  # which makes an axis of a single number


def _lacks(name: str, has: Mapping[str, Any]) -> DataError:
    known = [str(key) for key, _ in items(dict(has))] if isinstance(has, dict) else list(has)
    return DataError(
        f"the model has no parameter {name!r}.{nearest(name, known)}",
        where="task.reply",
        remedy="reply with the model whose parameters the task came with",
    )
