"""What a script prints: passed on line by line to the job's log or a file, and no more of it than a person could read."""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from pathlib import Path
from typing import IO

__all__ = ["MOST", "ScriptOutput"]

MOST = 1 << 20
"""Bytes that are passed on in one round; what is beyond is counted and left out."""
_LINE = 8192
_CHUNK = 1 << 16
_LAST_WORDS = 2.0
"""Seconds to read what is left after the end."""


class ScriptOutput:
    """Reads a script's output in a thread of its own, so that the script never waits for it.

    Args:
        reading: the end of a pipe; this owns it.
        client: the client's name, which begins each line of the log.
        file: where lines are added instead.

    Attributes:
        bytes: bytes so far.
        last: the last line that is not empty.
    """

    def __init__(self, reading: int, client: str, file: Path | None) -> None:
        self.bytes = 0
        self.last = ""
        self._client, self._file = client, file
        self._budget = MOST
        self._left_out = 0
        self._thread = threading.Thread(target=self._read, args=(reading,), name=f"atoll-script-{client}", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """Begin a round: what was left out is said, and as much may be written again."""
        self._budget, left = MOST, self._left_out
        self._left_out = 0
        if left:
            self._write(f"[{left} more bytes of output in the round before, left out]")

    def finish(self) -> None:
        """Wait until everything is passed on; a program that the script has started may hold the other end for longer."""
        self._thread.join(_LAST_WORDS)
        self.begin()

    def _read(self, reading: int) -> None:
        lines, rest = deque[bytes](), b""
        with os.fdopen(reading, "rb", 0) as pipe:
            while chunk := pipe.read(_CHUNK):
                self.bytes += len(chunk)
                *lines, rest = (rest + chunk).split(b"\n")  # type: ignore[assignment]
                for line in lines:
                    self._take(line)
                if len(rest) > _LINE:
                    self._take(rest)
                    rest = b""
        self._take(rest)

    def _take(self, line: bytes) -> None:
        text = line[:_LINE].rstrip(b"\r").decode("utf-8", "replace")
        if not text.strip():
            return
        self.last = text.strip()
        if self._budget < len(line):
            self._budget = 0
            self._left_out += len(line) + 1
            return
        self._budget -= len(line) + 1
        self._write(text)

    def _write(self, text: str) -> None:
        if self._file is None:
            sys.stdout.write(f"{self._client}: {text}\n")
            sys.stdout.flush()
            return
        file: IO[str]
        with self._file.open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")
