"""The parts of a request that go to every site: its words, and its message, which is serialised once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from atoll.core import message as M
from atoll.core.requests.request import Request
from atoll.core.requests.wire import pack_request
from atoll.runtime.line import Channel, PackedMessage

__all__ = ["Shared", "bare", "restore_words", "words"]

_COPIED = 1 << 26  # bytes of a message up to which its serialised form is kept as a whole while it is sent


class Shared:
    """A message for many sites, serialised once.

    A long message is not copied as a whole: every link cuts its own blocks from the same arrays.

    Args:
        tree: the message.
    """

    def __init__(self, tree: Any) -> None:
        self._tree = tree
        self._packed: PackedMessage | None = None
        self._copied = M.nbytes(tree) <= _COPIED

    def form(self, link: Any) -> Any:
        """Return what a link takes."""
        if not self._copied or not isinstance(link, Channel):
            return self._tree
        if self._packed is None:
            self._packed = PackedMessage(self._tree)
        return self._packed


def words(request: Request) -> dict[str, Any]:
    """Return the message of a request, and that of the request that it wraps."""
    said = {"message": request.message}
    return said if request.wraps is None else {**said, "wraps": words(request.wraps)}


def bare(request: Request, names: Sequence[str] = ()) -> dict[str, Any]:
    """Return a request without its messages, with the mail of these parties."""
    return _without_words(pack_request(request, list(names)))


def restore_words(packed: Any, said: Any) -> dict[str, Any]:
    """Return a request with its messages again: the inverse of `bare` and `words`."""
    inner = packed["wraps"]
    return {
        **packed,
        "message": said["message"],
        "wraps": None if inner is None else restore_words(inner, said["wraps"]),
    }


def _without_words(packed: Any) -> dict[str, Any]:
    inner = packed["wraps"]
    left = {name: value for name, value in packed.items() if name != "message"}
    return {**left, "wraps": None if inner is None else _without_words(inner)}
