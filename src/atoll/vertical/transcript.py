"""What a party hears: each message of a link as its recipient has it after opening, for an auditor who looks for what must not be in it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core import message as M
from atoll.core.persistence.files import write_bytes
from atoll.core.persistence.named_results import NamedResults

if TYPE_CHECKING:
    from atoll.core.execution.session import PeerChannel, Peers
    from atoll.core.requests.island import Island

__all__ = ["HeardPeers", "Role", "keep_heard", "write_transcript"]

HEARD = "vertical-heard"
"""Under this name and that of a session each party keeps what it heard in it."""
SESSIONS = ("alignment", "training")
"""The sessions of a training, in their order."""
Role = Callable[..., Awaitable[Any]]


class HeardPeers:
    """Peers of a role that keep each message that it receives, also across a crash: the messages are part of its state.

    Args:
        peers: the peers, or a channel of theirs.
        heard: role -> the encoded messages so far; shared by all channels.
    """

    def __init__(self, peers: Any, heard: dict[str, list[bytes]] | None = None) -> None:
        self._peers = peers
        self.heard = {} if heard is None else heard

    @property
    def names(self) -> list[str]:
        """The other roles."""
        return list(self._peers.names)

    def channel(self, name: str) -> PeerChannel:
        """A further stream; see ``Peers.channel``."""
        return HeardPeers(self._peers.channel(name), self.heard)

    async def send(self, role: str, message: Any) -> None:
        """Send a message."""
        await self._peers.send(role, message)

    async def broadcast(self, message: Any, roles: Iterable[str] | None = None) -> None:
        """Send a message to several roles."""
        await self._peers.broadcast(message, roles)

    async def recv(self, role: str) -> Any:
        """Receive a message, and keep it."""
        found = await self._peers.recv(role)
        self._keep(role, found)
        return found

    async def gather(self, roles: Iterable[str] | None = None, *, skip_lost: bool = False) -> dict[str, Any]:
        """Receive a message of each of several roles, and keep them."""
        found: dict[str, Any] = await self._peers.gather(roles, skip_lost=skip_lost)
        for role, message in found.items():
            self._keep(role, message)
        return found

    async def work(self, share: float = 1.0) -> None:
        """Report work; see ``Peers.work``."""
        await self._peers.work(share)

    async def restore(self, initial: Any) -> Any:
        """The role's state at the last step."""
        found = await self._peers.restore(None)
        if found is None:
            return initial
        self.heard.update({role: [np.asarray(one).tobytes()] for role, one in found["heard"].items()})
        return found["state"]

    async def checkpoint(self, state: Any) -> None:
        """Agree on a step."""
        await self._peers.checkpoint({"state": state, "heard": self.packed()})

    def packed(self) -> dict[str, Any]:
        """Role -> the bytes of all its messages, as `atoll.core.message.split_frames` reads them."""
        return {role: np.frombuffer(b"".join(parts), np.uint8) for role, parts in self.heard.items()}

    def _keep(self, role: str, message: Any) -> None:
        self.heard.setdefault(role, []).append(M.frame_message(M.encode(message)))


def keep_heard(role: Role, session: str) -> Role:
    """The same role, which leaves at its party what it heard."""

    async def listening(island: Island, peers: Peers, **args: Any) -> Any:
        heard = HeardPeers(peers)
        found = await role(island, heard, **args)
        island.leave(f"{HEARD}-{session}", heard.packed())
        return found

    return listening


def write_transcript(
    folders: Mapping[str, Path], parties: Sequence[str], place: Path, helpers: Collection[str] = ()
) -> list[Path]:
    """Write ``FROM--TO.bin`` for each link: the messages of the sessions in their order, as ``TO`` has them. See `HeardPeers.packed` for the form.

    Args:
        folders: party -> its folder of named results.
        parties: the parties, helpers too.
        place: the folder to write to; it is made if needed.
        helpers: those of the parties without columns, which take part in the training alone.
    """
    place.mkdir(parents=True, exist_ok=True)
    made = []
    for target in parties:
        kept = NamedResults(folders[target])
        sessions = [kept.get(target, f"{HEARD}-{name}") for name in (SESSIONS[1:] if target in helpers else SESSIONS)]
        for source in parties:
            if source != target:
                made.append(place / f"{source}--{target}.bin")
                write_bytes(made[-1], b"".join(np.asarray(one[source]).tobytes() for one in sessions if source in one))
    return made
