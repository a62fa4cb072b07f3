"""Messages as blocks, and blocks as messages."""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core import message as M
from atoll.core.errors import MessageError
from atoll.core.message.size import total_size
from atoll.core.message.wire import PROLOGUE
from atoll.runtime.transport.base import BLOCK, Buffer

from .settings import Settings

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Assembly", "Packed", "blocks_of"]


class Packed:
    """A message that is serialised once and sent to many.

    Its bytes are kept, in memory or in a file without a name; later changes of the tree do not reach it.

    Args:
        tree: the message.
        spool: a folder for the bytes of messages longer than ``spool_over``; None keeps them in memory.
        spool_over: bytes.
        limits: bounds on the message.

    Raises:
        MessageError: a value that cannot be sent, or a message over the limits.
    """

    def __init__(
        self,
        tree: Any,
        *,
        spool: Path | None = None,
        spool_over: int = Settings.spool_over,
        limits: M.Limits = M.DEFAULT_LIMITS,
    ) -> None:
        chunks = M.encode_chunks(tree, BLOCK, limits=limits)
        self.nbytes = 0
        self._file: int | None = None
        self._blocks: list[bytes] = []
        if spool is not None and M.nbytes(tree, limits=limits) > spool_over:
            self._file = _unnamed(spool)
        for chunk in chunks:
            if self._file is None:
                self._blocks.append(bytes(chunk))
            else:
                _write(self._file, chunk)
            self.nbytes += len(chunk)

    def blocks(self, size: int = BLOCK) -> Iterator[tuple[Buffer, bool]]:
        """Its bytes in blocks of at most ``size``, each with whether it is the last."""
        if self._file is None:
            done = 0
            for block in self._blocks:
                for start in range(0, len(block), size):
                    part = block if len(block) <= size else memoryview(block)[start : start + size]
                    done += len(part)
                    yield part, done == self.nbytes
            return
        for start in range(0, self.nbytes, size):
            yield os.pread(self._file, min(size, self.nbytes - start), start), start + size >= self.nbytes

    def __del__(self) -> None:
        if getattr(self, "_file", None) is not None:
            os.close(self._file)  # type: ignore[arg-type]


def blocks_of(tree: Any, size: int, limits: M.Limits) -> Iterator[tuple[Buffer, bool]]:
    """The bytes of a message in blocks, each with whether it is the last; views of its arrays are no ``bytes``."""
    if isinstance(tree, Packed):
        yield from tree.blocks(size)
        return
    left = M.nbytes(tree, limits=limits)
    for chunk in M.encode_chunks(tree, size, limits=limits):
        left -= len(chunk)
        yield chunk, left == 0


class Assembly:
    """A message as its blocks come: in memory, or, where long messages hold enough of that, in a file without a name that is then mapped.

    Args:
        settings: its limits and where long messages go.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._decoder: M.Decoder | None = None
        self._file: int | None = None
        self._memory: NDArray[np.uint8] | None = None
        self._total = 0
        self._done = 0

    def add(self, block: Buffer) -> None:
        """Take the next block.

        Raises:
            MessageError: it is no message, over the limits, or longer than it said.
        """
        if self._decoder is None and self._file is None and self._memory is None:
            self._begin(block)
        if self._decoder is not None:
            self._decoder.feed(block)
            return
        self._done += len(block)
        if self._done > self._total:
            raise _damaged(f"{self._done} bytes came of a message of {self._total}")
        if self._memory is not None:
            self._memory[self._done - len(block) : self._done] = np.frombuffer(block, dtype=np.uint8)
        elif self._file is not None:
            _write(self._file, block)

    def _begin(self, block: Buffer) -> None:
        settings = self._settings
        if len(block) >= PROLOGUE.size and settings.spool is not None:
            _, _, _, header, body = PROLOGUE.unpack_from(block)
            self._total = total_size(header, body)
        if settings.spool is None or not settings.spool_over < self._total <= settings.limits.max_bytes:
            self._decoder = M.Decoder(settings.limits)
            return
        M.Decoder(settings.limits).feed(block[: PROLOGUE.size])  # refuses what is no message before room is made for it
        if settings.held.take(self._total):
            self._memory = _room(self._total)
            weakref.finalize(self._memory, settings.held.give, self._total)
        else:
            self._file = _unnamed(settings.spool)

    def result(self) -> Any:
        """The message; its arrays are read-only views.

        Raises:
            MessageError: it is damaged or not whole.
        """
        if self._decoder is not None:
            return self._decoder.result()
        if self._done != self._total:
            raise _damaged(f"the message ends after {self._done} of {self._total} bytes")
        if self._memory is not None:
            return M.decode(memoryview(self._memory.data).toreadonly(), limits=self._settings.limits)
        if self._file is None:
            raise _damaged("no block of it came")
        mapped = mmap.mmap(self._file, self._total, prot=mmap.PROT_READ)  # lives as long as arrays look at it
        return M.decode(memoryview(mapped), limits=self._settings.limits)

    def close(self) -> None:
        """Forget what came; a mapping that somebody uses stays."""
        self._decoder = self._memory = None
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _room(nbytes: int) -> NDArray[np.uint8]:
    """Memory for a message, placed as its arrays want it."""
    raw = np.empty(nbytes + 63, dtype=np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes]


def _damaged(what: str) -> MessageError:
    return MessageError(what, where="the message", remedy="the message is damaged or was cut off: have it sent again")


def _unnamed(folder: Path) -> int:
    """A file without a name in a folder: it is gone with the process, whatever ends it."""
    folder.mkdir(parents=True, exist_ok=True)
    number, name = tempfile.mkstemp(dir=folder, prefix="message-")
    Path(name).unlink()
    return number


def _write(file: int, data: Buffer) -> None:
    view = memoryview(data)
    while len(view):
        view = view[os.write(file, view) :]
