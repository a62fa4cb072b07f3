"""The conversation between a script and Atoll: messages over a pair of sockets, each behind its length. There is no pickle in it.

```
Atoll   {"op": "hello", "name", "settings", "form", "fixed", "aliases", "release"}
script  {"op": "here"}
Atoll   {"op": "task", "id", "round", "kind", "model", "settings", "seed"}
script  {"op": "data"}                                       at any time while it has a task
Atoll   {"op": "data", "columns", "task", "classes", "labels"}, or {"op": "data", "lacks": why}
script  {"op": "reply", "id", "model", "examples", "metrics"}
script  {"op": "failed", "error", "place"}                   instead of a reply
Atoll   {"op": "end"}
```
"""

from __future__ import annotations

import socket
import struct
from typing import Any

import numpy as np

from atoll.core import message as M
from atoll.core.algebra.tree import Tree
from atoll.core.errors import MessageError

__all__ = ["VARIABLE", "FrameSocket"]

VARIABLE = "ATOLL_CLIENT_SOCKET"
"""The environment variable with the number of the script's end of the sockets."""

_LENGTH = struct.Struct("<Q")
_SMALL = 1 << 18
_BUFFER = 4 << 20


class FrameSocket:
    """One end of the conversation.

    Args:
        sock: a connected socket; this owns it.
        most: bytes of the longest message that this end takes.
    """

    def __init__(self, sock: socket.socket, most: int = M.DEFAULT_LIMITS.max_bytes) -> None:
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):  # as much as the system allows: fewer turns a model
            sock.setsockopt(socket.SOL_SOCKET, option, _BUFFER)
        self.socket = sock
        self.most = most

    def send(self, tree: Tree) -> None:
        """Send a message.

        Raises:
            MessageError: it is not a message tree.
            OSError: the other end is gone.
        """
        size = M.nbytes(tree)
        self.socket.settimeout(None)
        if size < _SMALL:
            self.socket.sendall(_LENGTH.pack(size) + M.encode(tree))
            return
        self.socket.sendall(_LENGTH.pack(size))
        for chunk in M.encode_chunks(tree, 1 << 20):
            self.socket.sendall(chunk)

    def recv(self, within: float | None = None) -> Any:
        """Return the next message.

        Args:
            within: seconds that a piece of it may take.

        Raises:
            MessageError: it is not a message, or too long.
            EOFError: the other end is gone.
            OSError: the other end is gone, or nothing came in time.
        """
        self.socket.settimeout(within)
        (size,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        if size > self.most:
            raise MessageError(
                f"a message of {size} bytes, and {self.most} are allowed",
                where="the conversation with a script",
                remedy="reply with the model's own parameters, and with numbers as metrics",
            )
        return M.decode(self._exactly(size))

    def _exactly(self, size: int) -> memoryview:
        view, done = np.empty(size, np.uint8).data, 0  # not zeroed first
        while done < size:
            count = self.socket.recv_into(view[done:], size - done)
            if count == 0:
                raise EOFError
            done += count
        return view

    def close(self) -> None:
        """Close this end."""
        self.socket.close()
