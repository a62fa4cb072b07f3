"""Sealing of letters: real, with keys, or virtual, if everything is one process and one trust domain."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from typing import ClassVar, Protocol

from .. import message as M
from ..algebra.tree import Tree
from ..errors import LetterError, MessageError
from . import hpke
from .letter import Letter, envelope_of

__all__ = ["DerivedKeys", "Draw", "Keys", "RealSealing", "Sealing", "VirtualSealing"]

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

    def private(self, party: str) -> bytes:
        """A party's private key."""
        return hmac.digest(self._root, b"atoll letters\0" + party.encode(), hashlib.sha256)

    def public(self, party: str) -> bytes:
        """A party's public key."""
        return hpke.public_of(self.private(party))

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

    def organisation(self, party: str) -> str:
        """Who holds a party's key."""
        return self.keys.organisation(party)

    def seal(
        self, sender: str, to: str, request: str, number: int, content: Tree, secret: Draw, agreed: bytes = b""
    ) -> Letter:
        """Encrypt a letter."""
        enc, context = hpke.send(self.keys.public(to), self.keys.private(sender), secret(hpke.KEY), self.info("letter"))
        aad = M.encode(envelope_of(sender, to, request, number)) + agreed
        return Letter(sender, to, request, number, enc, context.seal(M.encode(content), aad))

    def open(self, letter: Letter, agreed: bytes = b"") -> Tree:
        """Decrypt and verify a letter."""
        if not letter.real:
            raise LetterError("it is not encrypted", remedy="check its relay: parties encrypt their letters")
        context = hpke.receive(
            letter.key, self.keys.public(letter.sender), self.keys.private(letter.to), self.info("letter")
        )
        try:
            return M.decode(context.open(letter.ciphertext, M.encode(letter.envelope()) + agreed))
        except MessageError as error:
            raise LetterError(f"its content is not a message: {error.what}") from error

    def info(self, use: str) -> bytes:
        """The context that the keys of one use are bound to."""
        return M.encode(["atoll", 1, use, self.domain])
