"""Generations of private state: every site writes, keeps and returns to the same ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from atoll.core.errors import TaskError

from .frames import names_in
from .site_link import SiteLink

__all__ = ["Generations"]


class Generations:
    """Orders about private state that go to every site.

    Args:
        site_links: the sites by name.
        spares: whether the program goes on without a lost site, and so without its answer.
    """

    def __init__(self, site_links: Mapping[str, SiteLink], *, spares: Callable[[SiteLink], bool]) -> None:
        self._links = site_links
        self._spares = spares

    async def commit(self, slot: str, generation: int, *, full: bool) -> list[str]:
        """Make every site write what changed; the names of the segments say where they are: ``file@site``."""
        frame = {"op": "commit", "slot": slot, "generation": generation, "full": full}
        answers = await self._everywhere(dict.fromkeys(self._links, frame), lambda answer: names_in(answer, "names"))
        return [f"{name}@{site}" for site in sorted(answers) for name in answers[site]]

    async def settle(self, slot: str, names: Iterable[str]) -> None:
        """Make every site forget what came before these segments."""
        await self._send_names("settle", slot, names)

    async def load(self, slot: str, names: Iterable[str]) -> None:
        """Make every site return the private state of a slot to these segments."""
        await self._send_names("load", slot, names)

    async def publish(self) -> None:
        """Make every site write the named results of its parties."""
        await self._everywhere({site: {"op": "publish"} for site in self._links})

    def drop(self, slot: str) -> None:
        """Make every site forget a slot."""
        for site_link in self._links.values():
            site_link.post({"op": "drop", "slot": slot})

    async def _send_names(self, op: str, slot: str, names: Iterable[str]) -> None:
        split = [name.rpartition("@") for name in names]
        await self._everywhere(
            {
                site: {"op": op, "slot": slot, "names": [file for file, _, where in split if where == site]}
                for site in self._links
            }
        )

    async def _everywhere(
        self, frames: Mapping[str, dict[str, Any]], read: Callable[[Any], Any] = lambda answer: True
    ) -> dict[str, Any]:
        """Give every site an order and wait for all answers, except those of lost sites if the program goes on without them."""

        async def tell_site(site_link: SiteLink) -> Any:
            try:
                if site_link.mute:  # it was waited for already
                    raise site_link.refuse(site_link.late())
                return await site_link.call(frames[site_link.name], read)
            except TaskError:
                if site_link.alive or not self._spares(site_link):
                    raise
                return None

        # One that is lost and may not be is called, too: that is an error, and no checkpoint without what it keeps.
        site_links = [link for link in self._links.values() if link.alive or not self._spares(link)]
        answers = await asyncio.gather(*map(tell_site, site_links))
        return {s.name: answer for s, answer in zip(site_links, answers, strict=True) if answer is not None}
