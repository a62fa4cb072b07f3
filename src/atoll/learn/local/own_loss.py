"""Losses: those that a method brings with it, how an algorithm's or a user's loss is called, and targets that fit it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.errors import ConfigError, DataError, nearest
from atoll.core.redaction import private

from .argument_order import read_order

__all__ = [
    "LABELLED",
    "LOSS_NAMES",
    "LossSignature",
    "OutputsError",
    "OwnLoss",
    "PLAIN_LOSS",
    "any_takes_target",
    "check_classes",
    "check_shape",
    "check_signs",
]


class OwnLoss:
    """Base class of an algorithm's losses (`atoll.learn.Algorithm.losses`): frozen dataclasses, so that equal settings are one loss.

    ``__call__`` asks for its inputs by name, as in `atoll.learn.local.own_loss.LossSignature`.

    Attributes:
        form: what it returns: ``"batch"``, one number for the mini-batch, which leaves out padding by the input ``real``; ``"rows"``, a loss for each
            row.
        task: what labels must be: ``"classes"``, whole numbers ``0..C-1`` for a model with ``C`` outputs, or ``""`` for anything.
    """

    form: ClassVar[str] = "batch"
    task: ClassVar[str] = ""

    @property
    def fewest(self) -> int:
        """Rows that a client needs; one with fewer, and not none, is refused."""
        return 1

    if TYPE_CHECKING:
        __call__: Callable[..., Any]
    else:

        def __call__(self, **inputs: Any) -> Any:
            """Return the loss of a mini-batch, a number or one for each row."""
            raise NotImplementedError


# ---------------------------------------------------------------- the inputs that a loss needs


LABELLED = "labelled"
"""The column that says which labels are known: true or false, one per row or per entry of ``y``. Without it, all are."""

_GIVEN = ("model", "x", "target", LABELLED, "index", "keys", "real", "round", "broadcast", "rng")
_TRAINING = frozenset({"model", "keys", "round", "broadcast", "rng"})


def any_takes_target(losses: Iterable[Any]) -> bool:
    """Return whether one of some losses uses the targets."""
    return any(LossSignature.of(loss).takes_target for loss in losses)


@dataclass(frozen=True)
class LossSignature:
    """The inputs that a loss needs.

    The first two parameters are the model's output and the target, or the target and the output if their names say so, as ``(y_true, y_pred)`` do; see
    `atoll.learn.local.argument_order`. If the first is called ``model``, the loss runs the model itself, and
    all parameters are passed by name. A parameter with a default belongs to the loss: Atoll does not fill it. The names:

    =============  ===========================================================================================================
    ``model``      ``model(x)``: the model with the client's current parameters; ``model(x, params, training=False)`` with others, for all or
                   some of the names
    ``x``          inputs of the mini-batch
    ``target``     targets of the mini-batch
    ``labelled``   which labels are known, booleans, one per row or per entry of the target; all, if the data have no such column
    ``index``      number of each row among the client's rows, from 0
    ``keys``       a random key of each row, int64 ``(rows,)``: a function of the client, the round, the step and ``index`` alone
    ``real``       1.0 for a row, 0.0 for padding, ``(rows,)``; for a loss that reduces the batch itself
    ``round``      number of the contact, from 1
    ``broadcast``  what the server sent: ``broadcast["params"]``, and the algorithm's other entries
    ``rng``        random numbers that depend only on the client, the round and the step
    another name   the column of the data set with this name
    =============  ===========================================================================================================

    Attributes:
        places: positional inputs: ``("output", "target")``, the other way round if their names say so, fewer if the loss takes fewer.
        names: inputs passed by name.
        title: the loss's name in messages.
    """

    places: tuple[str, ...] = ("output", "target")
    names: tuple[str, ...] = ()
    title: str = "loss"

    @classmethod
    def of(cls, loss: Any) -> LossSignature:
        """Return the signature of a loss: a name needs nothing, a callable its parameters without a default."""
        if not callable(loss):
            return cls(title=str(loss))
        title = getattr(loss, "__name__", type(loss).__name__)
        found = _parameters(loss)
        if found is None:
            return cls(title=title)
        by_place, by_name = found
        if by_place[:1] == ["model"]:
            return cls((), (*by_place, *by_name), title)
        places = ("output", "target")[: len(by_place)]
        if len(places) == 2 and read_order(loss).labels_first:
            places = ("target", "output")
        return cls(places, (*by_place[2:], *by_name), title)

    def join_columns(self, *others: LossSignature) -> LossSignature:
        """Return a signature that needs the columns of this one and of others; only ``columns``, ``takes_target`` and ``wants`` of it make sense."""
        if not others:
            return self
        every = (self, *others)
        names = dict.fromkeys(name for one in every for name in one.names)
        read = any(one.takes_target for one in every)
        return LossSignature(("output", "target") if read else (), tuple(names), self.title)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names that only a column of the data set can fill."""
        return tuple(name for name in self.names if name not in _GIVEN)

    @property
    def takes_target(self) -> bool:
        """Whether the loss uses the targets."""
        return "target" in self.places or bool({"target", "y"} & set(self.names))

    @property
    def trains_only(self) -> tuple[str, ...]:
        """Inputs that exist only in training: a loss with such inputs cannot be evaluated."""
        missing = () if "output" in self.places else ("model",)
        return tuple(sorted({*missing, *(_TRAINING & set(self.names))}))

    def wants(self, have: Collection[str]) -> tuple[str, ...]:
        """Return the columns other than ``x`` and ``y`` that the loss needs from data with these columns, in a fixed order.

        Raises:
            DataError: the loss needs a column that the data do not have.
        """
        for name in self.columns:
            if name not in have:
                known = (*_GIVEN, *have)
                raise DataError(
                    f"the loss {self.title!r} needs {name!r}, but the data have no such column.{nearest(name, known)}",
                    where="Training.loss",
                    remedy=f"use one of {', '.join(_GIVEN)}, or a column of the data ({', '.join(have)}); "
                    "give a default to a parameter of the loss itself",
                )
        extra = [name for name in self.columns if name not in ("x", "y")]
        if LABELLED in have and (LABELLED in self.names or self.takes_target):
            extra.append(LABELLED)
        if {"index", "keys"} & set(self.names):
            extra.append("index")
        return tuple(sorted(extra))

    def refuse_training(self, who: str, remedy: str) -> None:
        """Refuse a loss with inputs that exist only in training, if it is only evaluated.

        Raises:
            ConfigError: the loss has such inputs.
        """
        if self.trains_only:
            raise ConfigError(
                f"the loss {self.title!r} needs {', '.join(self.trains_only)}, but {who} only evaluates it",
                where="Training.loss",
                remedy=remedy,
            )


