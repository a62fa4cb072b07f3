"""What a stage sees at the party in addition to the value, and the secret seeds that it draws from."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..algebra.rng import Rng, child_keys
from ..errors import ConfigError
from .island import Secret

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..algebra.tree import Tree

__all__ = ["SEED_BYTES", "Seeds", "StageContext", "derive_seeds", "seeds_for"]


SEED_BYTES = 32
"""Bytes of the secret seed that a party draws for one reply."""


@dataclass(frozen=True)
class StageContext:
    """What a stage may use at one party, or at each party of a block.

    Attributes:
        public: the round parameters, made by ``Stage.public``.
        keys: the key of each party's reproducible stream, ``(parties,)``. The server can derive it.
        seeds: ``SEED_BYTES`` secret bytes of each party, ``(parties, 32)``, uint8; ``None`` for a stage that does not declare ``secret``.
        sensitivity: largest L2 norm of a party's value before this stage; ``None`` without a bound.
        replies: every sum that is used has at least this many replies of equal weight.
        hidden: whether replies can be seen only in such a sum.
        excess_added: whether the half of a reducer adds the noise that the reducer can take back; see ``Stage.excess``.
    """

    public: Tree = None
    keys: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(1, dtype=np.uint64))
    seeds: NDArray[np.uint8] | None = None
    sensitivity: float | None = None
    replies: int = 1
    hidden: bool = False
    excess_added: bool = False

    @classmethod
    def of(cls, rng: Rng, public: Tree = None, **more: Any) -> StageContext:
        """The context of one party with this stream."""
        return cls(public, np.array([rng.key], dtype=np.uint64), **more)

    @property
    def rng(self) -> Rng:
        """The reproducible stream of the (first) party."""
        return Rng(int(self.keys[0]))

    @property
    def secret(self) -> Secret:
        """The secret stream of the (first) party."""
        return self.secrets()[0]

    def secrets(self) -> list[Secret]:
        """The secret stream of each party. Each call starts it again.

        Raises:
            ConfigError: the stage does not declare that it draws on secrets.
        """
        if self.seeds is None:
            raise ConfigError(
                "a stage draws on the party's secret but does not declare it",
                where="uplink",
                remedy="set `secret: ClassVar[bool] = True` on its class",
            )
        return [Secret(row.tobytes()) for row in self.seeds]

    def row(self, i: int) -> StageContext:
        """The context of party ``i`` of a block."""
        seeds = None if self.seeds is None else self.seeds[i : i + 1]
        return replace(self, keys=self.keys[i : i + 1], seeds=seeds)


def seeds_for(seeds: NDArray[np.uint8] | None, purpose: str) -> NDArray[np.uint8] | None:
    """Seeds for one purpose that reveal nothing about those for another: keyed BLAKE2b of the purpose's name, ``(parties, 32)``."""
    if seeds is None:
        return None
    label = purpose.encode()
    made = [hashlib.blake2b(label, key=row.tobytes(), digest_size=SEED_BYTES).digest() for row in seeds]
    return np.frombuffer(b"".join(made), dtype=np.uint8).reshape(-1, SEED_BYTES)


# ---------------------------------------------------------------------- secret seeds


@dataclass(frozen=True, eq=False)
class Seeds:
    """A secret seed of each party for one request.

    Attributes:
        positions: positions of the parties, sorted.
        rows: their seeds, ``(parties, SEED_BYTES)``, uint8.
    """

    positions: NDArray[np.int64]
    rows: NDArray[np.uint8]

    def of(self, positions: NDArray[np.int64]) -> NDArray[np.uint8]:
        """The seeds of these parties, one row each."""
        found: NDArray[np.uint8] = self.rows[np.searchsorted(self.positions, positions)]
        return found

    def pack(self) -> dict[str, Any]:
        """The seeds as a message."""
        return {"positions": self.positions, "rows": self.rows}

    @classmethod
    def unpack(cls, packed: Any) -> Seeds:
        """The inverse of ``pack``."""
        return cls(np.asarray(packed["positions"]), np.asarray(packed["rows"]))


def derive_seeds(keys: NDArray[np.uint64], seed: int) -> NDArray[np.uint8]:
    """Seeds derived from the parties' keys and a number, ``(parties, 32)``: for reproducible simulations, whose guarantees are void."""
    words = np.stack([child_keys(keys, "uplink", seed, i) for i in range(4)], axis=1)
    return words.astype("<u8").view(np.uint8)
