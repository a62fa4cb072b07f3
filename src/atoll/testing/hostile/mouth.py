"""The channel of a hostile site's job process: what is said into it comes out changed."""

from __future__ import annotations

import asyncio
from typing import Any

from atoll.core.errors import MessageError
from atoll.core.message import Limits, encode
from atoll.runtime.line.channel import ChannelBlock
from atoll.runtime.line.frames import END

from .attack import Attack, Garbage, Silence, kind_of

__all__ = ["Mouth"]

_BLOCK = 1 << 16
_WIDE = Limits(max_header_bytes=1 << 30, max_key_bytes=1 << 30, max_leaves=1 << 30, max_int_bits=1 << 30)


class Mouth:
    """A channel to the server that carries out an attack.

    Args:
        channel: the real channel.
        attack: what to do.
        after: frames of the attack's kind that it sends honestly before.
    """

    def __init__(self, channel: Any, attack: Attack, after: int = 0) -> None:
        self._channel = channel
        self._attack = attack
        self._honest = after
        self._silent = False

    def __getattr__(self, name: str) -> Any:
        if name in ("post", "feed"):  # the short ways around `send` and `recv`
            raise AttributeError(name)
        return getattr(self._channel, name)

    async def send(self, tree: Any) -> None:
        """Send a frame, or what the attack puts in its place."""
        if self._silent:
            await asyncio.Event().wait()
        if kind_of(tree) != self._attack.on:
            await self._channel.send(tree)
            return
        self._honest -= 1
        if self._honest >= 0:
            await self._channel.send(tree)
            return
        for said in self._attack.change(tree):
            await self._say(said)

    async def _say(self, said: Any) -> None:
        if isinstance(said, Silence):
            self._silent = True
            await asyncio.Event().wait()
        elif isinstance(said, Garbage):
            await self._channel.send_block(ChannelBlock(said.content, END))
        else:
            await self._send_whatever(said)

    async def _send_whatever(self, said: Any) -> None:
        """Send a frame. Our own writer refuses what no reader takes, so such a frame is written without limits."""
        try:
            await self._channel.send(said)
        except MessageError:
            content = encode(said, limits=_WIDE)
            for start in range(0, len(content), _BLOCK):
                last = start + _BLOCK >= len(content)
                await self._channel.send_block(ChannelBlock(content[start : start + _BLOCK], END if last else 0))
