"""What of a request goes to every site: its words, and its message, which is serialised once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from atoll.core import message as M
from atoll.core.request import Request
from atoll.core.wire import pack_request
from atoll.runtime.line import Channel, Packed

__all__ = ["Shared", "bare"]

_COPIED = 1 << 26  # bytes of a message up to which its serialised form is kept as a whole while it is sent


class Shared:
    """A message for many sites, serialised once.

    A long one is not copied as a whole: every link cuts its own blocks out of the same arrays.

    Args:
        tree: the message.
    """

    def __init__(self, tree: Any) -> None:
        self._tree = tree
        self._packed: Packed | None = None
        self._copied = M.nbytes(tree) <= _COPIED

    def form(self, link: Any) -> Any:
        """What a link takes."""
        if not self._copied or not isinstance(link, Channel):
            return self._tree
        if self._packed is None:
            self._packed = Packed(self._tree)
        return self._packed


def bare(request: Request, names: Sequence[str] = ()) -> dict[str, Any]:
    """A request without its message, with the mail of these parties."""
    packed: Any = pack_request(request, list(names))
    return {name: value for name, value in packed.items() if name != "message"}
