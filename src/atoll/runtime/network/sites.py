"""The sites of a world as its server sees them: a link each, and who lives where."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from atoll.core.errors import ConfigError, MessageError, TaskError

from .site_link import SiteLink

__all__ = ["Sites"]


class Sites:
    """The sites that have a link, and the parties at each.

    Args:
        links: site -> link to its job process.
        placement: the site of each party, in the order of the roster; nothing for one that lives at none.

    Attributes:
        links: see above.
        placement: see above.
        site_links: site -> ``SiteLink``, once it is open.

    Raises:
        ConfigError: a party lives at a site without a link.
    """

    def __init__(self, links: Mapping[str, Any], placement: Sequence[str]) -> None:
        homeless = sorted(set(placement) - {*links, ""})
        if homeless:
            raise ConfigError(f"no link to site {homeless[0]!r}", where="placement", remedy="connect every site")
        self.links = dict(links)
        self.placement = list(placement)
        self.site_links: dict[str, SiteLink] = {}

    def open(
        self, on_frame: Callable[[SiteLink, Any], None], on_end: Callable[[SiteLink, BaseException], None]
    ) -> None:
        """Start listening; see `SiteLink` for what is called."""
        for name, link in self.links.items():
            self.site_links[name] = SiteLink(name, link, on_frame, on_end)

    async def close(self) -> None:
        """Close all links."""
        for site_link in self.site_links.values():
            await site_link.close()

    def of(self, position: int) -> SiteLink:
        """Return the site of a party.

        Raises:
            ConfigError: the party runs at no site.
        """
        site = self.placement[position] if position < len(self.placement) else ""
        if not site:
            raise ConfigError(
                f"party number {position} runs at no site, and the program sends it a request",
                where="placement",
                remedy="submit the job to a project with a helper of the party's role; an edge takes no requests",
            )
        return self.site_links[site]

    def at(self, site_link: SiteLink) -> set[int]:
        """Return the parties of a site."""
        return {position for position, site in enumerate(self.placement) if site == site_link.name}

    def group_parties(self, positions: Iterable[int]) -> dict[SiteLink, list[int]]:
        """Group parties by site."""
        found: dict[SiteLink, list[int]] = {}
        for position in positions:
            found.setdefault(self.of(int(position)), []).append(int(position))
        return found

    def require_home(self, site_link: SiteLink, position: int, name: Callable[[int], str]) -> None:
        """Refuse a site that answers for a party that does not live there.

        Args:
            site_link: the site that sent the frame.
            position: the party that it answers for.
            name: the name of a party, for the error.

        Raises:
            MessageError: there is no such party.
            TaskError: it lives elsewhere.
        """
        if not 0 <= position < len(self.placement):
            raise MessageError(f"there is no party number {position}")
        if self.placement[position] != site_link.name:
            raise TaskError(
                f"it answered for {name(position)!r}, who lives at {self.placement[position]!r}",
                where=f"site {site_link.name}",
                remedy="check what runs there: the reply was refused",
            )
