"""Noise in parts: as much as the smallest sum needs, of which a larger sum gives back what it does not need."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atoll.privacy.discrete import SkellamLaw, sampler_of

from ..keystream import Keystream, derived

__all__ = ["MOST_PARTS", "ExcessNoise"]

MOST_PARTS = 100
"""Parts that a client's noise may have: each costs a table of half a megabyte, and a share of its seed at every holder."""


@dataclass(frozen=True)
class ExcessNoise:
    """The noise of one client as a base and parts, each a Skellam variable with a seed of its own (XNoise; Jiang, Wang, Chen 2024).

    A sum of ``S`` clients, ``c`` of which may tell the server their noise, has enough noise if each client's has the variance ``u_S = V / (S - c)``. A client adds
    the base of variance ``u_most``, whose seed nobody else ever learns, and parts ``k = 1 .. most - least`` of variance ``u_(most - k) - u_(most - k + 1)``. Base and parts up to
    ``most - S`` have together the variance ``u_S``; the parts above are excess in a sum of ``S``. Skellam variables add up to Skellam variables, so what remains
    has the law of the target, exactly.

    Part ``k`` follows from seed ``s_k``: ``s_1`` is a secret of the client, and ``s_(k + 1)`` follows from ``s_k`` by HKDF. Whoever learns ``s_k`` knows the parts from ``k`` on, and
    nothing of those before. The last link, ``s_(most - least + 1)``, belongs to no part: it commits to the others. We deviate from the paper, where each part has an independent seed.

    Attributes:
        variance: the noise that a sum needs, ``V``, in steps of the grid squared.
        most: the largest sum that gives back all it need not have; above it, noise grows with the replies.
        least: the smallest sum.
        corrupt: clients whose noise does not count, ``c``.
    """

    variance: float
    most: int
    least: int
    corrupt: int = 0

    @property
    def parts(self) -> int:
        """Number of parts beside the base."""
        return self.most - self.least

    def needed(self, replies: int) -> float:
        """The variance of one client's noise that a sum of so many replies needs, ``u_S``."""
        return self.variance / (replies - self.corrupt)

    def variance_of(self, part: int) -> float:
        """The variance of a part; part 0 is the base."""
        if part == 0:
            return self.needed(self.most)
        return self.needed(self.most - part) - self.needed(self.most - part + 1)

    @property
    def anchor(self) -> int:
        """The number of the link that belongs to no part."""
        return self.parts + 1

    def first(self, replies: int) -> int:
        """The first part that a sum of so many replies does not need; `anchor` if it needs all."""
        return min(self.anchor, max(1, self.most - replies + 1))

    @staticmethod
    def link(seed: bytes, steps: int = 1) -> bytes:
        """Return the seed so many parts further on."""
        for _ in range(steps):
            seed = derived(seed, "next part")
        return seed

    def chain(self, seed: bytes) -> list[bytes]:
        """Return the seeds of all parts, from that of part 1."""
        made = [seed]
        while len(made) < self.parts:
            made.append(self.link(made[-1]))
        return made

    def drawn(self, seed: bytes, count: int, first: int = 1) -> NDArray[np.int64]:
        """Return the sum of the parts from ``first`` on.

        Args:
            seed: that of part ``first``.
            count: number of entries.
            first: the part.
        """
        total = np.zeros(count, dtype=np.int64)
        for part in range(first, self.anchor):
            total += sampler_of(SkellamLaw(self.variance_of(part))).draw(Keystream(derived(seed, "noise")), count)
            seed = self.link(seed)
        return total
