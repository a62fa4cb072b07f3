"""Waiting for a condition without sleeping on the clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["until"]


async def until(found: Callable[[], object], seconds: float = 120.0) -> None:
    """Let others run until something is true."""
    async with asyncio.timeout(seconds):
        while not found():
            await asyncio.sleep(0.005)
