"""An engine's memory: the one host with state, journal and ledger, wherever tasks run."""

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
        """End a sum: the states of the parties that are kept take effect."""
        del asked
        self.host.drafts.conclude(path, kept)

    async def commit(self, slot: str, generation: int, *, full: bool = False) -> list[str]:
        """Write the private state of a slot."""
        return self.host.store.commit(slot, generation, full=full)

    async def settle(self, slot: str) -> None:
        """Clear the journal, and mark the store as clean."""
        self.host.store.settle(slot)
        self.host.journal.forget(slot)

    async def load(self, slot: str, segments: list[str]) -> None:
        """Restore the private state of a generation."""
        self.host.store.load(slot, segments)

    async def drop(self, slot: str) -> None:
        """Remove a slot that ended, and every slot inside it."""
        self.host.store.drop(slot)

    async def publish(self) -> None:
        """Publish named results for people and later jobs, after the program ended well."""
        self.host.publish()
