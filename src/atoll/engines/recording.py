"""The inline engine with a record of every message, for tests and auditors who look for what must not be in one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core import message as M
from atoll.core.persistence.files import write_bytes
from atoll.core.requests.wire import pack_folded, pack_value

from .inline import Inline

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.algebra.tree import Tree
    from atoll.core.execution.session import Switch
    from atoll.core.requests.request import PartialSum, Reply, Request, TaskResult

__all__ = ["RecordingEngine"]


class RecordingEngine(Inline):
    """Run every task in this process, and keep each message of a link as its recipient has it after opening.

    What is kept of a request: the message, and the letters of other parties that come with it. Of a reply: its value; of a reply to a sum: the party's own summands as the
    coordinator adds them up, so masked where a reducer masks (of a cohort that holds a party twice, the sum of all). Of a session: each message of one role to another. Letters are readable where a simulation seals them virtually, as it does by default.

    Args:
        coordinator: what the coordinator is called.

    Attributes:
        heard: sender and recipient -> their messages, encoded, in the order of the program.
    """

    name = "recording"

    def __init__(self, coordinator: str = "coordinator") -> None:
        super().__init__()
        self.coordinator = coordinator
        self.heard: dict[tuple[str, str], list[bytes]] = {}

    async def run(self, request: Request, positions: NDArray[np.int64]) -> list[Reply]:
        """Run the task at each party, and keep the requests and the replies."""
        self._keep_request(request, positions)
        replies = await super().run(request, positions)
        for position, reply in zip(positions, replies, strict=True):
            self._keep(self._name_of(int(position)), self.coordinator, pack_value(reply.value))
        return replies

    async def fold(self, request: Request, positions: NDArray[np.int64]) -> PartialSum:
        """Run the task at one party after the other, keep what each adds, and add it up."""
        self._keep_request(request, positions)
        # A party that is drawn twice starts both times from the state before the sum, so such a cohort is added up at once.
        at_once = len(np.unique(positions)) < len(positions) or not len(positions)
        blocks = [positions] if at_once else [positions[k : k + 1] for k in range(len(positions))]
        parts = [await super(RecordingEngine, self).fold(request, block) for block in blocks]
        for block, part in zip(blocks, parts, strict=True):
            added: Any = pack_folded(part)
            for position in block:
                self._keep(self._name_of(int(position)), self.coordinator, added["totals"])
        return parts[0].merge(*parts[1:]) if len(parts) > 1 else parts[0]

    async def converse(
        self, roles: dict[str, tuple[Request, int]], switch: Switch, start: float
    ) -> dict[str, TaskResult]:
        """Run the roles of a session, and keep what they say to each other."""
        carry = switch.carry

        def keep_and_carry(source: str, target: str, message: Tree, sent: float, channel: str = "") -> float:
            self._keep(switch.parties[source], switch.parties[target], message)
            return carry(source, target, message, sent, channel)

        # Every message of a session passes here.
        switch.carry = keep_and_carry  # type: ignore[method-assign]
        for request, position in roles.values():
            self._keep_request(request, [position])
        found = await super().converse(roles, switch, start)
        for role, ran in found.items():
            self._keep(switch.parties[role], self.coordinator, pack_value(ran.reply.value))
        return found

    def write(self, folder: Path) -> list[Path]:
        """Write ``FROM--TO.bin`` for each link: its messages, as `atoll.core.message.split_frames` reads them.

        Args:
            folder: where to; it is made if needed.
        """
        folder.mkdir(parents=True, exist_ok=True)
        made = []
        for (source, target), messages in sorted(self.heard.items()):
            made.append(folder / f"{source}--{target}.bin".replace("/", "_"))
            write_bytes(made[-1], b"".join(map(M.frame_message, messages)))
        return made

    def _name_of(self, position: int) -> str:
        return self.host.executor.roster.name(position)

    def _keep_request(self, request: Request, positions: Iterable[int]) -> None:
        for position in positions:
            name = self._name_of(int(position))
            self._keep(self.coordinator, name, request.message)
            for sender, letter in (request.mail.box(name) if request.mail else {}).items():
                self._keep(sender, name, M.decode(letter.pack()["box"]) if not letter.real else letter.ciphertext)

    def _keep(self, source: str, target: str, message: Any) -> None:
        self.heard.setdefault((source, target), []).append(M.encode(message))
