"""Losses by name, exact on padded batches, and the check that a model's outputs fit the labels."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError, DataError, nearest
from atoll.learn.local.own_loss import (
    LABELLED,
    PLAIN_LOSS,
    LossSignature,
    OwnLoss,
    check_classes,
    check_shape,
    check_signs,
)

from .tracing.keyed import Keyed, row_keys, uniform

__all__ = ["LOSSES", "LossInputs", "Objective", "StepDraws", "form_of", "means_of_rows", "objective_of"]

# The inputs of a loss at one mini-batch, by the names of `atoll.learn.local.own_loss.LossSignature`.


Tensor = torch.Tensor


class StepDraws:
    """Random numbers of one client at one step: a function of (client, round, step, number of the call, position), on every engine.

    Give the rows as the first axis of a shape: padding then changes no number.

    Args:
        mode: counts the calls, together with the masks of the model's dropout.
        dtype: of the floating-point numbers.
    """

    def __init__(self, mode: Keyed, dtype: torch.dtype) -> None:
        self._mode = mode
        self._dtype = dtype

    def _bits(self, shape: tuple[int, ...]) -> Tensor:
        drawn = uniform(self._mode.seed, self._mode.calls, shape)
        self._mode.calls += 1
        return drawn

    def uniform(self, *shape: int) -> Tensor:
        """Uniform in ``[0, 1)``, multiples of ``2^-24``."""
        return (self._bits(shape) >> 8).to(self._dtype) * 2.0**-24

    def normal(self, *shape: int) -> Tensor:
        """Standard normal, by the transform of Box and Muller 1958."""
        radius = torch.sqrt(-2.0 * torch.log(1.0 - self.uniform(*shape)))
        return radius * torch.cos(2.0 * math.pi * self.uniform(*shape))

    def bernoulli(self, p: float, *shape: int) -> Tensor:
        """Booleans, true with probability ``p``."""
        return self._bits(shape) < int(p * 2**32)

    def integers(self, high: int, *shape: int) -> Tensor:
        """Whole numbers ``0 .. high - 1``, int64."""
        return (self._bits(shape) * high) >> 32


@dataclass(frozen=True)
class LossInputs:
    """One mini-batch.

    Attributes:
        model: ``(x, params=None, *, training=True) -> outputs``; ``params`` may be some of the names.
        columns: ``x``, ``y`` and further columns that the loss asks for, one row for each example.
        weights: 1 for a row, 0 for padding, ``(rows,)``; ``None`` if nothing is padded.
        broadcast: what the server sent; ``None`` outside training.
        mode: keys the random numbers; ``None`` outside training.
        dtype: of the model.
    """

    model: Callable[..., Tensor]
    columns: Mapping[str, Tensor]
    weights: Tensor | None
    broadcast: Tree
    mode: Keyed | None
    dtype: torch.dtype

    @property
    def labelled(self) -> Tensor | None:
        """Return which labels exist, as booleans; ``None`` if all do."""
        column = self.columns.get(LABELLED)
        return None if column is None else column != 0

    def of(self, name: str) -> Any:
        """Return the value for a name that a loss asks for."""
        if name in ("output", "model"):
            return self.model if name == "model" else self.model(self.columns["x"])
        if name in ("rng", "keys", "round", "broadcast"):
            return self._of_training(name)
        column = "y" if name == "target" else name
        if column in self.columns and name != LABELLED:
            return self.columns[column]
        x = self.columns["x"]
        if name == "real":
            return torch.ones(len(x), dtype=self.dtype, device=x.device) if self.weights is None else self.weights
        there = self.labelled
        return torch.ones(len(x), dtype=torch.bool, device=x.device) if there is None else there

    def _of_training(self, name: str) -> Any:
        if name == "rng":
            assert self.mode is not None  # noqa: S101 - a loss that asks for it is not evaluated
            return StepDraws(self.mode, self.dtype)
        if name == "keys":
            assert self.mode is not None  # noqa: S101 - as above
            return row_keys(self.mode.seed, self.columns["index"])
        sent = _Sent(self.broadcast)
        return sent["round"] if name == "round" else sent


class _Sent(dict[str, Any]):
    """A broadcast whose error for a missing name lists what it has."""

    def __missing__(self, name: str) -> Any:
        raise ConfigError(
            f"the loss asks the broadcast for {name!r}, but the server sends {', '.join(self)}",
            where="Training.loss",
            remedy="override `broadcast(state, phase)` of the algorithm to send it, or ask for what is sent",
        )


@dataclass(frozen=True)
class Objective:
    """A loss over the rows of a mini-batch.

    Attributes:
        name: for messages.
        fn: called with what its signature asks for.
        task: "classes" (labels 0..K-1), "signs" (-1/+1 or 0/1), "values", or "" for unchecked.
        signature: the inputs that it asks for.
        form: what it returns: "rows", a loss for each row (or entry of the target); "batch", one number that leaves
            padding out; "mean", one number over all rows, so its mini-batches cannot be padded; "" before its first
            call.
        entries: whether it returns a loss for each entry of a row's target.
    """

    name: str
    fn: Callable[..., Tensor]
    task: str = ""
    signature: LossSignature = PLAIN_LOSS
    form: str = "rows"
    entries: bool = True

    def __call__(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the mean over rows that all have labels, for a loss that needs no other input: ``sum_i w_i l_i / sum_i w_i``."""
        columns = {"x": outputs, "y": targets}
        return self.of_batch(LossInputs(lambda x: x, columns, weights, None, None, outputs.dtype))

    @property
    def padded(self) -> bool:
        """Tell whether mini-batches may be padded."""
        return self.form in ("rows", "batch")

    @property
    def measurable(self) -> bool:
        """Tell whether it can be evaluated on rows, outside training."""
        return not self.signature.trains_only

    @property
    def counts_labels(self) -> bool:
        """Tell whether it leaves out rows without a label: it reads targets, but not which of them exist."""
        return self.signature.takes_target and LABELLED not in self.signature.names

    def of_batch(self, inputs: LossInputs) -> Tensor:
        """Return the loss of a mini-batch, a scalar.

        Rows without a label do not count unless the loss asks for ``labelled``: with ``s_i`` the share of row ``i``'s
        labels that exist, ``l_i`` its mean over those, and ``w_i`` 0 for padding, it is ``sum_i w_i s_i l_i / sum_i w_i
        s_i``, and 0 if no label exists.
        """
        values = self.call_loss(inputs)
        if self.form != "rows":  # the form of a loss that raised on the rows of its first look is not known
            return values if self.form or not values.dim() else means_of_rows(values).mean()
        there = inputs.labelled if self.counts_labels else None
        if there is None:
            if inputs.weights is None:
                return values.mean() if self.task == "classes" else means_of_rows(values).mean()
            return (means_of_rows(values) * inputs.weights).sum() / inputs.weights.sum()
        share = _share(there, values)
        weights = share if inputs.weights is None else share * inputs.weights
        total = weights.sum()
        return (means_of_rows(values, there) * weights).sum() / torch.where(total > 0, total, torch.ones_like(total))

    def of_rows(self, inputs: LossInputs) -> tuple[Tensor, Tensor | None]:
        """Return the loss of each row, and the share of its labels that exist (``None``: all); one number for all rows counts for every row."""
        values = self.call_loss(inputs)
        there = inputs.labelled if self.signature.takes_target else None
        if self.form != "rows" and values.dim() == 0:
            values = values.expand(len(inputs.columns["x"]))
        if there is None:
            return means_of_rows(values), None
        return means_of_rows(values, there if self.counts_labels else None), _share(there, values)

    def of_examples(self, inputs: LossInputs) -> Tensor:
        """Return the loss of each row as the only one of its mini-batch: 0 without a label.

        Raises:
            NotImplementedError: the loss function returns one number for all rows.
        """
        values = self.call_loss(inputs)
        if self.form != "rows":
            raise NotImplementedError(f"the loss {self.name!r} returns one number for all rows")
        there = inputs.labelled if self.counts_labels else None
        if there is None:
            return means_of_rows(values)
        return torch.where(_share(there, values) > 0, means_of_rows(values, there), 0.0)

    def call_loss(self, inputs: LossInputs) -> Tensor:
        """Return what the loss function returns for a mini-batch."""
        given = [inputs.of(name) for name in self.signature.places]
        made: Tensor = self.fn(*given, **{name: inputs.of(name) for name in self.signature.names})
        return made

    def check_holes(self, columns: Mapping[str, Tensor], where: str) -> None:
        """Refuse rows without a label if the loss cannot leave them out.

        Raises:
            ConfigError: it reads the targets, does not ask for ``labelled``, and returns one number for all rows, or
                for a row with only part of its labels.
        """
        there = columns.get(LABELLED)
        if there is None or not self.counts_labels or not self.form or bool((there != 0).all()):
            return
        single = self.form == "rows" and there.dim() > 1 and not self.entries
        if self.form != "rows" or single:
            raise ConfigError(
                f"labels are missing, and the loss {self.name!r} returns one number for {'a row' if single else 'all rows'} "
                "without using which of them exist",
                where=where,
                remedy=f"return a loss for each {'entry of the target' if single else 'row'}, or let the loss ask for `labelled`",
            )

    def check(self, shape: tuple[int, ...], labels: np.ndarray, where: str) -> None:
        """Refuse a model whose output cannot be compared with the labels.

        Args:
            shape: of the model's output for ``shape[0]`` examples.
            labels: the targets, one row for each example.
            where: model or party, which the error names.

        Raises:
            DataError: labels outside the outputs, or another shape.
        """
        if self.task == "classes":
            check_classes(self.name, shape, labels, where)
        elif self.task == "signs" and labels.size:
            check_shape(self.name, shape, labels, where)
            check_signs(self.name, labels, where)
        elif self.task == "values":
            check_shape(self.name, shape, labels, where)


