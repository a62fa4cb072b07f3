"""Structured logs: one JSON object a line."""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

__all__ = ["JsonFormatter", "logger", "logging_to", "one_line"]

logger = logging.getLogger("atoll")
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """``{"time": ..., "level": ..., "logger": ..., "message": ..., **extra}``, times in UTC."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as one line."""
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry.update({k: v for k, v in vars(record).items() if k not in _STANDARD})
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str, ensure_ascii=False)


_ENDS = re.compile("\r\n|[\n\v\f\r\x1c-\x1e\x85\u2028\u2029]")
_OBEYED = re.compile("[\x00-\x08\x0e-\x1b\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def one_line(text: str) -> str:
    """Return a text as one line that no terminal obeys: what others have said cannot look like a line of its own."""
    return _OBEYED.sub("\ufffd", _ENDS.sub(" ⏎ ", text))


class _Quiet(RotatingFileHandler):
    """A file handler that ignores write errors, so that a log never stops a training: the checkpoint reports a full disk."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the base class's name
        """Ignore the error."""
        del record


@contextlib.contextmanager
def logging_to(path: Path, most: int = 0, kept: int = 5) -> Iterator[None]:
    """Write Atoll's log to a file while the context is open.

    Args:
        path: the file.
        most: bytes after which it is moved to ``path.1``, that to ``path.2`` and so on; 0 lets it grow.
        kept: how many older ones are kept.
    """
    handler = _Quiet(path, mode="a", maxBytes=most, backupCount=kept if most else 0, encoding="utf-8", delay=True)
    handler.setFormatter(JsonFormatter())
    before = logger.level
    logger.addHandler(handler)
    if not logger.isEnabledFor(logging.INFO):
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
        handler.close()
