"""What a loss asks for, read off the names of its parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from atoll.core.errors import ConfigError, DataError, nearest

__all__ = ["LABELLED", "PLAIN_LOSS", "LossSignature"]

LABELLED = "labelled"
"""The column that says which labels are there: true or false, one a row or one an entry of ``y``. Without it all are."""

_GIVEN = ("model", "x", "target", LABELLED, "index", "real", "round", "broadcast", "rng")
_TRAINING = frozenset({"model", "round", "broadcast", "rng"})


@dataclass(frozen=True)
class LossSignature:
    """What a loss asks for.

    The first two parameters are the model's output and the target. If the first one is called ``model``, the loss runs the model itself, and
    all parameters come by name. A parameter with a default belongs to the loss: nothing fills it. The names:

    =============  ===========================================================================================================
    ``model``      ``model(x)``: the model with the client's current parameters; ``model(x, params, training=False)`` with others
    ``x``          inputs of the mini-batch
    ``target``     targets of the mini-batch
    ``labelled``   which labels are there, booleans of one a row or one an entry of the target; all where the data have no such column
    ``index``      number of each row among the client's rows, from 0
    ``real``       1.0 for a row, 0.0 for padding, ``(rows,)``: for a loss that reduces the batch itself
    ``round``      number of the contact, from 1
    ``broadcast``  what the server sent: ``broadcast["params"]``, and what else the algorithm sends
    ``rng``        random numbers that follow from the client, the round and the step alone
    another name   the column of the data set with this name
    =============  ===========================================================================================================

    Attributes:
        places: what is given by place: ``("output", "target")``, fewer where the loss takes fewer.
        names: what is given by name.
        title: of the loss, for messages.
    """

    places: tuple[str, ...] = ("output", "target")
    names: tuple[str, ...] = ()
    title: str = "loss"

    @classmethod
    def of(cls, loss: Any) -> LossSignature:
        """That of a loss: a name asks for nothing, a callable for its parameters without a default."""
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

    @property
    def columns(self) -> tuple[str, ...]:
        """Names that only a column of the data set can answer."""
        return tuple(name for name in self.names if name not in _GIVEN)

    @property
    def takes_target(self) -> bool:
        """Whether it looks at the targets."""
        return "target" in self.places or bool({"target", "y"} & set(self.names))

    @property
    def trains_only(self) -> tuple[str, ...]:
        """What it asks for that is there in training alone: such a loss cannot be evaluated."""
        missing = () if "output" in self.places else ("model",)
        return tuple(sorted({*missing, *(_TRAINING & set(self.names))}))

    def wants(self, have: Collection[str]) -> tuple[str, ...]:
        """The columns beside ``x`` and ``y`` that it needs of data that have these columns, in a fixed order.

        Raises:
            DataError: it asks for a column that the data do not have.
        """
        for name in self.columns:
            if name not in have:
                known = (*_GIVEN, *have)
                raise DataError(
                    f"the loss {self.title!r} asks for {name!r}, and the data have no such column.{nearest(name, known)}",
                    where="Training.loss",
                    remedy=f"ask for one of {', '.join(_GIVEN)}, or a column of the data ({', '.join(have)}); "
                    "give a parameter of the loss itself a default",
                )
        extra = [name for name in self.columns if name not in ("x", "y")]
        if LABELLED in have and (LABELLED in self.names or self.takes_target):
            extra.append(LABELLED)
        if "index" in self.names:
            extra.append("index")
        return tuple(sorted(extra))

    def refuse_training(self, who: str, remedy: str) -> None:
        """Refuse a loss that asks for what is there in training alone, where it is only evaluated.

        Raises:
            ConfigError: it does.
        """
        if self.trains_only:
            raise ConfigError(
                f"the loss {self.title!r} asks for {', '.join(self.trains_only)}, and {who} only evaluates it",
                where="Training.loss",
                remedy=remedy,
            )


PLAIN_LOSS = LossSignature()
"""Output and target."""


def _parameters(loss: Callable[..., Any]) -> tuple[list[str], list[str]] | None:
    """Parameters without a default: those that can come by place, and the others; ``None`` where Python does not know them."""
    try:
        found = inspect.signature(getattr(loss, "forward", loss)).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_POSITIONAL for p in found):
        return None
    needed = [p for p in found if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    by_name = [p.name for p in needed if p.kind is p.KEYWORD_ONLY]
    return [p.name for p in needed if p.kind is not p.KEYWORD_ONLY], by_name
