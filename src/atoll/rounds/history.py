"""The record of a training, one row a round, and the efficiency metrics computed from it."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import ConfigError, MissingExtraError, nearest
from atoll.core.persistence.packed_rows import PackedRows

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from atoll.core.requests.party import Parties

__all__ = ["History", "Participation", "jain", "participation", "record_participants"]


_SELECTED, _REPLIED = "selected_clients", "replied_clients"


def record_participants(asked: Parties, replied: Parties) -> dict[str, list[int]]:
    """A round's record of who took part: positions of the parties asked, and of those whose replies were taken."""
    return {_SELECTED: asked.positions.tolist(), _REPLIED: replied.positions.tolist()}


@dataclass(frozen=True)
class Participation:
    """How often each client took part, ``(clients,)``.

    Attributes:
        selected: rounds in which it was asked; twice in a round counts twice.
        replied: rounds in which its reply was taken.
    """

    selected: NDArray[np.int64]
    replied: NDArray[np.int64]

    @property
    def fairness(self) -> float:
        """Jain's index of ``replied``; see `jain`."""
        return jain(self.replied)

    def histogram(self) -> dict[int, int]:
        """Map a number of replies to the number of clients that sent that many."""
        often, clients = np.unique(self.replied, return_counts=True)
        return dict(zip(often.tolist(), clients.tolist(), strict=True))

    def by_group(self, groups: Sequence[str]) -> dict[str, dict[str, float]]:
        """Map each group to its ``clients`` and the means of ``selected`` and ``replied`` over them.

        Args:
            groups: one group a client, such as ``islands.tags``, which name how each client's data were corrupted.

        Raises:
            ConfigError: there is not one group a client.
        """
        if len(groups) != len(self.selected):
            raise ConfigError(
                f"{len(groups)} groups for {len(self.selected)} clients",
                where="by_group",
                remedy="give one group a client",
            )
        labels = np.array([str(group) for group in groups])
        return {
            str(name): {
                "clients": float((labels == name).sum()),
                "selected": float(self.selected[labels == name].mean()),
                "replied": float(self.replied[labels == name].mean()),
            }
            for name in np.unique(labels)
        }


def jain(amounts: ArrayLike) -> float:
    """``(sum x)^2 / (n sum x^2)``: 1 if all have the same amount or all have 0, ``1/n`` if one client has everything.

    R. Jain, D. Chiu and W. Hawe, "A Quantitative Measure of Fairness and Discrimination for Resource Allocation in Shared Computer Systems", 1984.

    Args:
        amounts: at least 0, ``(n,)``.

    Raises:
        ConfigError: there are no amounts, or one is negative or not finite.
    """
    x = np.asarray(amounts, dtype=np.float64)
    if not x.size or not ((x >= 0) & np.isfinite(x)).all():
        raise ConfigError(f"amounts of {x.size} clients", where="jain", remedy="give finite numbers of at least 0")
    most = float(x.max())
    if most == 0.0:
        return 1.0
    x = x / most  # squares of tiny amounts would underflow
    return float(x.sum() ** 2 / (x.size * (x**2).sum()))


def participation(rows: Iterable[Mapping[str, Any]], clients: int) -> Participation:
    """Count how often each client took part.

    Args:
        rows: rows of a training with ``Evaluation(participants=True)``.
        clients: number of clients.

    Raises:
        ConfigError: no row says who took part, or a row names a client that does not exist.
    """
    recorded = [row for row in rows if _SELECTED in row]
    if not recorded:
        raise ConfigError(
            "no round recorded who took part", where="participation", remedy="train with Evaluation(participants=True)"
        )
    counts = []
    for name in (_SELECTED, _REPLIED):
        found = np.array([k for row in recorded for k in row[name]], dtype=np.int64)
        if len(found) and found.max() >= clients:
            raise ConfigError(
                f"a round names client {found.max()} of {clients}",
                where="participation",
                remedy="give the number of clients",
            )
        counts.append(np.bincount(found, minlength=clients))
    return Participation(*counts)


