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
    """How a relay ended.

    Attributes:
        channel: the channel that ended.
        error: its error; a ``LineLost`` if its whole line is gone.
    """

    channel: Channel
    error: LinkClosed


async def carry(one: Channel, other: Channel, moved: Moved = lambda count: None) -> Ending:
    """Forward blocks in both directions until one channel ends; neither is closed.

    Blocks sent before a channel closed are passed on first. If the receiver is slow, no more is taken from the sender:
    memory stays below the windows of the two channels.

    Args:
        one: a channel.
        other: the other one.
        moved: called with the size of each block passed on from ``one``.
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
    """Run ``carry``, and then close both: when one ends, so does the other, for the same reason."""
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
            block = await source.recv_block(target, moved)
        except LinkClosed as error:
            return Ending(source, error)
        try:
            await target.send_block(block)
        except LinkClosed as error:
            return Ending(target, error)
        moved(len(block.content))
        del block  # an idle relay holds no memory: a daemon has two of these for every channel
