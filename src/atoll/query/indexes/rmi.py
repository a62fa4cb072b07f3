"""The recursive model index."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from .registry import Floats, KeyIndex, Places, search_within

__all__ = ["RecursiveModelIndex"]

_KEYS_A_MODEL = 128


class RecursiveModelIndex(KeyIndex):
    """Two levels of linear models: the first chooses one of the second, which says where a key is (Kraska et al. 2018, "The Case for Learned Index Structures", RMI).

    A model of the second level knows its largest error on its keys. All models ascend, so a number between two keys is predicted between them, and one place more than the error bounds where it belongs.
    The first level is a line through the first and the last key; the paper tries others too.
    """

    name: ClassVar[str] = "rmi"

    def build(self, keys: Floats) -> None:
        """Fit both levels."""
        n = len(keys)
        self._keys, models = keys, max(1, n // _KEYS_A_MODEL)
        self._zero = keys[0] if n else 0.0
        width = keys[-1] - self._zero if n else 0.0
        self._pace = models / width if width > 0 and np.isfinite(models / width) else 0.0
        self._models = models
        chosen = self._choose(keys)
        self._first = np.searchsorted(chosen, np.arange(models + 1)).astype(np.int64)
        counts = np.diff(self._first)
        places, shifted = np.arange(n, dtype=np.float64), keys - self._zero

        def summed(x: Floats) -> Floats:
            made: Floats = np.asarray(np.bincount(chosen, x, models), np.float64)
            return made

        # A line through the means, of the keys of each model.
        whole = np.maximum(counts, 1)
        self._middle = summed(shifted) / whole
        self._place = summed(places) / whole
        apart = shifted - self._middle[chosen]
        with np.errstate(all="ignore"):
            slope = summed(apart * (places - self._place[chosen])) / summed(apart * apart)
        self._slope = np.where(np.isfinite(slope) & (slope > 0), slope, 0.0)
        miss = np.abs(self._predict(chosen, shifted) - places)
        self._error = np.zeros(models)
        np.maximum.at(self._error, chosen, miss)

    def _choose(self, asked: Floats) -> Places:
        with np.errstate(over="ignore"):
            made = np.clip((asked - self._zero) * self._pace, 0, self._models - 1)
        return made.astype(np.int64)

    def _predict(self, model: Places, shifted: Floats) -> Floats:
        with np.errstate(over="ignore"):
            made: Floats = (shifted - self._middle[model]) * self._slope[model] + self._place[model]
        return made

    def rank(self, asked: Floats) -> Places:
        """Predict, and search within the error."""
        if not len(self._keys):
            return np.zeros(len(asked), np.int64)
        model = self._choose(asked)
        with np.errstate(over="ignore"):
            guess = np.nan_to_num(self._predict(model, asked - self._zero))
        begin, end = self._first[model], self._first[model + 1]
        error = self._error[model] + 1
        low = np.clip(np.floor(guess - error), begin, end).astype(np.int64)
        high = np.clip(np.ceil(guess + error), begin, end).astype(np.int64)
        return search_within(self._keys, asked, low, high)