PLAIN_LOSS = LossSignature()
"""Output and target."""


def _parameters(loss: Callable[..., Any]) -> tuple[list[str], list[str]] | None:
    """Return parameters without a default: positional ones, and the others; ``None`` if Python does not know them."""
    try:
        found = inspect.signature(getattr(loss, "forward", loss)).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_POSITIONAL for p in found):
        return None
    needed = [p for p in found if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    by_name = [p.name for p in needed if p.kind is p.KEYWORD_ONLY]
    return [p.name for p in needed if p.kind is not p.KEYWORD_ONLY], by_name


# ---------------------------------------------------------------- targets


LOSS_NAMES = ("cross_entropy", "nll", "multiclass_hinge", "mse", "l1", "bce", "hinge", "squared_hinge")
"""All named losses, kept here so that a file can be checked without the library that computes them."""


class OutputsError(ValueError):
    """The cause of an error about a label beyond a model's outputs; a caller that knows the names of the classes can add them.

    Attributes:
        outputs: number of outputs.
    """

    def __init__(self, outputs: int) -> None:
        super().__init__(f"the model has {outputs} outputs")
        self.outputs = outputs


_ONE_SCORE = (
    ", or, for two classes and one score, use loss='bce' or 'hinge'; whole numbers are classes: if they are amounts such as counts, "
    "give them as fractions, y.astype(float), or read them with task='regression'"
)


def check_classes(name: str, shape: tuple[int, ...], labels: np.ndarray, where: str) -> None:
    """Refuse targets that are not classes, or classes without a score in the outputs.

    Args:
        name: the loss.
        shape: shape of the model's output; its first axis is the examples.
        labels: the targets, one row per example.
        where: the model or party, for the message.

    Raises:
        DataError: the targets do not fit.
    """
    if labels.dtype.kind not in "iub":
        raise DataError(
            f"loss {name!r} needs whole-number labels, not {labels.dtype}",
            where=where,
            remedy="encode the classes as 0..K-1, or use loss='mse'",
        )
    if len(shape) < 2 or len(shape) != labels.ndim + 1 or shape[2:] != labels.shape[1:]:
        raise DataError(
            f"the model's output has shape {('batch', *shape[1:])}, labels have {('batch', *labels.shape[1:])}",
            where=where,
            remedy=f"for loss {name!r} the model must return one score per class: (batch, classes, ...)",
        )
    if labels.size and (int(labels.max()) >= shape[1] or int(labels.min()) < 0):
        wrong = int(labels.max()) if int(labels.max()) >= shape[1] else int(labels.min())
        raise DataError(
            f"label {private(wrong)} does not fit a model with {shape[1]} outputs (classes 0..{shape[1] - 1})",
            where=where,
            remedy=f"give the model at least {private(max(wrong, 0) + 1)} outputs, or number the classes from 0"
            + (_ONE_SCORE if shape[1] == 1 else ""),
        ) from OutputsError(shape[1])


def check_shape(name: str, shape: tuple[int, ...], labels: np.ndarray, where: str) -> None:
    """Refuse another number of outputs than targets.

    Args:
        name: the loss.
        shape: shape of the model's output; its first axis is the examples.
        labels: the targets, one row per example.
        where: the model or party, for the message.

    Raises:
        DataError: the targets do not fit.
    """
    if int(np.prod(shape[1:])) != int(np.prod(labels.shape[1:])):
        raise DataError(
            f"the model's output has shape {('batch', *shape[1:])}, targets have {('batch', *labels.shape[1:])}",
            where=where,
            remedy=f"for loss {name!r} the model must return {int(np.prod(labels.shape[1:]))} value(s) per example",
        )


def check_signs(name: str, labels: np.ndarray, where: str) -> None:
    """Refuse labels other than the loss's two.

    Args:
        name: the loss.
        labels: the targets, one row per example.
        where: the model or party, for the message.

    Raises:
        DataError: the targets do not fit.
    """
    allowed = (-1, 1) if name.endswith("hinge") else (0, 1)
    if not np.isin(labels, allowed).all():
        wrong = labels[~np.isin(labels, allowed)].ravel()[0]
        raise DataError(
            f"label {private(wrong)} with loss {name!r}",
            where=where,
            remedy=f"encode the two classes as {allowed[0]} and {allowed[1]}",
        )
