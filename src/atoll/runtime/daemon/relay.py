"""Pass the blocks of a job between its process and the network, without reading them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from atoll.engines.link import LinkClosed
from atoll.runtime.line import Channel

__all__ = ["Ending", "carry", "relay"]

Moved = Callable[[int], None]


class Ending(NamedTuple):
    """How a relay came to its end.

    Attributes:
        channel: which of the two ended.
        error: what it said; a ``LineLost`` if its whole line is gone.
    """

    channel: Channel
    error: LinkClosed


async def carry(one: Channel, other: Channel, moved: Moved = lambda count: None) -> Ending:
    """Forward blocks in both directions until one channel ends; neither is closed.

    What a channel's far end had sent before it closed is passed on first. Where the taker is slow, nothing more is taken
    from the giver: memory stays below the windows of the two channels.

    Args:
        one: a channel.
        other: the other one.
        moved: told of the bytes of each block that was passed on from ``one``.
    """
    ways = [asyncio.create_task(_forward(one, other, moved)), asyncio.create_task(_forward(other, one, lambda _: None))]
    try:
        done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
    return next(way.result() for way in ways if way in done)


async def relay(one: Channel, other: Channel, moved: Moved = lambda count: None) -> Ending:
    """``carry``, and then close both: when one ends, the other does, for the same reason."""
    try:
        ending = await carry(one, other, moved)
    except BaseException:
        one.close("the relay was stopped")
        other.close("the relay was stopped")
        raise
    one.close(str(ending.error))
    other.close(str(ending.error))
    return ending


async def _forward(source: Channel, target: Channel, moved: Moved) -> Ending:
    while True:
        try:
            block = await source.recv_block()
        except LinkClosed as error:
            return Ending(source, error)
        try:
            await target.send_block(block)
        except LinkClosed as error:
            return Ending(target, error)
        moved(len(block.content))
        del block  # while nothing comes nothing is held: a front has two of these waiting for every channel
