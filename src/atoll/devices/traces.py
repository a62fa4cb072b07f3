"""Crashes by turn and device, drawn by a seed or recorded. Every method that runs under the same trace meets the same crashes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from atoll.core.calls import checked_call
from atoll.core.errors import ConfigError
from atoll.core.validation import Checked

from .draws import DrawnPopulation, key_of, uniforms
from .files.traces import read_trace, write_trace
from .traits import Trait, lift, probability

__all__ = ["GeneratedTrace", "Recorded", "Span", "Trace", "load_trace"]

Span = Literal["training", "response"]
"""The base of crash points: the training, or everything from the download to the upload."""
Law = Literal["during", "before", "uniform"]


@dataclass(frozen=True)
class Trace(Checked):
    """Which devices crash in which turn, and how far they get."""

    @property
    def span(self) -> Span:
        """What ``point`` is a share of."""
        raise NotImplementedError

    def at(
        self, turn: int, population: DrawnPopulation, positions: NDArray[np.int64]
    ) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
        """Whether each of these devices crashes in a turn, and at which point, in [0, 1)."""
        raise NotImplementedError

    def require_turns(self, last: int, devices: int) -> None:
        """Refuse a run of this many devices whose last turn is not in the trace."""
        del last, devices

    def check_regions(self, names: tuple[str, ...]) -> None:
        """Refuse regions that do not exist."""
        del names


@dataclass(frozen=True, eq=False)
class GeneratedTrace(Trace):
    """Crashes as a pure function of seed, turn and device, independent of the devices asked and their order.

    Args:
        crash: probability that a device crashes in a turn.
        point: where in its work a device crashes: anywhere ``"during"`` its training, ``"before"`` it, at a ``"uniform"`` instant of its whole response,
            or at a given share of its training.
        outage: additional probability that a whole region crashes in a turn.
        seed: seed of the draws.
    """

    crash: Trait = 0.0
    point: Law | float = "during"
    outage: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "crash", probability(self.crash, "crash", "GeneratedTrace"))
        probability(self.outage, "outage", "GeneratedTrace")
        fixed = isinstance(self.point, int | float)
        if not (0.0 <= self.point < 1.0 if fixed else self.point in get_args(Law)):  # type: ignore[operator]
            raise ConfigError(
                f"point={self.point!r}",
                where="GeneratedTrace",
                remedy="use 'during', 'before', 'uniform', or a share of the training from 0 to below 1",
            )

    @property
    def span(self) -> Span:
        """The whole response for ``"uniform"``, else the training."""
        return "response" if self.point == "uniform" else "training"

    def at(
        self, turn: int, population: DrawnPopulation, positions: NDArray[np.int64]
    ) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
        """Draw the crashes."""
        chance = population.column(lift(self.crash), key_of(self.seed, "crash probability"), positions)
        crashed = uniforms(key_of(self.seed, "crash", turn), positions) < chance
        if self.outage:
            out = uniforms(key_of(self.seed, "outage", turn), np.arange(len(population.names))) < self.outage
            crashed |= out[population.region[positions]]
        if self.point in ("during", "uniform"):
            return crashed, uniforms(key_of(self.seed, "point", turn), positions)
        return crashed, np.full(len(positions), 0.0 if self.point == "before" else float(self.point))

    def check_regions(self, names: tuple[str, ...]) -> None:
        """Refuse regions that do not exist."""
        lift(self.crash).check_regions(names, "crash")


@dataclass(frozen=True, eq=False)
class Recorded(Trace):
    """Crashes as arrays: recorded from a fleet, measured by you, or a mixture.

    Attributes:
        crashed: by turn and device, shape ``(turns, devices)``. The rounds of a training are its turns 1, 2, ...; row 0 is for the time before.
        point: how far each device gets if it crashes; elsewhere 0. Shape ``(turns, devices)``.
        within: what ``point`` is a share of.
        wrap: whether to start again after the last turn, instead of raising an error.
    """

    crashed: NDArray[np.bool_]
    point: NDArray[np.float64]
    within: Span = "training"
    wrap: bool = False
    _where: str = field(default="trace", repr=False)

    def __post_init__(self) -> None:
        crashed = np.asarray(self.crashed)
        if crashed.ndim != 2 or crashed.dtype != np.bool_ or not len(crashed):
            raise ConfigError(
                f"crashed has shape {crashed.shape} and dtype {crashed.dtype}",
                where=self._where,
                remedy="give booleans of shape (turns, devices)",
            )
        point = np.where(crashed, np.asarray(self.point, dtype=np.float64), 0.0)
        if not ((point >= 0.0) & (point <= 1.0)).all():
            raise ConfigError("point has values outside [0, 1]", where=self._where, remedy="give shares of the work")
        if self.within not in get_args(Span):
            raise ConfigError(f"within={self.within!r}", where=self._where, remedy="use 'training' or 'response'")
        for name, column in (("crashed", crashed), ("point", point)):
            column.flags.writeable = False
            object.__setattr__(self, name, column)

    def __len__(self) -> int:
        """The number of turns."""
        return len(self.crashed)

    def __getitem__(self, which: Any) -> Recorded:
        """Some turns, or turns and devices: ``trace[:10]``, ``trace[:, :50]``. The first turn of the slice becomes turn 0."""
        return replace(self, crashed=self.crashed[which].copy(), point=self.point[which].copy())

    @property
    def span(self) -> Span:
        """The span that was recorded."""
        return self.within

    def at(
        self, turn: int, population: DrawnPopulation, positions: NDArray[np.int64]
    ) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
        """Look up the crashes.

        Raises:
            ConfigError: the trace is shorter than the run, or has other devices.
        """
        self._require(f"turn {turn} is requested", turn, population.size)
        row = turn % len(self)
        return self.crashed[row, positions], self.point[row, positions]

    def require_turns(self, last: int, devices: int) -> None:
        """Refuse a run that is longer than the trace, or has other devices.

        Raises:
            ConfigError: the run is longer, or has other devices.
        """
        self._require(f"the run has turns up to {last}", last, devices)

    def _require(self, what: str, turn: int, size: int) -> None:
        turns, devices = self.crashed.shape
        if size != devices:
            raise ConfigError(
                f"the trace has {devices} devices but the run has {size}",
                where=self._where,
                remedy="record a trace for this population",
            )
        if turn >= turns and not self.wrap:
            raise ConfigError(
                f"{what}, but the trace has {turns} (0 to {turns - 1})",
                where=self._where,
                remedy="record more turns, or start again after the last with wrap=True",
            )

    def save(self, path: str | Path) -> Path:
        """Write the trace to one file: NumPy's zipped arrays with a checked header, never pickled."""
        return write_trace(Path(path), self.crashed, self.point, self.within)


@checked_call
def load_trace(path: str | Path, wrap: bool = False) -> Recorded:
    """Read a trace from a file.

    Args:
        path: the file.
        wrap: whether to start again after the last turn.

    Raises:
        ConfigError: the file is not a trace, is of a later version, or is damaged.
    """
    crashed, point, within = read_trace(Path(path))
    return Recorded(crashed, point, within, wrap, str(path))
