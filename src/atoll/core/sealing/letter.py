"""A letter: it shows sender, recipient, request and sizes, and nothing of its content."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

from .. import message as M
from ..algebra.tree import Tree
from ..errors import LetterError, MessageError
from . import hpke
from .hpke import KEY, TAG

__all__ = [
    "DerivedKeys",
    "Draw",
    "Keys",
    "Letter",
    "RealSealing",
    "Sealing",
    "VirtualSealing",
    "envelope_of",
    "size_of",
]


# ------------------------------------------------------------------ a letter: it shows sender, recipient, request and sizes, and nothing of its content


_FIELDS = {"from": str, "to": str, "at": str, "n": int, "key": bytes, "box": bytes}


class Letter:
    """A sealed letter. Its envelope is readable, its content is not: there is no attribute for it.

    Attributes:
        sender: the party that wrote it.
        to: the recipient.
        request: the request in which it was written.
        number: its number among the sender's letters of that request.
        key: the sender's ephemeral public key; empty if sealing is virtual.
        nbytes: its encoded size, which virtual sealing counts too.
    """

    __slots__ = ("_box", "_content", "key", "nbytes", "number", "request", "sender", "to")

    def __init__(
        self, sender: str, to: str, request: str, number: int, key: bytes = b"", box: bytes = b"", content: Tree = None
    ) -> None:
        self.sender = sender
        self.to = to
        self.request = request
        self.number = number
        self.key = key
        self._box = box
        self._content = content
        sealed = len(box) if key else (len(box) if box else M.nbytes(content)) + TAG
        self.nbytes = size_of(self, sealed)

    @property
    def real(self) -> bool:
        """Whether it is encrypted."""
        return bool(self.key)

    @property
    def tag(self) -> tuple[str, str, int]:
        """What identifies this letter among all letters to the recipient: request, sender and number."""
        return self.request, self.sender, self.number

    def envelope(self) -> dict[str, Any]:
        """The readable part."""
        return envelope_of(self.sender, self.to, self.request, self.number)

    @property
    def ciphertext(self) -> bytes:
        """The encrypted content; empty if sealing is virtual."""
        return self._box if self.key else b""

    def pack(self) -> dict[str, Any]:
        """The letter as messages and checkpoints have it."""
        return {**self.envelope(), "key": self.key, "box": self._box or M.encode(self._content)}

    @staticmethod
    def unpack(packed: Any) -> Letter:
        """The inverse of ``pack``.

        Raises:
            LetterError: it is not a letter.
        """
        if isinstance(packed, Letter):
            return packed
        known = isinstance(packed, dict) and set(packed) == set(_FIELDS)
        if not known or not all(type(packed[name]) is kind for name, kind in _FIELDS.items()):
            raise LetterError(f"a {type(packed).__name__} is not a letter", remedy="pass letters on unchanged")
        if len(packed["key"]) not in (0, KEY) or packed["n"] < 0:
            raise LetterError(f"a letter whose key has {len(packed['key'])} bytes, number {packed['n']}")
        return Letter(*(packed[name] for name in _FIELDS))

    def encode(self) -> bytes:
        """The letter as bytes that can be part of any message."""
        return M.encode(self.pack())

    @staticmethod
    def decode(encoded: Any) -> Letter:
        """The inverse of ``encode``.

        Raises:
            LetterError: it is not a letter.
        """
        if not isinstance(encoded, bytes):
            raise LetterError(f"a {type(encoded).__name__} is not a letter", remedy="give the bytes of island.seal")
        try:
            return Letter.unpack(M.decode(encoded))
        except MessageError as error:
            raise LetterError(f"these bytes are not a letter: {error.what}") from error

    def __repr__(self) -> str:
        return f"Letter({self.sender} -> {self.to}, {self.request}#{self.number}, {self.nbytes} bytes)"


def size_of(letter: Letter, sealed: int) -> int:
    """The encoded size of a letter with this many sealed bytes."""
    return M.nbytes({**letter.envelope(), "key": bytes(KEY), "box": bytes(sealed)})


def envelope_of(sender: str, to: str, request: str, number: int) -> dict[str, Any]:
    """The readable part of a letter, which its content is bound to."""
    return {"from": sender, "to": to, "at": request, "n": number}


# ------------------------------------------------------------------ sealing of letters: real, with keys, or virtual, if everything is one process and one trust domain


Draw = Callable[[int], bytes]
"""Returns this many secret bytes."""


class Keys(Protocol):
    """The keys of one place: private keys of its own parties, public keys of all."""

    def private(self, party: str) -> bytes:
        """The private key of a party here.

        Raises:
            LetterError: the party is elsewhere.
        """
        ...

    def public(self, party: str) -> bytes:
        """The public key of a party of the job.

        Raises:
            LetterError: no key of the party is known.
        """
        ...

    def organisation(self, party: str) -> str:
        """Who holds the key."""
        ...


class DerivedKeys:
    """The keys of a simulation's parties, all derived from one secret: ``HMAC-SHA256(root, name)``.

    Args:
        root: the world's own 32 bytes.
    """

    def __init__(self, root: bytes) -> None:
        self._root = root
        self._private: dict[str, bytes] = {}
        self._public: dict[str, bytes] = {}

    def private(self, party: str) -> bytes:
        """A party's private key."""
        if party not in self._private:
            self._private[party] = hmac.digest(self._root, b"atoll letters\0" + party.encode(), hashlib.sha256)
        return self._private[party]

    def public(self, party: str) -> bytes:
        """A party's public key."""
        if party not in self._public:
            self._public[party] = hpke.public_of(self.private(party))
        return self._public[party]

    def organisation(self, party: str) -> str:
        """In a simulation a party is an organisation."""
        return party


