"""Islands: what a task sees. Its own data, its own state, its own randomness, and nothing of anybody else."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from . import tree as T
from .errors import ConfigError, PolicyError
from .event import Event
from .rng import Rng
from .tree import Tree

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .aggregate import Totals
    from .party import Party

__all__ = ["AllowAll", "Island", "Policy", "Secret"]


class Secret:
    """Entropy that nobody else knows: the only source of noise, masks, shares and keys.

    Args:
        seed: ``None`` draws from the operating system. In a simulation a seed makes "secrets" reproducible, which voids
            every guarantee; the ledger then says so.
    """

    __slots__ = ("_block", "_seed", "drawn")

    def __init__(self, seed: int | None = None) -> None:
        self._seed = seed
        self._block = 0
        self.drawn = False

    def bytes(self, n: int) -> bytes:
        """Return ``n`` secret bytes."""
        self.drawn = True
        if self._seed is None:
            return os.urandom(n)
        key = self._seed.to_bytes(8, "little")
        blocks = -(-n // 64)
        out = b"".join(
            hashlib.blake2b((self._block + i).to_bytes(8, "little"), key=key, digest_size=64).digest()
            for i in range(blocks)
        )
        self._block += blocks
        return out[:n]

    def uint64(self, shape: int | tuple[int, ...]) -> NDArray[np.uint64]:
        """Uniform 64-bit integers."""
        count = int(np.prod(shape))
        return np.frombuffer(self.bytes(8 * count), dtype="<u8").reshape(shape).copy()

    def uniform(self, shape: int | tuple[int, ...]) -> NDArray[np.float64]:
        """Uniform numbers in [0, 1) with 53 random bits."""
        return np.asarray((self.uint64(shape) >> np.uint64(11)) * 2.0**-53)

    def integer(self, below: int) -> int:
        """A uniform integer in ``[0, below)``, of any size, without bias (rejection)."""
        if below < 1:
            raise ConfigError(f"below={below}", remedy="use a whole number of at least 1")
        bits = (below - 1).bit_length()
        count = -(-bits // 8)
        while True:
            value = int.from_bytes(self.bytes(count), "little") & ((1 << bits) - 1)
            if value < below:
                return value


class Policy(Protocol):
    """The island's own rule for what may leave it, whatever the program asked for."""

    def release(self, party: Party, task: str, reply: Tree) -> None:
        """Raise ``PolicyError`` to keep a reply in."""
        ...


class AllowAll:
    """Releases everything, for simulation."""

    def release(self, party: Party, task: str, reply: Tree) -> None:
        """Let it go."""


class Island:
    """A party's place: where a task runs.

    Attributes:
        party: who this is.
        data: the party's own data.
        rng: the reproducible stream of this request at this party.
        secret: the party's entropy; see ``Secret``.
        inbox: sealed envelopes handed over by the relay: sender's name -> payload.
        state: the party's private state, kept between rounds; assign to change it.
    """

    __slots__ = (
        "_data", "_key", "_ledger", "_notes", "_outbox", "_request", "_secret", "_secret_seed", "_spendings", "_state",
        "_state_assigned", "_state_loaded", "_store", "_totals", "inbox", "party",
    )  # fmt: skip

    def __init__(
        self,
        party: Party,
        data: Callable[[], Any],
        key: int,
        *,
        request: str = "",
        state: Callable[[], Tree] | None = None,
        ledger: Callable[[Event, str, str], None] | None = None,
        inbox: dict[str, Tree] | None = None,
        secret_seed: int | None = None,
        totals: Callable[[Island, Tree], Awaitable[Totals]] | None = None,
    ) -> None:
        self.party = party
        self._data = data
        self._key = key
        self._request = request
        self._store = state
        self._state: Tree = None
        self._state_loaded = state is None
        self._state_assigned = False
        self._ledger = ledger
        self._secret: Secret | None = None
        self._secret_seed = secret_seed
        self._outbox: dict[str, Tree] = {}
        self._notes: list[Tree] = []
        self._totals = totals
        self._spendings = 0
        self.inbox = inbox or {}

    @property
    def name(self) -> str:
        """The party's name."""
        return self.party.name

    @property
    def data(self) -> Any:
        """The party's own data."""
        return self._data()

    @property
    def rng(self) -> Rng:
        """The reproducible stream of this request at this party."""
        return Rng(self._key)

    @property
    def secret(self) -> Secret:
        """The party's entropy; see ``Secret``."""
        if self._secret is None:
            seed = None if self._secret_seed is None else Rng(self._key).child("secret", self._secret_seed).key
            self._secret = Secret(seed)
        return self._secret

    @property
    def state(self) -> Tree:
        """The party's private state, ``None`` before it is first assigned."""
        if not self._state_loaded and self._store is not None:
            # Fresh containers: a task that changes what it got has changed nothing until it assigns.
            self._state = T.map(lambda leaf: leaf, self._store())
            self._state_loaded = True
        return self._state

    @state.setter
    def state(self, value: Tree) -> None:
        self._state = value
        self._state_loaded = self._state_assigned = True

    def spend(self, event: Event) -> None:
        """Write a privacy event before anything is released; durable when this returns."""
        if self._ledger is None:
            raise PolicyError(
                f"{self.name} has no privacy ledger", where=self._request, remedy="run the task through a federation"
            )
        self._ledger(event, self.name, f"{self._request}#{self._spendings}")
        self._spendings += 1

    def post(self, to: str, payload: Tree) -> None:
        """Put a sealed envelope for another party into the reply; the relay holds it until the senders are fixed."""
        if to in self._outbox:
            raise ConfigError(f"{self.name} posted two envelopes to {to!r}", remedy="put everything into one payload")
        self._outbox[to] = payload

    async def totals(self, message: Tree) -> Totals:
        """Run the task that this one wraps, through the request's uplink: the named totals of this one party.

        That is what the party half of a secure reducer masks or encrypts.

        Raises:
            ConfigError: this task wraps none.
            CompositionError: the wrapped task replied with ``Parts``, which cannot be summed.
            DataError: its reply is not finite.
        """
        if self._totals is None:
            raise ConfigError("this task wraps no other", where=self._request, remedy="send half.wrapping(task)")
        return await self._totals(self, message)

    def note(self, progress: Tree) -> None:
        """Report progress of a running task."""
        self._notes.append(progress)

    @property
    def outbox(self) -> dict[str, Tree]:
        """What was posted: recipient -> payload."""
        return self._outbox

    @property
    def notes(self) -> list[Tree]:
        """What was noted."""
        return self._notes

    @property
    def state_changed(self) -> bool:
        """Whether the task assigned a state."""
        return self._state_assigned

    @property
    def new_state(self) -> Tree:
        """The state as the task left it."""
        return self._state if self._state_assigned else None

    @property
    def sealed(self) -> bool:
        """Whether the reply depends on secrets or spent budget: running it again would not give the same."""
        return self._spendings > 0 or (self._secret is not None and self._secret.drawn)
