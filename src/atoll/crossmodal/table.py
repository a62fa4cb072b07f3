"""The acoustic table: for each phone a vector of how utterances with it sound, which speech sides build once and send."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import ConfigError, DataError
from atoll.core.event import Event, Gaussian, NonPrivate
from atoll.secure.keystream import NoiseStream

from .utterances import Utterances

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["TablePlan", "TableShare", "count_gaussian", "join_table"]


@dataclass(frozen=True)
class TableShare:
    """What one speech side adds to the table.

    Attributes:
        sums: ``(phones, width)``: of each phone the weighted sum of the vectors of the utterances with it.
        counts: ``(phones,)``: the sum of the weights.
    """

    sums: Floats
    counts: Floats

    def message(self) -> dict[str, Any]:
        """For a letter."""
        return {"sums": self.sums.astype(np.float32), "counts": self.counts.astype(np.float32)}

    @classmethod
    def read(cls, told: Any, phones: int, width: int, sender: str, plan: TablePlan | None = None) -> TableShare:
        """Read a letter.

        Args:
            told: the letter.
            phones: how many phones there are.
            width: numbers of a vector.
            sender: who wrote it.
            plan: how shares are built; without noise, counts are none below 0, and those of a hidden share 0 or 1: with more, its side would have more say than the others.

        Raises:
            DataError: it holds anything else, or has another form.
        """
        fields = dict(told) if isinstance(told, Mapping) else {}
        sums, counts = fields.pop("sums", None), fields.pop("counts", None)
        arrays = all(isinstance(one, np.ndarray) and one.dtype.kind == "f" for one in (sums, counts))
        problem = ""
        if fields:
            problem = f"also holds {min(map(str, fields))!r}"
        elif not arrays or sums.shape != (phones, width) or counts.shape != (phones,) or not (np.isfinite(sums).all() and np.isfinite(counts).all()):  # fmt: skip
            problem = f"is not {phones} phones by {width} numbers"
        elif plan is not None and not plan.noise and (counts.min() < 0 or (plan.hidden and not np.isin(counts, (0, 1)).all())):  # fmt: skip
            problem = f"counts {counts.min():g} to {counts.max():g} utterances with a phone" + (", where all sides count alike" if plan.hidden else "")  # fmt: skip
        if problem:
            raise DataError(f"the table of {sender!r} {problem}", where="crossmodal", remedy="let all sides run the same job, with the same phones and the same acoustic descriptors")  # fmt: skip
        return cls(np.asarray(sums, dtype=np.float64), np.asarray(counts, dtype=np.float64))


@dataclass(frozen=True)
class TablePlan:
    """How a speech side builds its share of the table.

    Exactly, the vector of phone ``p`` is ``mean over {u : p in u} of x_u`` (Algorithm 6), where ``x_u`` is the mean frame of utterance ``u``. Phones in fewer than ``least`` utterances are left out, since
    the vector of a phone that one utterance has is that utterance's.

    With noise, an utterance with ``k`` different phones counts with weight ``1/sqrt(k)`` and with its vector shortened to norm ``clip``. Sums and counts (in units of ``clip``) then move by at most ``sqrt(2) clip`` in L2
    if an utterance comes or goes, and have Gaussian noise of ``noise`` times that.

    Attributes:
        least: utterances that a phone must be in, for an exact table.
        clip: the largest norm of an utterance's vector that counts, for a table with noise.
        noise: deviation of the noise over the sensitivity; 0 for an exact table.
        hidden: whether an exact share has means in place of sums, and counts that are 1: nobody learns how many utterances have a phone, and speech sides count alike. A share with noise hides that by itself.
    """

    least: int
    clip: float
    noise: float
    hidden: bool = False

    @property
    def event(self) -> Event:
        """What the table releases."""
        if not self.noise:
            return NonPrivate(unit="example", what="the mean acoustic vector of each phone")
        return count_gaussian(self.noise)

    def build(self, rows: Utterances, stream: NoiseStream | None = None) -> TableShare:
        """Build the share of some rows of speech.

        Args:
            rows: the utterances.
            stream: the noise; ``None`` for an exact table.

        Raises:
            ConfigError: a table with noise has no stream for it.
        """
        if self.noise and stream is None:
            raise ConfigError("a noisy table without a stream of noise", where="TablePlan.build", remedy="pass stream=NoiseStream(secret.bytes(32))")  # fmt: skip
        vectors = np.array([np.mean(frames, axis=0, dtype=np.float64) for frames in rows.inputs])
        phones = len(rows.phone_names)
        weights = np.zeros((len(rows), phones))
        for i, one in enumerate(rows.phones):
            weights[i, np.unique(one)] = 1.0
        if stream is None:
            enough = weights.sum(0) >= self.least
            weights = weights * enough
            sums, counts = weights.T @ vectors, weights.sum(0)
            return TableShare(sums / np.maximum(counts, 1)[:, None], 1.0 * enough) if self.hidden else TableShare(sums, counts)  # fmt: skip
        weights /= np.sqrt(np.maximum(weights.sum(1, keepdims=True), 1))
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        kept = vectors * np.minimum(1.0, self.clip / np.maximum(lengths, 1e-12)) * (1 - 1e-5)
        kept[~np.isfinite(kept).all(axis=1)] = 0.0
        exact = np.column_stack([weights.T @ kept, weights.sum(0) * self.clip])
        deviation = self.noise * math.sqrt(2) * self.clip
        noisy = exact + stream.normal(exact.size, None, deviation).reshape(exact.shape).astype(np.float64)
        return TableShare(noisy[:, :-1], noisy[:, -1] / self.clip)


def count_gaussian(noise: float) -> Gaussian:
    """What counts or sums with so much noise, over their sensitivity, release of an example."""
    return Gaussian(unit="example", noise_multiplier=noise, between="add-remove")


def join_table(shares: Sequence[TableShare], phones: int, width: int) -> NDArray[np.float32]:
    """Return the table of all speech sides, ``(phones + 1, width)``; row 0, of no phone, is zero.

    Its columns have mean 0 and deviation 1 over the phones. A phone that no side has heard often enough has the mean of all, which is 0.
    """
    table = np.zeros((phones + 1, width), dtype=np.float32)
    if not shares:
        return table
    sums, counts = sum(one.sums for one in shares), sum(one.counts for one in shares)
    known = np.asarray(counts) >= max(1e-9, 0.5 * min(1.0, float(np.max(counts, initial=0.0))))
    if not known.any():
        return table
    means = np.asarray(sums)[known] / np.asarray(counts)[known][:, None]
    spread = means.std(axis=0)
    table[1:][known] = (means - means.mean(axis=0)) / np.where(spread > 1e-9 * (1 + np.abs(means).max(axis=0)), spread, np.inf)  # fmt: skip
    return table
