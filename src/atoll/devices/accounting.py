"""The duration of rounds, and how well they used their devices, as functions of what each round did.

A round of length ``T`` costs, with ``N_sync`` copies of a model of ``size`` bytes sent by a server of bandwidth ``bw`` (W. Wu, "Towards Efficient
Horizontal Federated Learning", PhD thesis, Warwick 2021, Eqs. 3.4 to 3.6):

    T_dist = N_sync size / bw
    T      = min(T_lim, T_dist + max_k (T_down_k + T_train_k + T_up_k))

where the maximum is over the clients that the server waits for. `CORRECTED` is this rule with a server that waits until ``T_lim`` for replies that
never arrive. `COMPAT` has the rules behind the thesis' tables: they charge distribution time for all copies since the first round, add it outside
the minimum, and let each algorithm wait in its own way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import ConfigError, DataError

__all__ = [
    "COMPAT",
    "CORRECTED",
    "Accounting",
    "RoundAccount",
    "effective_update_ratio",
    "expected_effective_updates",
    "expected_futility",
    "expected_synchronisation_ratio",
    "futility",
    "synchronisation_ratio",
    "version_variance",
]

Floats = NDArray[np.float64]
Waiting = Literal["deadline", "asked", "taken"]


@dataclass(frozen=True)
class RoundAccount:
    """What the rounds of a run did: columns of shape ``(rounds,)``.

    Attributes:
        clients: number of clients in the population, ``N``.
        copies: copies of the model that the server sent, ``N_sync``.
        effective: replies in the round's model: picked and not crashed.
        taken: seconds of the slowest reply in the round's model, from sending to arrival; 0 for none.
        asked: seconds that the slowest client asked would have needed without failing; 0 for none.
        unmet: whether the server waited for a reply that never arrived.
        variance: variance of the model versions that replies were trained from, ``var(V_t)``.
        futile: work thrown away, in client-rounds.
        begun: work begun, in client-rounds.
    """

    clients: int
    copies: NDArray[Any]
    effective: NDArray[Any]
    taken: NDArray[Any]
    asked: NDArray[Any]
    unmet: NDArray[Any]
    variance: NDArray[Any]
    futile: NDArray[Any]
    begun: NDArray[Any]

    def __post_init__(self) -> None:
        columns = [field.name for field in fields(self) if field.name != "clients"]
        shapes = {name: np.shape(getattr(self, name)) for name in columns}
        if len(set(shapes.values())) != 1 or len(shapes["copies"]) != 1 or not shapes["copies"][0]:
            raise DataError(
                f"columns of shapes {shapes}", where="RoundAccount", remedy="give one number a round to each"
            )
        if self.clients < 1:
            raise DataError(f"clients={self.clients}", where="RoundAccount", remedy="count the whole population")

    @classmethod
    def of_rows(cls, rows: Sequence[Mapping[str, Any]], clients: int, quota: int) -> RoundAccount:
        """The columns from a training's records, for rounds that begin and end with one model: those of SAFA and of synchronous pacings.

        A synchronous round lasts until its end, so ``taken`` includes the distribution time that its devices were simulated with. Records do not
        have the time that failed clients would have needed: ``asked`` is NaN, and a rule that waits for it raises an error.

        Args:
            rows: one record a round.
            clients: number of clients in the population.
            quota: number of replies wanted in a round.

        Raises:
            DataError: the records lack a column.
        """
        own = {"picked", "slowest_picked", "version_variance"} <= set(rows[0] if rows else ())
        more = ("picked", "slowest_picked", "version_variance") if own else ("replied", "t_start", "t_end")
        names = ("synchronised", "wasted", "selected", *more)
        missing = [name for name in names if any(name not in row for row in rows)]
        if missing or not rows:
            raise DataError(
                f"records without {', '.join(missing)}" if rows else "no records",
                where="RoundLog.of_rows",
                remedy="use the records of rounds of SAFA, or of synchronous rounds on simulated devices",
            )

        def column(name: str) -> Floats:
            return np.array([0 if row[name] is None else row[name] for row in rows], dtype=np.float64)

        begun = np.array([row.get("begun", row["selected"]) for row in rows], dtype=np.float64)
        taken = column("slowest_picked") if own else column("t_end") - column("t_start")
        effective = column("picked" if own else "replied")
        variance = column("version_variance") if own else np.zeros(len(rows))
        asked = np.full(len(rows), np.nan)
        return cls(
            clients,
            column("synchronised"),
            effective,
            taken,
            asked,
            effective < quota,
            variance,
            column("wasted"),
            begun,
        )


@dataclass(frozen=True)
class Accounting:
    """A rule for the length of a round.

    Attributes:
        waiting: the replies to wait for. ``"deadline"``: those taken, and until the limit if one never arrives; ``"asked"``: the slowest client asked,
            whether or not it failed; ``"taken"``: only those taken.
        cumulative: whether a round is charged the copies of all rounds so far.
        outside: whether the distribution time is added on top of the limit.
    """

    waiting: Waiting = "deadline"
    cumulative: bool = False
    outside: bool = False

    def __post_init__(self) -> None:
        if self.waiting not in ("deadline", "asked", "taken"):
            raise ConfigError(
                f"waiting={self.waiting!r}", where="Accounting", remedy="use 'deadline', 'asked' or 'taken'"
            )

    def distribution(self, log: RoundAccount, each: float) -> Floats:
        """``T_dist`` of each round, in seconds.

        Args:
            log: the rounds of a run.
            each: seconds a copy, ``size / bw``.
        """
        copies = np.asarray(log.copies, dtype=np.float64)
        return each * (np.cumsum(copies) if self.cumulative else copies)

    def lengths(self, log: RoundAccount, each: float, limit: float) -> Floats:
        """``T`` of each round, in seconds.

        Args:
            log: the rounds of a run.
            each: seconds a copy, ``size / bw``.
            limit: ``T_lim``, in seconds.

        Raises:
            ConfigError: ``each`` is negative, or ``limit`` not positive.
            DataError: the rule waits for clients whose seconds are not in the log.
        """
        if each < 0 or not limit > 0:
            raise ConfigError(
                f"each={each}, limit={limit}", where="Accounting.lengths", remedy="use seconds of 0 or more"
            )
        sent = self.distribution(log, each)
        slowest = np.asarray(log.asked if self.waiting == "asked" else log.taken, dtype=np.float64)
        if np.isnan(slowest).any():
            raise DataError(
                f"waiting={self.waiting!r} needs the time that failed clients would have taken, which records do not have",
                where="Accounting.lengths",
                remedy="use a rule that waits for replies ('deadline', 'taken'), or fill RoundLog.asked from the trace",
            )
        if self.waiting == "deadline":
            slowest = np.where(log.unmet, limit, slowest)
        return np.minimum(slowest, limit) + sent if self.outside else np.minimum(limit, sent + slowest)


CORRECTED = Accounting()
"""Eqs. 3.4 and 3.6, with a server that waits for its replies until ``T_lim``; the same for every algorithm."""
COMPAT: Mapping[str, Accounting] = {
    "FedAvg": Accounting("deadline", cumulative=True, outside=True),
    "FedCS": Accounting("asked", cumulative=True, outside=True),
    "SAFA": Accounting("taken", cumulative=True, outside=True),
}
"""The rules behind the thesis' tables of round lengths, by algorithm."""