@dataclass(frozen=True)
class History(Sequence[dict[str, Any]]):
    """Records of a training, one a round.

    Each row has ``round``, ``t_start``, ``t_end`` (seconds on the clock), ``selected``, ``replied``, ``rejected``, ``silent``,
    ``bytes_up``, ``bytes_down``, ``loss`` (mean local training loss) and what the evaluation measured
    (``test/accuracy``, ``clients/accuracy/worst_decile``, ...). If stages act on the uplink or between neighbours, the row has
    ``bits_declared`` (the size that the stages declare for the replies taken or messages heard), unless it depends on values, and ``word_bits`` if words
    are as long as the last sum needs. On devices the row
    also has ``crashed``, ``late`` (replies that are no longer needed), ``synchronised`` (copies of the model sent), ``wasted`` (local updates thrown
    away, a fraction) and ``energy_wh``. Pacings that look at single replies add ``picked``, ``undrafted``, ``deprecated``, ``version_variance`` and
    ``begun`` (local updates begun in the round while invited clients may still be at work; elsewhere every ``selected`` client begins one).

    Source of the efficiency metrics: W. Wu, "Towards Efficient Horizontal Federated Learning", 2021, Eqs. 1.4-1.6.
    """

    rows: Sequence[dict[str, Any]]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, str):
            self.column(i)
            raise ConfigError(
                f"metrics[{i!r}]: the records are a list, a row a round",
                where="History",
                remedy=f"use metrics.column({i!r}), metrics.last({i!r}) or metrics[-1][{i!r}]",
            )
        return self.rows[i]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __repr__(self) -> str:
        return f"History({len(self.rows)} rounds of {', '.join(self.names)})"

    def to_pandas(self) -> Any:
        """A ``pandas.DataFrame`` with a row for each round and a column for each measure.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        try:
            pandas = importlib.import_module("pandas")
        except ImportError as error:
            raise MissingExtraError("to_pandas needs pandas", where="History", remedy="pip install pandas") from error
        return pandas.DataFrame(list(self.rows))

    @property
    def names(self) -> list[str]:
        """Every metric that at least one round has."""
        if isinstance(self.rows, PackedRows):
            return sorted(self.rows.names)
        return sorted({name for row in self.rows for name in row})

    def column(self, name: str) -> list[Any]:
        """One metric by round; ``None`` where a round lacks it.

        Raises:
            ConfigError: no round has it.
        """
        if self.rows and name not in self.rows[-1] and name not in self.names:  # usually the last row is enough
            raise ConfigError(
                f"no round recorded {name!r}.{nearest(name, self.names)}",
                where="History",
                remedy=f"use one of {', '.join(self.names)}",
            )
        if isinstance(self.rows, PackedRows):
            return self.rows.column(name)
        return [row.get(name) for row in self.rows]

    def last(self, name: str) -> Any:
        """The newest value of a metric."""
        values = [v for v in self.column(name) if v is not None]
        return values[-1] if values else None

    def best(self, name: str, *, lowest: bool | None = None) -> tuple[int, Any]:
        """``(round, value)`` of the best value; lowest is best if the metric's name ends in loss or error."""
        down = lower_is_better(name) if lowest is None else lowest
        pairs = [(row["round"], row[name]) for row in self.rows if row.get(name) is not None]
        if not pairs:
            self.column(name)
            raise ConfigError(f"{name!r} was never measured", where="History", remedy="evaluate more often")
        return (min if down else max)(pairs, key=lambda pair: pair[1])

    def rounds_to(self, name: str, target: float) -> int | None:
        """The first round at which a metric reaches the target, Eq. 1.4; ``None`` when it never does."""
        row = self._first(name, target)
        return None if row is None else int(row["round"])

    def time_to(self, name: str, target: float) -> float | None:
        """Seconds on the clock until a metric reaches the target, Eq. 1.5; ``None`` when it never does."""
        row = self._first(name, target)
        return None if row is None else float(row["t_end"])

    def bytes_to(self, name: str, target: float) -> int | None:
        """Bytes up and down until a metric reaches the target; ``None`` when it never does."""
        row = self._first(name, target)
        if row is None:
            return None
        spent = [r for r in self.rows if r["round"] <= row["round"]]
        return sum(int(r["bytes_up"] + r["bytes_down"]) for r in spent)

    # ------------------------------------------------------------------ how well rounds use their devices

    def effective_update_ratio(self, population: int) -> float:
        """``EUR = |S - Z| / |U|``: replies in the round's model, divided by all clients, mean over rounds (Eq. 3.3)."""
        taken = [row.get("picked", row["replied"]) for row in self._contacts()]
        return sum(taken) / (len(taken) * _positive(population)) if taken else 0.0

    def synchronisation_ratio(self, population: int) -> float:
        """``SR``: copies of the model sent, divided by all clients, mean over rounds (Eq. 3.12)."""
        copies = [row.get("synchronised", row["selected"]) for row in self._contacts()]
        return sum(copies) / (len(copies) * _positive(population)) if copies else 0.0

    @property
    def version_variance(self) -> float:
        """``VV``: variance of the model versions that replies were trained from, mean over rounds (Eq. 3.13); 0 with synchronous pacing."""
        spreads = [float(row.get("version_variance", 0.0)) for row in self._contacts()]
        return sum(spreads) / len(spreads) if spreads else 0.0

    @property
    def futility(self) -> float:
        """Share of the local updates begun that were thrown away: restarts after a crash, overwritten models, replies no longer needed."""
        begun = sum(float(row.get("begun", row["selected"])) for row in self._contacts())
        return sum(float(row.get("wasted", 0.0)) for row in self._contacts()) / begun if begun else 0.0

    @property
    def energy_wh(self) -> float:
        """Watt-hours that clients spent in all rounds, if the devices count energy."""
        return sum(float(row.get("energy_wh", 0.0)) for row in self.rows)

    def _contacts(self) -> list[dict[str, Any]]:
        """Rounds with at least one request."""
        return [row for row in self.rows if row.get("selected")]

    def _first(self, name: str, target: float) -> dict[str, Any] | None:
        self.column(name)
        down = lower_is_better(name)
        for row in self.rows:
            value = row.get(name)
            if value is not None and (value <= target if down else value >= target):
                return row
        return None

    def participation(self, clients: int) -> Participation:
        """How often each client was asked and its reply taken, and how evenly; see `atoll.rounds.history`.

        Raises:
            ConfigError: the training did not record it; use ``Evaluation(participants=True)``.
        """
        return participation(self.rows, clients)

    @property
    def average_round_length(self) -> float:
        """Mean seconds from selection to aggregation, Eq. 1.6."""
        if not self.rows:
            return 0.0
        return sum(float(row["t_end"] - row["t_start"]) for row in self.rows) / len(self.rows)

    @property
    def bytes_up(self) -> int:
        """Bytes that clients sent in all rounds."""
        return sum(row["bytes_up"] for row in self.rows)

    @property
    def bytes_down(self) -> int:
        """Bytes that the server sent in all rounds."""
        return sum(row["bytes_down"] for row in self.rows)


def _positive(population: int) -> int:
    if population < 1:
        raise ConfigError(f"population={population} clients", where="History", remedy="use the number of all clients")
    return population


def lower_is_better(name: str) -> bool:
    return any(word in name.rpartition("/")[2] or word in name for word in ("loss", "error", "mse", "mae"))
