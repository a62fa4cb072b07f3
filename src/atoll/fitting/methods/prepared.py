"""Columns prepared, and nothing fitted to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import CompositionError, ConfigError
from atoll.core.extras import need
from atoll.fitting.method import FitMethod, Known, State
from atoll.fitting.rows import PartyRows

__all__ = ["Columns"]


@dataclass(frozen=True, kw_only=True)
class Columns(FitMethod):
    """Imputers, encoders and scalers alone, for any learner: `FittedModel.dataset` makes data sets with the same columns at all parties.

    Attributes:
        label_is: ``"class"`` or ``"number"``; empty without a label.
    """

    label_is: str = ""

    def __post_init__(self) -> None:
        if self.label_is not in ("", "class", "number"):
            raise ConfigError(f"label_is={self.label_is!r}", remedy="use 'class' or 'number', or leave it out")

    @property
    def target(self) -> Any:  # type: ignore[override]
        """What the label is."""
        return self.label_is

    def start(self, known: Known) -> State:
        """Nothing is left to ask."""
        del known
        return {"phase": "prepared", "done": True}

    def result(self, state: State) -> dict[str, Any]:
        """No parameters: the columns have them all."""
        del state
        return {}

    def estimator(self, params: Mapping[str, Any], classes: Sequence[str]) -> Any:
        """`sklearn.preprocessing.FunctionTransformer`, which leaves prepared columns as they are."""
        del params, classes
        return need("sklearn.preprocessing", "sklearn", "a pipeline").FunctionTransformer()

    def predict(self, params: Mapping[str, Any], rows: PartyRows, classes: Sequence[str]) -> NDArray[Any]:
        """The prepared rows, ``(rows, features)``."""
        del params, classes
        return np.asarray(rows.x)

    def score(self, params: Mapping[str, Any], rows: PartyRows, classes: Sequence[str]) -> float:
        """Refused: columns predict nothing."""
        raise CompositionError(
            "prepared columns have no score", where="Columns", remedy="train a learner on FittedModel.dataset"
        )
