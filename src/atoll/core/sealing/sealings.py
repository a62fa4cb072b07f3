"""Who can seal and open letters: for real, with keys, or virtually, where everything is one process and one trust domain."""

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
"""Gives so many secret bytes."""


class Keys(Protocol):
    """The keys that one place has: private ones of its own parties, public ones of all."""

    def private(self, party: str) -> bytes:
        """The private key of a party that lives here.

        Raises:
            LetterError: it lives elsewhere.
        """
        ...

    def public(self, party: str) -> bytes:
        """The public key of a party of the job.

        Raises:
            LetterError: no key of it is known.
        """
        ...


class DerivedKeys:
    """The keys of a simulation's parties, all from one secret: ``HMAC-SHA256(root, name)``.

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


class Sealing(Protocol):
    """Seals and opens letters."""

    name: ClassVar[str]
    real: ClassVar[bool]

    def seal(self, sender: str, to: str, request: str, number: int, content: Tree, secret: Draw) -> Letter:
        """Seal a letter.

        Args:
            sender: a party that lives here.
            to: any party.
            request: in which it is written.
            number: its number among the sender's letters of the request.
            content: what only the recipient shall read.
            secret: gives the ephemeral key.
        """
        ...

    def open(self, letter: Letter) -> Tree:
        """Open a letter to a party that lives here.

        Raises:
            LetterError: it is not what its envelope says.
        """
        ...


class VirtualSealing:
    """Hides contents from the program by the API alone, and accounts the bytes of real sealing: for simulations."""

    name: ClassVar[str] = "virtual"
    real: ClassVar[bool] = False

    def seal(self, sender: str, to: str, request: str, number: int, content: Tree, secret: Draw) -> Letter:
        """Hold the content back."""
        del secret
        return Letter(sender, to, request, number, content=content)

    def open(self, letter: Letter) -> Tree:
        """The content."""
        if letter.real:
            raise LetterError("it is encrypted, and this simulation has no keys", remedy="use sealing='real'")
        return M.decode(letter._box) if letter._box else letter._content


class RealSealing:
    """Encrypts party to party with HPKE (RFC 9180) in its authenticated mode.

    ``info`` is the domain, so that a letter of one job never opens in another. ``aad`` is the envelope: sender, recipient, request and number cannot be
    exchanged, and a letter that comes back to its sender does not open, because the two ends' keys have different parts in the key agreement.

    Args:
        keys: the keys of this place.
        domain: what all parties agree on, and no other job has.
    """

    name: ClassVar[str] = "real"
    real: ClassVar[bool] = True

    def __init__(self, keys: Keys, domain: str) -> None:
        self.keys = keys
        self.domain = domain

    def seal(self, sender: str, to: str, request: str, number: int, content: Tree, secret: Draw) -> Letter:
        """Encrypt."""
        enc, context = hpke.send(self.keys.public(to), self.keys.private(sender), secret(hpke.KEY), self.info("letter"))
        aad = M.encode(envelope_of(sender, to, request, number))
        return Letter(sender, to, request, number, enc, context.seal(M.encode(content), aad))

    def open(self, letter: Letter) -> Tree:
        """Decrypt and verify."""
        if not letter.real:
            raise LetterError("it is not encrypted", remedy="look at whoever relayed it: parties encrypt theirs")
        context = hpke.receive(
            letter.key, self.keys.public(letter.sender), self.keys.private(letter.to), self.info("letter")
        )
        try:
            return M.decode(context.open(letter.ciphertext, M.encode(letter.envelope())))
        except MessageError as error:
            raise LetterError(f"its content is no message: {error.what}") from error

    def info(self, use: str) -> bytes:
        """What the keys of one use are bound to."""
        return M.encode(["atoll", 1, use, self.domain])
