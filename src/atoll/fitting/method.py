"""`FitMethod`: what a party sends, what the server makes of it, and when it stops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra.rng import name_order
from atoll.core.errors import CompositionError, ConfigError, DataError
from atoll.core.validation import Checked

from .numerics import describe_design
from .rows import FeatureLayout, PartyRows

if TYPE_CHECKING:
    from atoll.core.event import Event

__all__ = ["OWN", "AtParty", "FitMethod", "Known", "State", "Sums", "positive"]

State = dict[str, Any]
"""What parties and the server know: a tree with ``phase``, and ``done`` at the end. What is below `OWN` the server keeps for itself."""
OWN = "own"
Sums = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Known:
    """What the server knows before the first contact.

    Attributes:
        layout: the columns.
        draw: random numbers of the run's seed.
        sums_only: whether the server sees only sums.
        least: the minimum count.
    """

    layout: FeatureLayout
    draw: np.random.Generator
    sums_only: bool = False
    least: int = 1

    @property
    def features(self) -> int:
        """Number of features."""
        return len(self.layout.features)

    def require_classes(self, where: str) -> None:
        """Refuse a label of one class.

        Raises:
            DataError: names it.
        """
        if len(self.layout.classes) < 2:
            raise DataError(
                f"the label has one class, {', '.join(self.layout.classes)}",
                where=where,
                remedy="give a label of at least two classes",
            )

    def draw_rows(self, count: int) -> NDArray[np.float64]:
        """Return standard normal numbers, ``(count, features)``, drawn in the order of the features' names: no order of columns changes them."""
        drawn = self.draw.normal(size=(count, self.features))
        drawn[:, name_order(self.layout.features)] = drawn.copy()
        return drawn


@dataclass
class AtParty:
    """What a party has beside its rows.

    Attributes:
        rng: random numbers of this request.
        secret: entropy for noise.
        memory: what the method kept here at the last contact; assign to keep.
    """

    rng: np.random.Generator
    secret: Any
    memory: Any = None


@dataclass(frozen=True, kw_only=True)
class FitMethod(Checked):
    """Base class of methods: models that follow from sums over rows.

    A contact sends the state to all parties. Each answers with arrays that add up (`reply`), or in phases named in ``singly`` with arrays that are seen one by one
    (`proposal`), and the server makes the next state of them (`step`, `gather`). A party with fewer than ``min_count`` rows answers as one without rows.

    Attributes:
        target: what the label is: nothing, a class, or a number.
        featured: whether the method looks at features.
        singly: phases whose replies the server sees one by one; a secure reducer refuses them.
        measure: what `score` returns: larger is better, unless it is an error.
    """

    target: ClassVar[Literal["", "class", "number"]] = ""
    featured: ClassVar[bool] = True
    singly: ClassVar[frozenset[str]] = frozenset()
    measure: ClassVar[str] = ""

    @property
    def coding(self) -> str:
        """How categories become features where `Fit.encode` does not say: a feature a value."""
        return "onehot"

    @property
    def extra(self) -> tuple[str, ...]:
        """Columns that are read beside the features."""
        return ()

    @property
    def grouped(self) -> tuple[str, ...]:
        """Those of ``extra`` that hold groups, whose values must be agreed or told."""
        return ()

    def events(self) -> tuple[Event, ...] | None:
        """The differential privacy of all that a party tells; ``None`` if it has no noise."""
        return None

    def check(self, known: Known) -> None:
        """Refuse what cannot be computed, before the first contact of the method.

        Raises:
            AtollError: names the setting.
        """
        del known

    def start(self, known: Known) -> State:
        """The first state."""
        raise NotImplementedError

    def reply(self, rows: PartyRows, state: State, party: AtParty) -> Sums:
        """What a party adds to the sums."""
        raise NotImplementedError

    def step(self, state: State, sums: Mapping[str, NDArray[Any]], known: Known) -> State:
        """The next state."""
        raise NotImplementedError

    def proposal(self, rows: PartyRows, state: State, party: AtParty) -> Sums:
        """What a party tells alone, in phases named in ``singly``."""
        raise NotImplementedError

    def gather(self, state: State, told: Sequence[Mapping[str, NDArray[Any]]], known: Known) -> State:
        """The next state after proposals."""
        raise NotImplementedError

    def measures(self, state: State) -> dict[str, float]:
        """Numbers to record after a contact."""
        del state
        return {}

    def result(self, state: State) -> dict[str, Any]:
        """The fitted parameters: arrays and plain numbers."""
        raise NotImplementedError

    def notes(self, features: Sequence[str], params: Mapping[str, Any]) -> list[str]:
        """What people must know of a result, a sentence each."""
        return describe_design(features, params)

    def estimator(self, params: Mapping[str, Any], classes: Sequence[str]) -> Any:
        """A fitted scikit-learn estimator.

        Raises:
            CompositionError: scikit-learn has no such estimator.
        """
        raise CompositionError(
            f"scikit-learn has no estimator for {type(self).__name__}",
            where=type(self).__name__,
            remedy="use the numbers of the result, and its predict",
        )

    def predict(self, params: Mapping[str, Any], rows: PartyRows, classes: Sequence[str]) -> NDArray[Any]:
        """Predictions for rows, ``(rows,)``: those of the estimator."""
        return np.asarray(self.estimator(params, classes).predict(rows.x))

    @property
    def probable(self) -> bool:
        """Whether the method has probabilities of classes."""
        return False

    def probabilities(self, params: Mapping[str, Any], rows: PartyRows, classes: Sequence[str]) -> NDArray[Any]:
        """The probabilities of the classes, ``(rows, classes)``, of a method that is ``probable``: those of the estimator."""
        return np.asarray(self.estimator(params, classes).predict_proba(rows.x))

    def score(self, params: Mapping[str, Any], rows: PartyRows, classes: Sequence[str]) -> float:
        """How good the model is on rows; see ``measure``."""
        raise NotImplementedError


def positive(method: FitMethod, **least: float) -> None:
    """Refuse settings below a least value.

    Raises:
        ConfigError: names the setting.
    """
    for name, low in least.items():
        value = getattr(method, name)
        if not low <= value < np.inf:
            raise ConfigError(
                f"{name}={value}", where=type(method).__name__, remedy=f"use a finite number of at least {low}"
            )
