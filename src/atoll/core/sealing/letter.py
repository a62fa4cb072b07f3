"""A letter: it shows sender, recipient, request and sizes, and nothing of its content."""

from __future__ import annotations

from typing import Any

from .. import message as M
from ..algebra.tree import Tree
from ..errors import LetterError, MessageError
from .hpke import KEY, TAG

__all__ = ["Letter", "envelope_of", "size_of"]

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
