"""How long frames are: short ones on a slow network, so that some arrive all the time and nothing waits long behind one."""

from __future__ import annotations

from atoll.runtime.transport.base import BLOCK

__all__ = ["SHORTEST", "FramePace"]

SHORTEST = 1 << 14
"""Bytes of content; no frame is cut to less."""
_FIRST = 1 << 16  # bytes, on a connection about which nothing is known yet
_QUICK, _SLOW = 1 / 60, 1 / 15  # of the time in which something must arrive


class FramePace:
    """Doubles the length of frames while the connection takes them quickly, and halves it when it is slow.

    A fast write may only have filled buffers on the way, so nothing is doubled before the other end has acknowledged
    frames of this connection. Over gRPC the other end notices data only once a frame is complete. So a connection makes
    progress if it carries 64 KiB in the time after which silence would end it.

    Args:
        silence: seconds of silence after which the other end gives up a connection; None: never, and frames have full
            length.

    Attributes:
        proven: whether the other end has consumed something since this connection began.
        most: bytes of content of the next frame; ``SHORTEST`` times a power of two.
    """

    def __init__(self, silence: float | None) -> None:
        self._silence = silence
        self.proven = False
        self.most = BLOCK if silence is None else _FIRST

    def took(self, size: int, seconds: float) -> None:
        """Note that the connection took a frame of ``size`` bytes in ``seconds``."""
        if self._silence is None:
            return
        if seconds > _SLOW * self._silence:
            self.most = max(SHORTEST, self.most // 2)
        elif self.proven and size >= self.most and seconds < _QUICK * self._silence:
            self.most = min(BLOCK, 2 * self.most)
