"""The letterbox of one party in one request: what it may open, and what it has written."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..algebra.tree import Tree
from ..errors import AtollError, ConfigError, LetterError
from .letter import Letter
from .sealings import Draw, Sealing, VirtualSealing

__all__ = ["Letterbox"]


def _anybody(name: str) -> None:
    del name


def _anything(content: Tree) -> None:
    del content


class Letterbox:
    """Seals, opens, and keeps account.

    Args:
        party: whose it is.
        request: of the task that runs.
        sealing: seals and opens.
        arrived: sender -> letter, as the relay handed them over.
        require: refuses a recipient that is not in the job.
        release: the island's policy on what leaves it; it sees contents before they are sealed.

    Attributes:
        outbox: recipient -> letter, of those that go with the reply.
        opened: the tags of the letters that were opened.
    """

    __slots__ = (
        "_arrived",
        "_content",
        "_party",
        "_release",
        "_request",
        "_require",
        "_written",
        "opened",
        "outbox",
        "sealing",
    )

    def __init__(
        self,
        party: str,
        request: str,
        sealing: Sealing | None = None,
        arrived: Mapping[str, Letter] | None = None,
        require: Callable[[str], object] = _anybody,
        release: Callable[[Tree], None] = _anything,
    ) -> None:
        self._party = party
        self._request = request
        self._arrived = arrived or {}
        self._require = require
        self._release = release
        self._written = 0
        self._content: dict[str, Tree] | None = None
        self.sealing: Sealing = sealing or VirtualSealing()
        self.outbox: dict[str, Letter] = {}
        self.opened: list[tuple[str, str, int]] = []

    @property
    def arrived(self) -> dict[str, Letter]:
        """Letters that came with the request, unopened: sender -> letter."""
        return dict(self._arrived)

    @property
    def content(self) -> dict[str, Tree]:
        """All of them opened, at first use: sender -> content."""
        if self._content is None:
            self._content = {sender: self.open(sender, letter) for sender, letter in self._arrived.items()}
        return self._content

    def write(self, to: str, content: Tree, secret: Draw) -> Letter:
        """Seal a letter.

        Raises:
            ConfigError: nobody in the job has this name.
            PolicyError: the island keeps the content in.
        """
        self._require(to)
        self._release(content)
        letter = self.sealing.seal(self._party, to, self._request, self._written, content, secret)
        self._written += 1
        return letter

    def post(self, to: str, content: Tree, secret: Draw) -> None:
        """Seal a letter that goes with the reply."""
        if to in self.outbox:
            raise ConfigError(f"{self._party} posted two envelopes to {to!r}", remedy="put everything into one payload")
        self.outbox[to] = self.write(to, content, secret)

    def open(self, sender: str, letter: Letter) -> Tree:
        """Open a letter of a sender to this party.

        Raises:
            LetterError: it was altered, is not of this sender or not to this party, or nobody here can open it.
        """
        try:
            if (letter.sender, letter.to) != (sender, self._party):
                raise LetterError(
                    f"its envelope says {letter.sender} to {letter.to}", remedy="look at whoever relayed the letter"
                )
            content = self.sealing.open(letter)
        except AtollError as error:
            where = f"a letter of {sender} to {self._party}" + ("" if error.where is None else f", {error.where}")
            raise type(error)(
                error.what, where=where, remedy=error.remedy or "look at whoever relayed the letter"
            ) from error
        self.opened.append(letter.tag)
        return content
