"""The base class of corruptions, and what it can see of the population."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import DataError
from atoll.core.validation import Checked

from .._checks import Array
from ..dataset import Dataset

__all__ = ["Corruption", "CorruptionScope"]

Columns = dict[str, Array]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class CorruptionScope:
    """The population that a corrupted client belongs to.

    Ranges are one number for images (``x`` with three or more dimensions) and one per feature for tables.

    Attributes:
        sample: rows that represent the population: all of them if they are in one pool.
        clients: number of clients.
    """

    sample: Dataset
    clients: int

    @cached_property
    def low(self) -> Floats:
        """Smallest value of ``x``."""
        return np.ma.filled(self._known.min(axis=self._axes), 0.0).astype(np.float64)

    @cached_property
    def high(self) -> Floats:
        """Largest value of ``x``."""
        return np.ma.filled(self._known.max(axis=self._axes), 0.0).astype(np.float64)

    @cached_property
    def spread(self) -> Floats:
        """Standard deviation of ``x``."""
        return np.ma.filled(self._known.std(axis=self._axes, dtype=np.float64), 0.0)

    @property
    def classes(self) -> int | None:
        """Number of classes."""
        return self.sample.classes

    @property
    def _known(self) -> Any:
        """``x``, without the features that are missing."""
        return np.ma.masked_invalid(self.sample.x) if self.sample.about.missing_features else self.sample.x

    @property
    def _axes(self) -> int | None:
        return 0 if self.sample.x.ndim == 2 else None


class Corruption(Checked):
    """A way to corrupt one client's rows. Subclass it to add one, as a frozen dataclass."""

    name: ClassVar[str]

    @abstractmethod
    def apply(self, columns: Columns, client: int, rng: np.random.Generator, scope: CorruptionScope) -> Columns:
        """Return the columns to replace.

        Args:
            columns: the client's columns; read-only.
            client: the client's number.
            rng: keyed by (seed, corruption, client).
            scope: the population.
        """

    def check(self, scope: CorruptionScope) -> None:
        """Refuse data that this corruption does not support; called once, before any client is corrupted."""
        need_numbers(scope.sample, self.name)


def need_numbers(sample: Dataset, name: str) -> None:
    """Refuse data without numeric features."""
    if "x" not in sample or sample.x.dtype.kind not in "biuf":
        raise DataError(
            f"the corruption {name!r} needs a numeric column 'x'",
            where=f"data set {sample.name!r}",
            remedy="use a corruption of the labels, or encode the features first",
        )


def like(values: Array, x: Array) -> Array:
    """Return values in the dtype of ``x``: rounded and clipped if it has integers."""
    if x.dtype.kind in "iu":
        bounds = np.iinfo(x.dtype)
        values = np.clip(np.rint(values), bounds.min, bounds.max)
    return values.astype(x.dtype)
