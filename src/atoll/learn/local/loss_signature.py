"""The inputs that a loss needs, read from the names of its parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

from atoll.core.errors import ConfigError, DataError, nearest

__all__ = ["LABELLED", "PLAIN_LOSS", "LossSignature", "any_takes_target"]

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

    The first two parameters are the model's output and the target. If the first is called ``model``, the loss runs the model itself, and
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
        places: positional inputs: ``("output", "target")``, fewer if the loss takes fewer.
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
        return cls(places, (*by_place[2:], *by_name), title)

    def joined(self, *others: LossSignature) -> LossSignature:
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
