"""The record of the parties of one place: what they have promised, each once, and never take back.

A promise is a pair of hashes, a *matter* and the one value that the party is *bound* to. Matters are requests ("what I answered under this id"), replies ("the bytes that
I sent"), letters ("where I opened it") and whatever a protocol names (`Island.promise`): the set of parties that a sum is opened for, the model of a request that
may be summed once.

The record is the party's own. It is written before anything leaves, and no order of a server touches it: not ``keep``, ``settle`` or ``load``, no checkpoint and no
restart. So a server that lies about what a party did finds the same bytes or a refusal.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import message as M
from ..algebra import tree as T
from ..errors import CheckpointError, PolicyError
from ..persistence.files import append_bytes, write_bytes

if TYPE_CHECKING:
    from ..algebra.tree import Tree
    from .letter import Letter

__all__ = ["HASH", "Record", "Row", "hash_letters", "hash_parts", "hash_tree", "rows_in"]

HASH = 16
"""Bytes of a matter and of what a party is bound to."""

Row = tuple[bytes, bytes]
"""A matter, and what the party is bound to."""

_MAGIC = b"atoll record 1\n\0"
_HEAD = len(_MAGIC) + 2 * HASH + HASH
_FEW = 100_000
_LONG = 1 << 14


class Record:
    """Promises by matter.

    Args:
        path: the file, to which promises are appended. ``None`` keeps them in memory, for a simulation: only the latest, whose number grows with the cohort.
        renew: begin anew where the file is a copy of another. A copy, such as one from a backup, may lack promises that the original has given.

    Attributes:
        incarnation: 16 random bytes of this record; a copy that begins anew has others.
        key: 16 secret bytes, with which replies are hashed.
        renewed: whether it began anew.

    Raises:
        CheckpointError: the file is no record, or a copy that must not begin anew.
    """

    def __init__(self, path: Path | None = None, *, renew: bool = True) -> None:
        self.path = path
        self.incarnation, self.key = secrets.token_bytes(HASH), secrets.token_bytes(HASH)
        self.renewed = False
        self._known: dict[bytes, bytes] = {}
        self._step = 0
        self._held: dict[int, list[Row]] = {}
        if path is not None:
            self._open(path, renew)

    def _open(self, path: Path, renew: bool) -> None:
        raw = path.read_bytes() if path.exists() else b""
        if len(raw) < _HEAD:  # a crash came before the first promise
            self._begin(path)
            return
        if not raw.startswith(_MAGIC):
            raise CheckpointError("this is no record of promises", where=str(path), remedy="restore the file")
        incarnation, key, place = (raw[len(_MAGIC) + i * HASH :][:HASH] for i in range(3))
        if place != _place_of(path):
            # Its bytes were copied to another file: somewhere a longer one may exist.
            if not renew:
                raise CheckpointError(
                    "this record of promises is a copy: it may lack some that were given",
                    where=str(path),
                    remedy="submit the job again, or bring back the folder that it was copied from",
                )
            self.renewed = True
            self._begin(path)
            return
        self.incarnation, self.key = incarnation, key
        whole = _HEAD + (len(raw) - _HEAD) // (2 * HASH) * 2 * HASH
        self._known.update(rows_in(raw[_HEAD:whole]))
        if whole < len(raw):  # nothing left the place after an incomplete promise
            append_bytes(path, b"", at=whole)

    def _begin(self, path: Path) -> None:
        """Write an empty record; its file is created first, since its header says which file it is."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, _MAGIC, private=True)
        append_bytes(path, self.incarnation + self.key + _place_of(path))

    def __len__(self) -> int:
        return len(self._known)

    def __reduce__(self) -> tuple[Any, ...]:
        """Workers hash replies as their owner does; promises stay with it."""
        return _for_worker, (self.incarnation, self.key, self.durable)

    def get(self, matter: bytes) -> bytes | None:
        """What a party is bound to, ``None`` if it has promised nothing."""
        return self._known.get(matter)

    def require(self, rows: Iterable[Row]) -> list[Row]:
        """Refuse promises that contradict earlier ones or each other; return those that are new.

        Raises:
            PolicyError: a matter is bound to something else.
        """
        fresh: dict[bytes, bytes] = {}
        for matter, bound in rows:
            # Rows of one call are compared with each other too: a block may hold two answers to one matter.
            known = self._known.get(matter) or fresh.get(matter)
            if known is None:
                fresh[matter] = bound
            elif known != bound:
                raise PolicyError(
                    "this party has answered otherwise before",
                    where="record",
                    remedy="look at the server: it asks for a second answer to what is answered once",
                )
        return list(fresh.items())

    def note(self, rows: Iterable[Row]) -> None:
        """Give promises; they are durable when this returns, and only then may anything leave.

        Raises:
            PolicyError: a matter is bound to something else; then none is given.
            CheckpointError: the file cannot be written.
        """
        fresh = self.require(rows)
        if not fresh:
            return
        # One durable write a step serves all parties of a site; one a reply would cost a flush of the disk each.
        held = self._held.get(threading.get_ident())
        if held is None:
            self._write(fresh)
        else:
            held += fresh
        self._known.update(fresh)
        if not self.durable:
            # In memory no crash makes anybody ask twice, so old matters go: memory follows the cohort, not the rounds.
            self._step = max(self._step, len(fresh))
            if len(self._known) > max(_FEW, 32 * self._step):
                for matter in list(islice(self._known, len(self._known) // 2)):
                    del self._known[matter]

    @contextlib.contextmanager
    def write_together(self) -> Iterator[None]:
        """Write the promises that this thread gives in the block at once, at its end: until then nothing that they are for may leave."""
        held = self._held[threading.get_ident()] = []
        try:
            yield
        finally:
            # Also after an error: `_known` has these rows already, and must never know more than the file.
            del self._held[threading.get_ident()]
            if held:
                self._write(held)

    @property
    def durable(self) -> bool:
        """Whether promises outlive this process."""
        return self.path is not None

    def hash_reply(self, value: Tree, letters: Mapping[str, Letter], *, masked: bool) -> bytes:
        """A hash of the bytes that leave with a reply.

        Args:
            value: the reply.
            letters: those that it posts.
            masked: whether the reply is made for a reducer. In memory its hash is a fresh number: no crash makes anybody ask twice there, so a second reply is refused
                unread, and a simulation saves a pass over all words.
        """
        if masked and not self.durable:
            return secrets.token_bytes(HASH)
        return hash_parts(hash_tree(self.key, value), hash_letters(letters))

    def _write(self, rows: Sequence[Row]) -> None:
        if self.path is not None:
            append_bytes(self.path, b"".join(matter + bound for matter, bound in rows))

    def rows(self) -> bytes:
        """All promises as bytes, for a process that reads them."""
        return b"".join(matter + bound for matter, bound in self._known.items())

    def read(self, raw: bytes) -> None:
        """Take promises that another process has kept."""
        self._known.update(rows_in(raw))


class _WorkerRecord(Record):
    """The record of a worker, which hashes replies and keeps nothing."""

    durable = True


def _for_worker(incarnation: bytes, key: bytes, durable: bool) -> Record:
    made = _WorkerRecord() if durable else Record()
    made.incarnation, made.key = incarnation, key
    return made


def rows_in(raw: bytes) -> Iterator[Row]:
    """Promises from bytes that hold one after another."""
    for at in range(0, len(raw) // (2 * HASH) * 2 * HASH, 2 * HASH):
        yield raw[at : at + HASH], raw[at + HASH : at + 2 * HASH]


def _place_of(path: Path) -> bytes:
    """What tells a file from its copies: device, file number and, where the system tells it, the moment of its creation."""
    found = path.stat()
    born = getattr(found, "st_birthtime", 0)
    return hash_parts(found.st_dev, found.st_ino, born)


# ---------------------------------------------------------------------- hashes


def hash_parts(*parts: str | bytes | int | float) -> bytes:
    """A hash of values, which no other values have: each is prefixed by its length."""
    digest = hashlib.blake2b(digest_size=HASH)
    for part in parts:
        raw = part if isinstance(part, bytes) else str(part).encode()
        digest.update(len(raw).to_bytes(8, "little") + raw)
    return digest.digest()


def hash_letters(letters: Mapping[str, Letter]) -> bytes:
    """A hash of the letters that a party was handed."""
    digest = hashlib.blake2b(digest_size=HASH)
    for _, letter in sorted(letters.items()):
        box = letter.ciphertext
        digest.update(f"{letter.request}\0{letter.sender}\0{letter.to}\0{letter.number}\0{len(box)}\0".encode())
        digest.update(letter.key + box)
    return digest.digest()


def hash_tree(key: bytes, value: Tree) -> bytes:
    """A keyed hash of a message tree, 16 bytes: paths, dtypes, shapes and content.

    Long arrays are hashed by GMAC, five times as fast as BLAKE2b where the processor multiplies without carry. Two arrays with one GMAC can be found only by
    somebody who knows the key or sees a tag; both stay in the record.

    Args:
        key: 16 secret bytes.
        value: the tree.
    """

    def short(leaf: Any) -> Any:
        if not isinstance(leaf, np.ndarray) or leaf.dtype == object or leaf.nbytes < _LONG:
            return leaf
        plain = np.ascontiguousarray(leaf).view(np.ndarray)
        return {"dtype": plain.dtype.str, "shape": list(plain.shape), "tag": _tag_of(key, plain)}

    return hashlib.blake2b(M.encode(T.map(short, value)), key=key, digest_size=HASH).digest()


def _tag_of(key: bytes, array: Any) -> bytes:
    view = memoryview(array.reshape(-1).view(np.uint8))
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        return hashlib.blake2b(view, key=key, digest_size=HASH).digest()
    cipher, most = AESGCM(key), 1 << 30  # a call takes less than 2 GiB
    tags = [cipher.encrypt(at.to_bytes(12, "little"), b"", view[at : at + most]) for at in range(0, len(view), most)]
    return tags[0] if len(tags) == 1 else hash_parts(*tags)
