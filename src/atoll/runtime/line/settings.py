"""The bounds of a line: how much is in transit, how long it waits between connections, and its statistics."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import ref

import numpy as np

from atoll.core import message as M
from atoll.core.errors import AtollError, ConfigError
from atoll.core.persistence.records import Allowance
from atoll.engines.link import LinkClosed

from ..transport.base import BLOCK

__all__ = [
    "DRAINED",
    "LATEST",
    "LEAST",
    "TAKEN",
    "Backoff",
    "LineFlight",
    "LineLost",
    "LineRefused",
    "Settings",
    "Stats",
]


# ------------------------------------------------------------------ how much a process may have in transit on all its channels together


DRAINED = 256 << 10
"""Bytes after which a receiver that has consumed whole messages acknowledges them."""
LATEST = BLOCK + 2 * DRAINED
"""Bytes after which a receiver acknowledges in any case. A sender that must wait with less than that in transit asks: each acknowledgement costs time."""
LEAST = BLOCK + 2 * DRAINED
"""Bytes that every channel may have in transit: a block, and what may still wait for its acknowledgement."""


class LineFlight:
    """Bytes in transit on many channels, shared equally by the channels that have any: slow receivers do not add up, nor do many senders.

    A channel alone has its whole window; of ``n`` channels each has ``total / n``, and at least 1.5 MiB, once what it
    had before is consumed. So a process holds ``max(total, 1.5 MiB * n)`` for receivers at the other ends, where
    windows alone would let it hold ``window * n``. What it receives is bounded likewise: each acknowledgement says how
    much the sender may have in transit.

    Args:
        total: bytes.

    Raises:
        ConfigError: not above 0.
    """

    def __init__(self, total: int = 32 << 20) -> None:
        if total <= 0:
            raise ConfigError(f"flight is {total} bytes", where="line settings", remedy="give a number above 0")
        self.total = total
        # By identity; a channel that is forgotten with its line has no share any more.
        self._busy: dict[int, ref[Any]] = {}

    def share(self, of: object) -> int:
        """Return how much a channel's half may have in transit now."""
        return max(LEAST, self.total // (len(self._busy) + (id(of) not in self._busy)))

    def began(self, one: object) -> None:
        """Note that something of it is in transit."""
        if (key := id(one)) not in self._busy:
            self._busy[key] = ref(one, lambda _: self._busy.pop(key, None))

    def note_consumed(self, one: object) -> None:
        """Note that all of it is consumed."""
        self._busy.pop(id(one), None)


# ------------------------------------------------------------------ the bounds of a line, and its statistics


TAKEN = "another process uses this kit"
"""Why a process is refused after another process of the same party took its place."""


class LineLost(LinkClosed):
    """The other end gave up, restarted as another process, or was away for too long."""


class LineRefused(LineLost):
    """The other end refuses this one. Dialling again does not help, a person must act.

    Args:
        error: why, and what to do.

    Attributes:
        error: the same.
    """

    def __init__(self, error: AtollError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True)
class Settings:
    """Bounds and paces of a line; both ends should use the same ``window``.

    Attributes:
        window: bytes of one channel that may be in transit: sent and not consumed yet. What a channel holds in memory
            at either end is at most this.
        flight: bytes that all channels of all lines with these settings may have in transit together.
        intake: bytes that they let the other ends have in transit to here together.
        block: bytes of content in one block.
        heartbeat: seconds between two heartbeats; None: none, for connections that close at once when the other end
            dies (between processes of a machine).
        silence: seconds of silence after which a connection is given up and made again.
        patience: seconds without any connection after which the line is lost; None: never.
        resumes: whether another connection may follow one that is cut; if not, written blocks are not kept.
        greeting: seconds within which the other end must say who it is.
        answer: seconds within which a process answers when another wants its place.
        channels: how many channels the other end may have open.
        limits: bounds on messages.
        spool: the folder for messages longer than ``spool_over``, once those still in use hold their share of memory;
            None keeps all in memory.
        spool_over: bytes. Shorter messages stay in memory and are not counted: a file and its handle would cost more.
        held: the memory that such messages share, on all lines with these settings.

    Raises:
        ConfigError: a window of fewer than four blocks, a block longer than pipes take, or a time that is not positive.
    """

    window: int = 5 << 20
    flight: LineFlight = field(default_factory=LineFlight, compare=False)
    intake: LineFlight = field(default_factory=lambda: LineFlight(24 << 20), compare=False)
    block: int = BLOCK
    heartbeat: float | None = 15.0
    silence: float = 60.0
    patience: float | None = 600.0
    resumes: bool = True
    greeting: float = 20.0
    answer: float = 5.0
    channels: int = 1024
    limits: M.Limits = M.DEFAULT_LIMITS
    spool: Path | None = None
    spool_over: int = 64 << 10
    held: Allowance = field(default_factory=lambda: Allowance(256 << 20), compare=False)

    def __post_init__(self) -> None:
        if not 64 <= self.block <= BLOCK:
            raise ConfigError(f"block is {self.block}", where="line settings", remedy=f"give 64 to {BLOCK} bytes")
        if self.window < 4 * (self.block + 64):
            raise ConfigError(
                f"window is {self.window}", where="line settings", remedy="give room for at least four blocks"
            )
        times = {"heartbeat": self.heartbeat, "silence": self.silence, "patience": self.patience}
        for name, value in times.items():
            if value is not None and not value > 0:
                raise ConfigError(f"{name} is {value}", where="line settings", remedy="give seconds above 0")


@dataclass
class Stats:
    """What a line has done so far.

    Attributes:
        sent_bytes: bytes of blocks written, headers and repetitions included.
        received_bytes: bytes of blocks read.
        sent_blocks: their number.
        received_blocks: their number.
        resumes: connections after the first.
        round_trip: seconds that the last heartbeat took there and back; None before it.
        skew: how far the other end's clock is ahead of this one's, in seconds, to within half a round trip.
        heard: when a byte last arrived, in seconds of the event loop's clock.
    """

    sent_bytes: int = 0
    received_bytes: int = 0
    sent_blocks: int = 0
    received_blocks: int = 0
    resumes: int = 0
    round_trip: float | None = None
    skew: float | None = None
    heard: float | None = None


# ------------------------------------------------------------------ pauses between attempts to connect


class Backoff:
    """Pauses between attempts: doubled each time up to a bound, and shortened at random so that many parties do not connect at once.

    The pause after ``k`` failures is uniform in ``[d/2, d]`` with ``d = min(longest, first * 2**k)``.

    Args:
        first: seconds.
        longest: seconds.
        seed: of the random part; give each party its own.
    """

    def __init__(self, first: float = 0.1, longest: float = 20.0, seed: int = 0) -> None:
        self._first = first
        self._longest = longest
        self._random = np.random.default_rng(seed)
        self._failures = 0

    def reset(self) -> None:
        """Start again from the shortest pause, after a success."""
        self._failures = 0

    def pause(self) -> float:
        """Return the seconds to wait after one more failure."""
        whole = min(self._longest, self._first * 2.0 ** min(self._failures, 60))
        self._failures += 1
        return whole * (0.5 + 0.5 * self._random.random())
