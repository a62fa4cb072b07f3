"""Structured logs: one JSON object a line."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

__all__ = ["JsonFormatter", "logger", "logging_to"]

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


class _Quiet(logging.FileHandler):
    """A file handler that ignores write errors, so that a log never stops a training: the checkpoint reports a full disk."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the base class's name
        """Ignore the error."""
        del record


@contextlib.contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Write Atoll's log to a file while the context is open."""
    handler = _Quiet(path, mode="a", encoding="utf-8", delay=True)
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
