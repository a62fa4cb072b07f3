"""How long frames are: short ones where the network is slow, so that some arrive all the time and nothing waits long behind one."""

from __future__ import annotations

from atoll.runtime.transport.base import BLOCK

__all__ = ["SHORTEST", "FramePace"]

SHORTEST = 1 << 14
"""Bytes of content below which no frame is cut."""
_FIRST = 1 << 16  # bytes, on a connection of which nothing is known yet
_QUICK, _SLOW = 1 / 60, 1 / 15  # of the time in which something must be heard


class FramePace:
    """Doubles the length of frames while the connection takes them at once, and halves it where it takes them slowly.

    What a connection takes at once may only have filled buffers on the way: nothing is doubled before the other end has said that frames
    of this connection arrive. That something arrives is known at the other end, over gRPC, only once a frame is whole. A connection over which 64 KiB pass in the
    time after which silence ends it so makes progress, whatever it is.

    Args:
        silence: seconds without a word after which the other end gives a connection up; None: it does not, and frames are as long as can be.

    Attributes:
        proven: whether the other end has consumed something since this connection began.
        most: bytes of content of the next frame; ``SHORTEST`` times a power of two.
    """

    def __init__(self, silence: float | None) -> None:
        self._silence = silence
        self.proven = False
        self.most = BLOCK if silence is None else _FIRST

    def took(self, size: int, seconds: float) -> None:
        """The connection has taken a frame of so many bytes in so many seconds."""
        if self._silence is None:
            return
        if seconds > _SLOW * self._silence:
            self.most = max(SHORTEST, self.most // 2)
        elif self.proven and size >= self.most and seconds < _QUICK * self._silence:
            self.most = min(BLOCK, 2 * self.most)
