"""The letterbox of one party in one request: the letters that it may open, and those that it has written."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import message as M
from ..algebra.tree import Tree
from ..errors import AtollError, ConfigError, LetterError, MessageError
from . import hpke
from .letter import Draw, Letter, Sealing, VirtualSealing

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .letter import RealSealing

__all__ = ["Letterbox", "RoleSealing", "Speaker", "sealed_nbytes"]


# ------------------------------------------------------------------ the letterbox of one party in one request
#
# The letterbox of one party in one request: the letters that it may open, and those that it has written.


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


# ------------------------------------------------------------------ sessions that no relay can read
#
# Sessions that no relay can read: the messages of a session's roles are sealed, one by one and in order.
# Each ordered pair of roles has one HPKE context for each channel. It is bound to both roles, parties and requests, to the channel, and to a new key that each of the two draws for
# this one run of its role. So a message opens only at its recipient, at its place in the order, and in the run that it was written for: a relay
# can only hold it back.


_PLACE = struct.Struct("<QQ")
PIECE = 1 << 26
"""Bytes of a message that are encrypted at once: the cipher accepts at most 2 GiB, and a piece is copied."""


@dataclass(frozen=True)
class Speaker:
    """A role of a session, as the others see it.

    Attributes:
        party: the party that plays it.
        request: the id of its request.
        keys: for each other role, the public key drawn for messages to it in this run.
    """

    party: str
    request: str
    keys: Mapping[str, bytes]


def sealed_nbytes(nbytes: int) -> int:
    """Encoded size of a sealed message, given that of its content; virtual sealing counts the same size."""
    return M.nbytes(np.empty(nbytes + hpke.TAG * -(-nbytes // PIECE), dtype=np.uint8))


class RoleSealing:
    """Seals the messages of one role, and opens messages to it.

    Args:
        sealing: has the keys of the parties here.
        me: the role.
        cast: all roles, including this one.
        drawn: for each other role, the private key to ``cast[me].keys``.
    """

    def __init__(self, sealing: RealSealing, me: str, cast: Mapping[str, Speaker], drawn: Mapping[str, bytes]) -> None:
        self._sealing = sealing
        self._me = me
        self._cast = cast
        self._drawn = drawn
        self._sending: dict[tuple[str, str], _Numbered] = {}
        self._hearing: dict[tuple[str, str], _Numbered] = {}

    def seal(self, target: str, message: Tree, channel: str = "") -> NDArray[np.uint8]:
        """Seal the next message to another role on a channel.

        Raises:
            LetterError: no key of that role's party is known, or the key cannot be trusted.
        """
        if (target, channel) not in self._sending:
            recipient = self._sealing.keys.public(self._cast[target].party)
            private = self._sealing.keys.private(self._cast[self._me].party)
            info = self._info(self._me, target, channel)
            self._sending[target, channel] = _Numbered(hpke.send(recipient, private, self._drawn[target], info)[1])
        return self._sending[target, channel].seal(M.encode(message))

    def open(self, source: str, sealed: Any, channel: str = "") -> Tree:
        """Open the next message of another role on a channel.

        Raises:
            LetterError: the message was altered, left out, repeated or moved, or is from another role, party, channel or run.
        """
        route = f"role {source!r} at {self._cast[source].party} to role {self._me!r} at {self._cast[self._me].party}"
        number = 0 if (source, channel) not in self._hearing else self._hearing[source, channel].number
        try:
            if (source, channel) not in self._hearing:
                self._hearing[source, channel] = self._listening(source, channel)
            return M.decode(self._hearing[source, channel].open(sealed))
        except (LetterError, MessageError) as error:
            stream = f" on channel {channel!r}" if channel else ""
            where = f"message {number + 1} of {route}{stream}" + ("" if error.where is None else f", {error.where}")
            raise LetterError(
                error.what, where=where, remedy=error.remedy or "check the relay of the message"
            ) from error

    def _listening(self, source: str, channel: str) -> _Numbered:
        keys, speaker = self._sealing.keys, self._cast[source]
        sender, recipient = keys.public(speaker.party), keys.private(self._cast[self._me].party)
        info = self._info(source, self._me, channel)
        return _Numbered(hpke.receive(self._key(source, self._me), sender, recipient, info))

    def _key(self, role: str, other: str) -> bytes:
        key = self._cast[role].keys.get(other, b"")
        if len(key) != hpke.KEY:
            raise LetterError(
                f"role {role!r} at {self._cast[role].party} has drawn no key for role {other!r}",
                remedy="give every site of the job a kit, and use the same version of Atoll at all of them",
            )
        return key

    def _info(self, source: str, target: str, channel: str) -> bytes:
        """The context that the keys of one direction of a channel are bound to."""
        ends: list[Any] = [
            [role, self._cast[role].party, self._cast[role].request, self._key(role, other)]
            for role, other in ((source, target), (target, source))
        ]
        return self._sealing.info("session") + M.encode([*ends, channel] if channel else ends)


class _Numbered:
    """One direction: messages split into pieces, each bound to its place and to the length of the whole."""

    def __init__(self, context: hpke.HpkeContext) -> None:
        self._context = context
        self.number = 0

    def seal(self, content: bytes) -> NDArray[np.uint8]:
        aad, raw = self._next(len(content)), memoryview(content)
        if len(raw) <= PIECE:
            return np.frombuffer(self._context.seal(raw, aad), dtype=np.uint8)
        out, at = np.empty(len(raw) + hpke.TAG * -(-len(raw) // PIECE), dtype=np.uint8), 0
        for i in range(0, len(raw), PIECE):
            piece = self._context.seal(raw[i : i + PIECE], aad)
            out[at : at + len(piece)] = np.frombuffer(piece, dtype=np.uint8)
            at += len(piece)
        return out

    def open(self, sealed: Any) -> bytes:
        if not isinstance(sealed, np.ndarray) or sealed.dtype != np.uint8 or sealed.ndim != 1 or not sealed.size:
            raise LetterError("it is not encrypted")
        raw, step = np.ascontiguousarray(sealed).data, PIECE + hpke.TAG
        aad = self._next(len(raw) - hpke.TAG * -(-len(raw) // step))
        pieces = [self._context.open(raw[i : i + step], aad) for i in range(0, len(raw), step)]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _next(self, nbytes: int) -> bytes:
        self.number += 1
        return _PLACE.pack(self.number, nbytes)
