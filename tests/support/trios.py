"""Three parties that compute on shared words and tables, and what they send each other."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.rooms import computed, program


class Recorder:
    """The peers of a session; it keeps what leaves and what arrives."""

    def __init__(self, peers: Any) -> None:
        self._peers = peers
        self.sent: list[tuple[str, Any]] = []
        self.seen: list[tuple[str, Any]] = []

    @property
    def names(self) -> list[str]:
        return self._peers.names

    async def send(self, role: str, message: Any) -> None:
        self.sent.append((role, message.copy() if isinstance(message, np.ndarray) else message))
        await self._peers.send(role, message)

    async def recv(self, role: str) -> Any:
        found = await self._peers.recv(role)
        self.seen.append((role, found))
        return found

    @property
    def sizes(self) -> list[tuple[str, int]]:
        """To whom each message went, and its bytes."""
        return [(role, nbytes_of(message)) for role, message in self.sent]


def seen_bytes(peers: Recorder) -> np.ndarray:
    """All arrays that a party has seen, as bytes; messages of less than 100 bytes are left out."""
    arrays = [
        np.ascontiguousarray(part).reshape(-1).view(np.uint8)
        for _, message in peers.seen
        for part in (message if isinstance(message, list) else [message])
        if isinstance(part, np.ndarray) and part.nbytes > 100
    ]
    return np.concatenate(arrays)


def nbytes_of(message: Any) -> int:
    """Bytes of what a message carries."""
    if isinstance(message, list):
        return sum(map(nbytes_of, message))
    return getattr(message, "packed_nbytes", None) or memoryview(message).nbytes


def among_three(fn: Any) -> Any:
    """A program ``async fn(trio, values)`` of three parties as a function of their values: each party's result and recorder; the seed is that of all secrets.

    The recorder starts once the seeds are agreed on.
    """

    @program
    async def play(it: Any, values: Any) -> Any:
        trio = await it.trio()
        it.peers = trio.places.peers = Recorder(it.peers)
        found = await fn(trio, values)
        KEPT.append((it.me, found, it.peers))

    def run(values: Any = None, *, seed: int = 0) -> list[tuple[Any, Recorder]]:
        KEPT.clear()
        play.__name__ = fn.__name__
        program(play)
        computed(fn.__name__, [values] * 3, "replicated", secret_seed=seed)
        return [(found, peers) for _, found, peers in sorted(KEPT, key=lambda one: one[0])]

    return run


KEPT: list[tuple[str, Any, Recorder]] = []