class Sealing(Protocol):
    """Seals and opens letters."""

    name: ClassVar[str]
    real: ClassVar[bool]

    def organisation(self, party: str) -> str:
        """Who holds a party's key: parties of one organisation count as one in the least number of a sum."""
        ...

    def seal(
        self, sender: str, to: str, request: str, number: int, content: Tree, secret: Draw, agreed: bytes = b""
    ) -> Letter:
        """Seal a letter.

        Args:
            sender: a party here.
            to: any party.
            request: the request in which it is written.
            number: its number among the sender's letters of the request.
            content: the content, which only the recipient can read.
            secret: returns secret bytes for the ephemeral key.
            agreed: what is authenticated with it; it does not travel.
        """
        ...

    def open(self, letter: Letter, agreed: bytes = b"") -> Tree:
        """Open a letter to a party here.

        Args:
            letter: the letter.
            agreed: what must have been authenticated with it.

        Raises:
            LetterError: it does not match its envelope.
        """
        ...


class VirtualSealing:
    """Hides contents from the program only behind the API, and counts the bytes of real sealing: for simulations."""

    name: ClassVar[str] = "virtual"
    real: ClassVar[bool] = False

    def organisation(self, party: str) -> str:
        """In a simulation a party is an organisation."""
        return party

    def seal(
        self, sender: str, to: str, request: str, number: int, content: Tree, secret: Draw, agreed: bytes = b""
    ) -> Letter:
        """Keep the content inside the letter object."""
        del secret, agreed
        return Letter(sender, to, request, number, content=content)

    def open(self, letter: Letter, agreed: bytes = b"") -> Tree:
        """Return the content."""
        del agreed
        if letter.real:
            raise LetterError("it is encrypted, but this simulation has no keys", remedy="use sealing='real'")
        return M.decode(letter._box) if letter._box else letter._content


class RealSealing:
    """Encrypts from party to party with HPKE (RFC 9180) in its authenticated mode.

    ``info`` is the domain, so that a letter of one job never opens in another. ``aad`` is the envelope: sender, recipient, request and number cannot be
    changed. What the parties of a sum have agreed on is authenticated with it and does not travel. A letter returned to its sender does not open, because the two ends' keys have different parts in the key agreement.

    Args:
        keys: the keys of this place.
        domain: a value that all parties of the job share, and no other job has.
    """

    name: ClassVar[str] = "real"
    real: ClassVar[bool] = True

    def __init__(self, keys: Keys, domain: str) -> None:
        self.keys = keys
        self.domain = domain
        self._own: dict[str, hpke.OwnKey] = {}
        self._info: dict[str, bytes] = {}

    def _own_key(self, party: str) -> hpke.OwnKey:
        """The key of a party here. One that was replaced is forgotten."""
        private, known = self.keys.private(party), self._own.get(party)
        if known is None or known.private != private:
            known = self._own[party] = hpke.OwnKey(private)
        return known

    def organisation(self, party: str) -> str:
        """Who holds a party's key."""
        return self.keys.organisation(party)

    def seal(
        self, sender: str, to: str, request: str, number: int, content: Tree, secret: Draw, agreed: bytes = b""
    ) -> Letter:
        """Encrypt a letter."""
        enc, context = hpke.send(self.keys.public(to), self._own_key(sender), secret(hpke.KEY), self.info("letter"))
        aad = M.encode(envelope_of(sender, to, request, number)) + agreed
        return Letter(sender, to, request, number, enc, context.seal(M.encode(content), aad))

    def open(self, letter: Letter, agreed: bytes = b"") -> Tree:
        """Decrypt and verify a letter."""
        if not letter.real:
            raise LetterError("it is not encrypted", remedy="check its relay: parties encrypt their letters")
        context = hpke.receive(
            letter.key, self.keys.public(letter.sender), self._own_key(letter.to), self.info("letter")
        )
        try:
            return M.decode(context.open(letter.ciphertext, M.encode(letter.envelope()) + agreed))
        except MessageError as error:
            raise LetterError(f"its content is not a message: {error.what}") from error

    def info(self, use: str) -> bytes:
        """The context that the keys of one use are bound to."""
        if use not in self._info:
            self._info[use] = M.encode(["atoll", 1, use, self.domain])
        return self._info[use]
