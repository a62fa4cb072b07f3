"""A letter: what travels from party to party, and says who wrote to whom, in which request, and nothing else."""

from __future__ import annotations

from typing import Any

from .. import message as M
from ..algebra.tree import Tree
from ..errors import LetterError, MessageError
from .hpke import KEY, TAG

__all__ = ["Letter", "envelope_of", "size_of"]

_FIELDS = {"from": str, "to": str, "at": str, "n": int, "key": bytes, "box": bytes}


class Letter:
    """A sealed letter. Its envelope can be read, its content cannot: there is no attribute for it.

    Attributes:
        sender: who wrote it.
        to: for whom.
        request: the request in which it was written.
        number: its number among the sender's letters of that request.
        key: the sender's ephemeral public key; empty where sealing is virtual.
        nbytes: its size when encoded, which sealing that is only virtual accounts as well.
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
        """What no other letter to this recipient has: request, sender and number."""
        return self.request, self.sender, self.number

    def envelope(self) -> dict[str, Any]:
        """All that anybody may read of it."""
        return envelope_of(self.sender, self.to, self.request, self.number)

    @property
    def ciphertext(self) -> bytes:
        """What is encrypted; empty where sealing is virtual."""
        return self._box if self.key else b""

    def packed(self) -> dict[str, Any]:
        """As it travels, and as checkpoints hold it."""
        return {**self.envelope(), "key": self.key, "box": self._box or M.encode(self._content)}

    @staticmethod
    def unpack(packed: Any) -> Letter:
        """The inverse of ``packed``.

        Raises:
            LetterError: it is no letter.
        """
        if isinstance(packed, Letter):
            return packed
        known = isinstance(packed, dict) and set(packed) == set(_FIELDS)
        if not known or not all(type(packed[name]) is kind for name, kind in _FIELDS.items()):
            raise LetterError(f"a {type(packed).__name__} that is no letter", remedy="hand over letters as they came")
        if len(packed["key"]) not in (0, KEY) or packed["n"] < 0:
            raise LetterError(f"a letter whose key has {len(packed['key'])} bytes, number {packed['n']}")
        return Letter(*(packed[name] for name in _FIELDS))

    def encoded(self) -> bytes:
        """As bytes that can be part of any message."""
        return M.encode(self.packed())

    @staticmethod
    def decode(encoded: Any) -> Letter:
        """The inverse of ``encoded``.

        Raises:
            LetterError: it is no letter.
        """
        if not isinstance(encoded, bytes):
            raise LetterError(f"a {type(encoded).__name__} that is no letter", remedy="give the bytes of island.seal")
        try:
            return Letter.unpack(M.decode(encoded))
        except MessageError as error:
            raise LetterError(f"bytes that are no letter: {error.what}") from error

    def __repr__(self) -> str:
        return f"Letter({self.sender} -> {self.to}, {self.request}#{self.number}, {self.nbytes} bytes)"


def size_of(letter: Letter, sealed: int) -> int:
    """The encoded size of a letter whose box has so many bytes."""
    return M.nbytes({**letter.envelope(), "key": bytes(KEY), "box": bytes(sealed)})


def envelope_of(sender: str, to: str, request: str, number: int) -> dict[str, Any]:
    """What a letter says openly, and is bound to."""
    return {"from": sender, "to": to, "at": request, "n": number}
