"""The letterbox of one party in one request: the letters that it may open, and those that it has written."""

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
    """Seals and opens letters, and records them.

    Args:
        party: the party.
        request: the request of the running task.
        sealing: seals and opens.
        arrived: letters by sender, as the relay delivered them.
        require: refuses a recipient that is not in the job.
        release: the island's policy on what may leave; it sees contents before they are sealed.
        sum: path of the sum that the request belongs to: letters of other sums do not open in it, nor its letters elsewhere.

    Attributes:
        outbox: letters that are sent with the reply, by recipient.
        opened: the tags of opened letters.
    """

    __slots__ = (
        "_agreed",
        "_arrived",
        "_content",
        "_party",
        "_release",
        "_request",
        "_require",
        "_step",
        "_written",
        "opened",
        "outbox",
        "sealing",
        "sum",
    )

    def __init__(
        self,
        party: str,
        request: str,
        sealing: Sealing | None = None,
        arrived: Mapping[str, Letter] | None = None,
        require: Callable[[str], object] = _anybody,
        release: Callable[[Tree], None] = _anything,
        sum: str = "",  # noqa: A002  the field's term
    ) -> None:
        self._party = party
        self._request = request
        self._arrived = arrived or {}
        self._require = require
        self._release = release
        self._written = 0
        self._agreed, self._step = b"", ""
        self.sum = sum
        self._content: dict[str, Tree] | None = None
        self.sealing: Sealing = sealing or VirtualSealing()
        self.outbox: dict[str, Letter] = {}
        self.opened: list[tuple[str, str, int]] = []

    @property
    def arrived(self) -> dict[str, Letter]:
        """Letters that arrived with the request, unopened, by sender."""
        return dict(self._arrived)

    @property
    def content(self) -> dict[str, Tree]:
        """The content of all of them, opened on first use, by sender."""
        if self._content is None:
            self._content = {sender: self.open(sender, letter) for sender, letter in self._arrived.items()}
        return self._content

    def bind(self, agreed: bytes, written_in: str = "") -> None:
        """Authenticate these bytes with each letter from now on, and open only letters of one step.

        Args:
            agreed: what writer and reader have agreed on.
            written_in: name of the task that wrote the letters to open; ``""`` opens those of any.
        """
        self._agreed, self._step = agreed, f"/{written_in}/" if written_in else ""

    def write(self, to: str, content: Tree, secret: Draw) -> Letter:
        """Seal a letter.

        Raises:
            ConfigError: no party of the job has this name.
            PolicyError: the island's policy does not release the content.
        """
        self._require(to)
        self._release(content)
        letter = self.sealing.seal(self._party, to, self._request, self._written, content, secret, self._agreed)
        self._written += 1
        return letter

    def post(self, to: str, content: Tree, secret: Draw) -> None:
        """Seal a letter to send with the reply."""
        if to in self.outbox:
            raise ConfigError(f"{self._party} posted two envelopes to {to!r}", remedy="put everything into one payload")
        self.outbox[to] = self.write(to, content, secret)

    def open(self, sender: str, letter: Letter) -> Tree:
        """Open a letter from a sender to this party.

        Raises:
            LetterError: it was altered, is from another sender or for another party, or has no key here that opens it.
        """
        try:
            if (letter.sender, letter.to) != (sender, self._party):
                raise LetterError(
                    f"its envelope says {letter.sender} to {letter.to}", remedy="check the relay of the letter"
                )
            self._require_here(letter)
            content = self.sealing.open(letter, self._agreed)
        except AtollError as error:
            where = f"a letter of {sender} to {self._party}" + ("" if error.where is None else f", {error.where}")
            raise type(error)(
                error.what, where=where, remedy=error.remedy or "check the relay of the letter"
            ) from error
        self.opened.append(letter.tag)
        return content

    def _require_here(self, letter: Letter) -> None:
        """Refuse a letter of another sum: one that an ordinary dropout left unopened must not open later, where it would be taken for another.

        Raises:
            LetterError: it was written in another sum, or in a sum and is opened outside.
        """
        within = f"{self.sum}/" if self.sum else _sum_of(self._request)
        here = letter.request.startswith(within) if within else not _sum_of(letter.request)
        if here and self._step in letter.request:
            return
        raise LetterError(
            f"it was written in {letter.request}",
            where=self._request,
            remedy="deliver a letter in the sum in which it was written; if the program does, check the relay",
        )


def _sum_of(request: str) -> str:
    """The sum whose reducer names a request, such as ``main/train/@3//SecureAggregation/``; ``""`` for a request of the program."""
    program, mark, own = request.partition("//")
    return f"{program}{mark}{own.partition('/')[0]}/" if mark else ""
