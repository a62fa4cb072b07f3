"""The message that the frames of a channel make, one after the other."""

from __future__ import annotations

from typing import Any

from atoll.core.errors import MessageError

from .frames import DROP, END, Frame
from .messages import Assembly
from .settings import Settings

__all__ = ["Incoming"]


class Incoming:
    """Takes frames until a message is whole. What is wrong with one is kept for whoever asks for the message.

    Attributes:
        whole: whether the message has ended, or was refused: take it before the next frame.
    """

    def __init__(self) -> None:
        self.whole = False
        self._assembly: Assembly | None = None
        self._refused: Exception | None = None

    def add(self, frame: Frame, settings: Settings) -> None:
        """Take the next frame.

        Args:
            frame: of data; there must be none whose message was not taken.
            settings: the limits of the message that begins with it.
        """
        if frame.flags & DROP:
            self.forget()
            return
        self._assembly = self._assembly or Assembly(settings)
        self.whole = bool(frame.flags & END)
        try:
            self._assembly.add(frame.content)
        except Exception as error:
            self._refused, self.whole = error, True

    def result(self) -> Any:
        """The message, once it is whole; the next one may follow.

        Raises:
            MessageError: it is none, or over the limits.
            OSError: there was no room for it.
        """
        try:
            if self._refused is not None:
                raise self._refused
            if self._assembly is None or not self.whole:
                raise MessageError("the message has not ended", where="channel", remedy="wait for its last block")
            return self._assembly.result()
        finally:
            self.forget()

    def forget(self) -> None:
        """Drop what came of a message."""
        if self._assembly is not None:
            self._assembly.close()
        self._assembly = self._refused = None
        self.whole = False
