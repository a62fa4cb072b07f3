"""An engine's memory: the one host that keeps state, journal and ledger, wherever tasks run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from atoll.core.execution.host import Host

__all__ = ["Memory"]


class Memory:
    """What every engine does with private state and the journal."""

    _host: Host | None = None

    @property
    def host(self) -> Host:
        """State, journal and ledger of all islands."""
        if self._host is None:
            raise RuntimeError("the engine is not open")
        return self._host

    async def conclude(self, path: str, asked: NDArray[np.int64], kept: NDArray[np.int64]) -> None:
        """A sum has ended: those that are kept keep what its steps left."""
        del asked
        self.host.drafts.conclude(path, kept)

    async def commit(self, slot: str, generation: int, *, full: bool = False) -> list[str]:
        """Write the private state of a slot."""
        return self.host.store.commit(slot, generation, full=full)

    async def settle(self, slot: str) -> None:
        """Let the journal forget, and the store count as clean."""
        self.host.store.settle(slot)
        self.host.journal.forget(slot)

    async def load(self, slot: str, segments: list[str]) -> None:
        """Take private state back to a generation."""
        self.host.store.load(slot, segments)

    async def drop(self, slot: str) -> None:
        """Forget a slot that ended, and every slot inside it."""
        self.host.store.drop(slot)

    async def publish(self) -> None:
        """The program has ended well: named results are there for people and for later jobs."""
        self.host.publish()