def means_of_rows(values: Tensor, there: Tensor | None = None) -> Tensor:
    """Return the mean over all axes except the first; of the existing entries, if ``there`` marks them."""
    if values.dim() == 1:
        return values
    flat = values.flatten(1)
    if there is None or there.dim() == 1:
        return flat.mean(1)
    known = there.reshape(flat.shape)
    return torch.where(known, flat, torch.zeros_like(flat)).sum(1) / known.sum(1).clamp(min=1)


def _share(there: Tensor, values: Tensor) -> Tensor:
    """Return the share of each row's labels that exist, in the type of the values."""
    return there.to(values.dtype).flatten(1).mean(1) if there.dim() > 1 else there.to(values.dtype)


def _like(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return outputs in the shape of the targets (without a trailing axis of one), and targets in the outputs' dtype."""
    return outputs.reshape(targets.shape), targets.to(outputs.dtype)


def _multiclass_hinge(outputs: Tensor, targets: Tensor) -> Tensor:
    """Crammer and Singer 2001: ``max(0, 1 + max_{j != y} s_j - s_y)``."""
    classes = torch.arange(outputs.shape[1], device=outputs.device)
    true = classes == targets.unsqueeze(1)
    score = torch.where(true, outputs, torch.zeros_like(outputs)).sum(1)
    rival = torch.where(true, torch.full_like(outputs, -torch.inf), outputs).amax(1)
    return F.relu(1.0 + rival - score)


def _hinge(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.relu(1.0 - targets * outputs)


def _nll(outputs: Tensor, targets: Tensor) -> Tensor:
    """``-outputs[i, targets[i]]``, written out: PyTorch's own takes thirty operations in a block of clients, and loads sympy."""
    classes = torch.arange(outputs.shape[1], device=outputs.device).reshape(-1, *[1] * (outputs.dim() - 2))
    return -torch.where(targets.unsqueeze(1) == classes, outputs, 0.0).sum(1)


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return _nll(F.log_softmax(outputs, 1), targets)


def _list_objectives() -> dict[str, Objective]:
    def elementwise(name: str, fn: Callable[[Tensor, Tensor], Tensor], task: str) -> Objective:
        return Objective(name, lambda outputs, targets: fn(*_like(outputs, targets)), task)

    return {
        "cross_entropy": Objective("cross_entropy", _cross_entropy, "classes"),
        "nll": Objective("nll", _nll, "classes"),
        "multiclass_hinge": Objective("multiclass_hinge", _multiclass_hinge, "classes"),
        "mse": elementwise("mse", lambda o, t: (o - t) ** 2, "values"),
        "l1": elementwise("l1", lambda o, t: (o - t).abs(), "values"),
        "bce": elementwise("bce", lambda o, t: F.binary_cross_entropy_with_logits(o, t, reduction="none"), "signs"),
        "hinge": elementwise("hinge", _hinge, "signs"),
        "squared_hinge": elementwise("squared_hinge", lambda o, t: _hinge(o, t) ** 2, "signs"),
    }


LOSSES: dict[str, Objective] = _list_objectives()
"""``cross_entropy`` and ``nll`` (log-probabilities) over classes; ``multiclass_hinge``; ``mse``, ``l1``; ``bce`` on logits with 0/1
labels; ``hinge`` = ``max(0, 1 - y s)`` and its square with -1/+1 labels."""


def objective_of(loss: str | Objective | Callable[..., Any], outputs: int | None = None) -> Objective:
    """Return the loss of a name, or of a callable; see `atoll.learn.local.own_loss.LossSignature` for what a callable may ask for.

    ``"hinge"`` is the binary one for a model with one output and Crammer and Singer's for several.

    Raises:
        ConfigError: no loss has this name, or it is a class in place of an instance.
    """
    if isinstance(loss, Objective):
        return loss
    _require_instance(loss)
    if callable(loss):
        signature = LossSignature.of(loss)
        if isinstance(loss, OwnLoss):
            return Objective(signature.title, loss, loss.task, signature, loss.form)
        return Objective(signature.title, loss, signature=signature, form="")
    if loss not in LOSSES:
        raise ConfigError(
            f"loss={loss!r} is not known.{nearest(str(loss), LOSSES)}",
            remedy=f"use one of {', '.join(LOSSES)}, or a callable (outputs, targets) -> loss",
        )
    if loss == "hinge" and outputs is not None and outputs > 1:
        return LOSSES["multiclass_hinge"]
    return LOSSES[loss]


def form_of(objective: Objective, values: Any, rows: int) -> str:
    """Return the form of a loss, from what it returned for some rows.

    Raises:
        DataError: neither a number nor a loss for each row.
    """
    if isinstance(values, torch.Tensor) and values.dim() == 0:
        return "batch" if "real" in objective.signature.names else "mean"
    if isinstance(values, torch.Tensor) and len(values) == rows and values.is_floating_point():
        return "rows"
    returned = f"a tensor {tuple(values.shape)}" if isinstance(values, torch.Tensor) else f"a {type(values).__name__}"
    raise DataError(
        f"the loss {objective.name!r} returns {returned} for {rows} rows",
        where="Training.loss",
        remedy="return one number, or a loss for each row: (rows,) or (rows, ...)",
    )


def _require_instance(loss: Any) -> None:
    """Refuse a module's class: a call with outputs and targets would construct it."""
    if inspect.isclass(loss) and issubclass(loss, torch.nn.Module):
        raise ConfigError(
            f"loss={loss.__name__} is a class",
            where="Training.loss",
            remedy=f"give an instance: loss={loss.__name__}(), as in loss=nn.CrossEntropyLoss()",
        )
