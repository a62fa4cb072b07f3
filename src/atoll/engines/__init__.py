"""Worlds that run the waist: inline, batched, processes and a loopback socket. They know tasks, never algorithms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .inline import Inline

__all__ = ["ENGINES", "Inline"]

ENGINES: dict[str, Callable[[int | None], Any]] = {"inline": lambda workers: Inline()}
