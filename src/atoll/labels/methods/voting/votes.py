"""Votes on rows, one a row, the noise that clients add to them, and what a server may hear of their counts."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import ConfigError, DataError
from atoll.core.event import Event, Gaussian
from atoll.privacy.discrete import GaussianLattice, words_of
from atoll.privacy.voting import NoisyVote, log_odds_of_answer, log_odds_of_winner
from atoll.secure.noise import SkellamNoise

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.requests.island import Secret
    from atoll.privacy.discrete import Source

__all__ = ["VoteOutcome", "VoteNoise", "VoteRule", "check_votes", "votes_of"]

NOBODY = -1
"""The class of a row that the vote does not answer."""


def votes_of(scores: Any) -> NDArray[np.float64]:
    """Return one vote for the class with the largest score of each row, ``(rows, classes)``: the first of equals."""
    found = np.zeros(np.shape(scores))
    found[np.arange(len(found)), np.argmax(scores, axis=1)] = 1.0
    return found


def check_votes(votes: Any, shape: tuple[int, int]) -> None:
    """Refuse what is not one vote a row, or none at all.

    Raises:
        DataError: names what it is.
    """
    sent = np.asarray(votes)
    if sent.shape != shape:
        raise DataError(f"votes of the shape {sent.shape}, not {shape}", where="PATE", remedy="send one vote a row")
    wrong = ~np.isin(sent, (0.0, 1.0)).all(axis=1) | (sent.sum(axis=1) > 1)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise DataError(f"the vote on row {row} is {sent[row].tolist()}", where="PATE", remedy="send one 1 a row")


@dataclass(frozen=True, kw_only=True)
class VoteNoise(SkellamNoise):
    """Skellam noise on votes, before they leave a client: whole numbers in words that add up, so that nothing is rounded and nothing lost.

    A client moves each row's counts by one vote, ``sqrt(rows)`` in all, or from one class to another, ``sqrt(2 rows)``. Make it with `among`.

    Attributes:
        rows: rows that are voted on.
    """

    rows: int

    @classmethod
    def among(cls, rows: int, sigma: float, least: int, *, replaced: bool, bits: int = 24) -> VoteNoise:
        """Return the noise for counts of ``rows`` rows with deviation ``sigma`` once ``least`` clients have voted."""
        apart = math.sqrt((2 if replaced else 1) * rows)
        settings: dict[str, Any] = {"multiplier": sigma / apart, "clip": math.sqrt(rows), "step": 1.0}
        return cls(rows=rows, least=least, replaced=replaced, bits=bits, **settings)

    @property
    def apart(self) -> float:
        """How far one client moves the counts."""
        return math.sqrt((2 if self.replaced else 1) * self.rows)

    def _rounded(self, vector: NDArray[np.float64], source: Source) -> NDArray[np.int64]:
        del source
        check_votes(vector.reshape(self.rows, -1), (self.rows, len(vector) // self.rows))
        return vector.astype(np.int64)


@dataclass(frozen=True)
class VoteOutcome:
    """What is told of a vote.

    Attributes:
        labels: the winners, ``(rows,)``; `NOBODY` for rows without an answer.
        events: what it releases of every client that voted.
    """

    labels: NDArray[np.int64]
    events: tuple[Event, ...]


@dataclass(frozen=True)
class VoteRule:
    """Which rows get an answer and which class wins: GNMax, or with a threshold Confident-GNMax (Papernot et al. 2018, algorithm 1).

    Answered are rows with ``max_j n_j + N(0, threshold_sigma^2) >= threshold``; the answer is ``argmax_j n_j + N(0, sigma^2)``.

    Attributes:
        sigma: deviation of the noise on each count.
        threshold: votes that the largest count needs; ``None`` answers every row.
        threshold_sigma: deviation of the noise of that check.
        replaced: whether neighbours change a vote, or add or remove one.
        dependent: whether events say how sure the outcomes were.
    """

    sigma: float
    threshold: float | None
    threshold_sigma: float
    replaced: bool = True
    dependent: bool = False

    def __post_init__(self) -> None:
        numbers = (self.sigma, self.threshold_sigma)
        if not all(n > 0 and math.isfinite(n) for n in numbers) or not (self.threshold is None or self.threshold > 0):
            raise ConfigError(
                f"sigma={self.sigma}, threshold={self.threshold}, threshold_sigma={self.threshold_sigma}",
                where="PATE",
                remedy="use finite deviations above 0, and a positive number of votes or None",
            )

    @property
    def multiplier(self) -> float:
        """Deviation of the noise on counts divided by how far one client moves those of a row."""
        return self.sigma / math.sqrt(2.0 if self.replaced else 1.0)

    def most(self, rows: int) -> tuple[Event, ...]:
        """Return what the outcome of ``rows`` rows releases at most, whatever the votes are."""
        answers = Gaussian(noise_multiplier=self.multiplier, count=rows)
        return (
            (answers,)
            if self.threshold is None
            else (Gaussian(noise_multiplier=self.threshold_sigma, count=rows), answers)
        )

    def outcome(self, counts: NDArray[Any], secret: Secret) -> VoteOutcome:
        """Return the outcome of exact counts ``(rows, classes)``, with noise of the server's own: whole numbers are on its lattices, so that nothing is rounded."""
        draw = words_of(secret.stream())
        counts = np.asarray(counts, np.float64)
        checked = np.ones(len(counts), bool)
        events: list[Event] = []
        if self.threshold is not None:
            largest = counts.max(axis=1)
            checked = GaussianLattice(self.threshold_sigma).add(largest, draw) >= self.threshold
            events += self._events([self._odds_of_check(row) for row in counts], self.threshold_sigma)
        noisy = GaussianLattice(self.sigma).add(counts, draw)
        asked = counts[checked]
        events += self._events([self._odds_of_winner(row) for row in asked], self.multiplier)
        return VoteOutcome(np.where(checked, noisy.argmax(axis=1), NOBODY), tuple(events))

    def heard(self, noisy: NDArray[Any]) -> NDArray[np.int64]:
        """Return the winners of counts that have their noise already: what is read off them releases nothing more."""
        winners = np.asarray(noisy).argmax(axis=1)
        return winners if self.threshold is None else np.where(np.max(noisy, axis=1) >= self.threshold, winners, NOBODY)

    def _odds_of_check(self, row: NDArray[Any]) -> float:
        return 0.0 if self.threshold is None else log_odds_of_answer(row, self.threshold_sigma, self.threshold)

    def _odds_of_winner(self, row: NDArray[Any]) -> float:
        return log_odds_of_winner(row, self.sigma)

    def _events(self, odds: Sequence[float], multiplier: float) -> list[Event]:
        """Return one event for all rows, or one for each if how sure they were counts."""
        if not odds:
            return []
        if not self.dependent:
            return [Gaussian(noise_multiplier=multiplier, count=len(odds))]
        rounded = [math.ceil(1e6 * value) / 1e6 for value in odds]
        return [
            NoisyVote(noise_multiplier=multiplier, log_other=min(0.0, value), count=rounded.count(value))
            for value in dict.fromkeys(rounded)
        ]


def fingerprint(counts: NDArray[Any], key: bytes) -> str:
    """Return a keyed hash of counts, which says nothing of them: equal counts get equal noise, and are recorded once."""
    plain = np.ascontiguousarray(counts, np.float64)
    return hashlib.blake2b(repr(plain.shape).encode() + plain.tobytes(), key=key, digest_size=16).hexdigest()
