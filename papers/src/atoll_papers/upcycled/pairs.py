"""A base with its Upcycled version, and the same at the base's rate: the cells of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from atoll.reproduce import Lab, NotKept

from .cells import UpcycledCell, UpcycledProtocol, cell, tuned
from .methods import COEFFICIENT, UpcycledMethod

__all__ = [
    "SEEDS",
    "Chosen",
    "Key",
    "PairedCells",
    "Pairs",
    "at_base_rate",
    "chosen_at",
    "decided",
    "over_populations",
    "pairs_of",
]

SEEDS = 4
"""Seeds from which a standard error says something."""
Key = tuple[str, str]
"""``(base, kind)``."""


@dataclass(frozen=True)
class PairedCells:
    """A base and its Upcycled version on a population, with the seeds that both ran.

    Attributes:
        base: its cell.
        upcycled: its cell.
    """

    base: UpcycledCell
    upcycled: UpcycledCell

    @classmethod
    def of(cls, base: UpcycledCell, upcycled: UpcycledCell) -> PairedCells:
        """Pair two cells, one of which may have been stopped early."""
        n = min(len(base.values), len(upcycled.values))
        return cls(*(replace(found, values=found.values[:n]) for found in (base, upcycled)))

    @property
    def gains(self) -> np.ndarray:
        """Return percentage points, seed by seed."""
        return np.asarray(100 * (self.upcycled.values - self.base.values))

    @property
    def error(self) -> float:
        """Return the standard error of the mean gain; 0 with one seed."""
        return _error(self.gains)

    def __str__(self) -> str:
        return f"{self.base} -> {self.upcycled} ({self.gains.mean():+.2f} ± {self.error:.2f})"


def decided(gains: np.ndarray, error: float) -> bool | None:
    """Tell whether a mean is positive or negative beyond noise, by more than two standard errors of `SEEDS` seeds or more; ``None`` if it is neither."""
    mean = float(gains.mean())
    return mean > 0 if len(gains) >= SEEDS and abs(mean) > 2 * error else None


def over_populations(gains: Sequence[np.ndarray]) -> tuple[np.ndarray, float]:
    """Return the mean over populations for each seed that all of them ran, and the standard error of the mean over seeds.

    Populations are those of the table, not draws: their differences are not noise. A seed is one draw of cohorts and
    initial weights for all of them, so its populations are not independent.

    Args:
        gains: of each population, seed by seed.
    """
    n = min(len(some) for some in gains)
    means = np.mean([some[:n] for some in gains], axis=0)
    return means, _error(means)


def _error(gains: np.ndarray) -> float:
    return float(gains.std(ddof=1) / len(gains) ** 0.5) if len(gains) > 1 else 0.0


Chosen = Mapping[Key, tuple[UpcycledMethod, UpcycledMethod]]
"""The settings of a base and of its Upcycled version, chosen elsewhere."""
Pairs = Mapping[Key, PairedCells | None]
"""The cells of a table; ``None`` where nothing could be trained and it was not kept."""


def chosen_at(rates: Mapping[Key, tuple[float, float]], u: float = COEFFICIENT) -> Chosen:
    """Return settings with given learning rates, ``(the base's, its Upcycled version's)``, and one coefficient."""
    return {
        (base, kind): (UpcycledMethod(base, "base", own), UpcycledMethod(base, "upcycled", up, u))
        for (base, kind), (own, up) in rates.items()
    }


def pairs_of(
    lab: Lab, protocol: UpcycledProtocol, kinds: Sequence[str], bases: Sequence[str], chosen: Chosen | None = None
) -> dict[Key, PairedCells | None]:
    """Tune and run every cell.

    Args:
        lab: runs and keeps trainings.
        protocol: how much is run.
        kinds: populations.
        bases: some of the seven bases.
        chosen: settings instead of tuning.
    """
    return {(base, kind): _pair(lab, protocol, base, kind, chosen) for kind in kinds for base in bases}


def _pair(lab: Lab, protocol: UpcycledProtocol, base: str, kind: str, chosen: Chosen | None) -> PairedCells | None:
    try:
        if chosen is None:
            own, up = (tuned(lab, base, way, kind, protocol) for way in ("base", "upcycled"))
        else:
            own, up = chosen[base, kind]
        return PairedCells.of(cell(lab, own, kind, protocol), cell(lab, up, kind, protocol))
    except NotKept:
        return None


def at_base_rate(
    lab: Lab, protocol: UpcycledProtocol, kind: str, pair: PairedCells, u: float = COEFFICIENT
) -> PairedCells | None:
    """Run Upcycled at the learning rate picked for its base, so that a different rate cannot explain the result."""
    try:
        return PairedCells.of(pair.base, cell(lab, replace(pair.base.method, way="upcycled", u=u), kind, protocol))
    except NotKept:
        return None