def effective_update_ratio(log: RoundAccount) -> float:
    """``EUR = |S - Z| / |U|``, mean over rounds: clients picked and not crashed, divided by all clients (Eq. 3.3)."""
    return float(np.mean(log.effective)) / log.clients


def synchronisation_ratio(log: RoundAccount) -> float:
    """``SR``: copies of the model sent, divided by all clients, mean over rounds (Eq. 3.12)."""
    return float(np.mean(log.copies)) / log.clients


def version_variance(log: RoundAccount) -> float:
    """``VV``: variance of the versions that replies were trained from, mean over rounds (Eq. 3.13)."""
    return float(np.mean(log.variance))


def futility(log: RoundAccount) -> float:
    """Share of the work begun that was thrown away, in client-rounds; 0 if none was begun."""
    begun = float(np.sum(log.begun))
    return float(np.sum(log.futile)) / begun if begun else 0.0


def expected_effective_updates(fraction: float, crash: float, *, after: bool) -> float:
    """Expected ``EUR``: ``C (1 - R)`` if clients are selected before training, ``min(C, 1 - R)`` if after (Eq. 3.8).

    Args:
        fraction: ``C``.
        crash: share of crashed clients, ``R``.
        after: whether clients are selected after training, as in SAFA.
    """
    return min(fraction, 1.0 - crash) if after else fraction * (1.0 - crash)


def expected_synchronisation_ratio(crash: float, lag: int, *, literal: bool = False) -> float:
    """Stationary ``SR`` of SAFA: ``(1 - cr) / (1 - cr^(tau + 1))``, for any fraction, speeds and data.

    Args:
        crash: probability that a client crashes in a round, ``cr``, below 1.
        lag: tolerance ``tau``.
        literal: deprecate at ``lag >= tau``, as Eq. 3.7 reads, not only above: ``(1 - cr) / (1 - cr^tau)``.
    """
    return (1.0 - crash) / (1.0 - crash ** (lag + (not literal)))


def expected_futility(crash: float, lag: int | None = None) -> float:
    """Expected `futility`: ``cr / 2`` if crashed work is lost; for SAFA the rate of deprecation, ``(1 - cr) cr^(tau+1) / (1 - cr^(tau+1))``.

    Args:
        crash: probability that a client crashes in a round, ``cr``, below 1.
        lag: tolerance ``tau`` of SAFA (deprecated above it); ``None`` for an algorithm that discards crashed work.
    """
    if lag is None:
        return crash / 2.0
    return (1.0 - crash) * crash ** (lag + 1) / (1.0 - crash ** (lag + 1))
