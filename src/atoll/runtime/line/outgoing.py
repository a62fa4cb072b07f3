"""Blocks from messages."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from atoll.core import message as M
from atoll.runtime.transport.base import BLOCK, Buffer

from .frames import SharedContent
from .settings import Settings
from .spool import create_unnamed, write

__all__ = ["Outgoing", "PackedMessage"]


class PackedMessage:
    """A message that is serialised once and sent to many parties.

    Its bytes are kept in memory or in an unnamed file; later changes to the tree do not affect it.

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
        self.nbytes = M.nbytes(tree, limits=limits)
        self._file: int | None = None
        self._blocks: list[SharedContent] = []
        if spool is None or self.nbytes <= spool_over:
            self._blocks = [SharedContent(b"".join(parts)) for parts in M.encode_blocks(tree, BLOCK, limits=limits)]
            return
        self._file = create_unnamed(spool)
        for chunk in M.encode_chunks(tree, BLOCK, limits=limits):
            write(self._file, chunk)

    def blocks(self, size: int = BLOCK) -> Iterator[tuple[Buffer, SharedContent | None]]:
        """Yield its bytes in blocks of at most ``size``, each with its shared content."""
        if self._file is not None:
            for start in range(0, self.nbytes, size):
                yield os.pread(self._file, min(size, self.nbytes - start), start), None
        for block in self._blocks:
            content = memoryview(block.content)
            if len(content) <= size:
                yield content, block
            else:
                yield from ((content[start : start + size], None) for start in range(0, len(content), size))

    def __del__(self) -> None:
        if getattr(self, "_file", None) is not None:
            os.close(self._file)  # type: ignore[arg-type]


class Outgoing:
    """The blocks of a message, with the next one ready. A fault in a later block is kept for the caller that sends the message.

    Args:
        tree: a message, or a ``PackedMessage``.
        size: bytes of a block.
        limits: bounds on the message.

    Attributes:
        next: the pieces of the next block; empty if all are sent, or after a fault.
        size: its bytes.
        begun: whether a block was sent.
        settled: whether the pieces cannot change before they are sent.
        shared: the block, if others send it too.
        fault: why there is no next block.

    Raises:
        MessageError: a value that cannot be sent, or a message over the limits.
    """

    def __init__(self, tree: Any, size: int, limits: M.Limits) -> None:
        self.settled = isinstance(tree, PackedMessage)
        self.begun = False
        self.fault: Exception | None = None
        self._left = tree.nbytes if self.settled else M.nbytes(tree, limits=limits)
        self._blocks = _blocks(tree, size, limits)
        self.next: tuple[Buffer, ...] = ()
        self.shared: SharedContent | None = None
        self._advance()

    @property
    def last(self) -> bool:
        """Tell whether no block follows the next one."""
        return not self._left

    @property
    def done(self) -> bool:
        """Tell whether all blocks are sent."""
        return not self.next and self.fault is None

    def note_sent(self) -> None:
        """Note that the next block is sent."""
        self.begun = True
        try:
            self._advance()
        except Exception as error:
            self.next, self.shared, self.fault = (), None, error

    def _advance(self) -> None:
        self.next, self.shared = next(self._blocks, ((), None))
        self.size = sum(map(len, self.next))
        self._left -= self.size


def _blocks(tree: Any, size: int, limits: M.Limits) -> Iterator[tuple[tuple[Buffer, ...], SharedContent | None]]:
    if isinstance(tree, PackedMessage):
        return (((content,), shared) for content, shared in tree.blocks(size))
    return ((pieces, None) for pieces in M.encode_blocks(tree, size, limits=limits))
