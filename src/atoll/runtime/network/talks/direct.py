"""Direct links: what the roles of a session say to each other goes from site to site, and the server keeps count.

Nouns:

* A *neighbour* is another site that this one's job process has a link to. Links are there before work begins, or they are not used: see
  `atoll.runtime.site.neighbours` for how fronts make them.
* A *pair* of roles is direct in a session when their two sites both say, before anybody speaks, that they have a link to each other. All that these
  two roles say to each other in that session goes over it; every other message passes through the server. Nothing changes its way later.
* A *word* is what a role's site tells the server of its conversation: ``["sent", role, bytes]`` of each direct message, ``["took", role]`` of each
  message that it has taken, whichever way that came. Words go in the order of the role's own doings, many in a frame, and never later than what
  the server must know them for: a message through the server, that the role can do nothing but wait, that it has ended.

The walk of a message from role ``a`` at site A to role ``b`` at site B:

```
server ─ meet ──► A, B       roles are announced: what is said to them is kept until they begin; each answers whom it has links to
server ─ role ──► A, B       the roles begin, with the names of those whom they reach directly, and by which site
A      ─ hand ──► B          the message itself, over the link; the role's end, if it ended well, follows its last message ("gone")
A      ─ words ─► server     ["sent", "b", bytes]: meters, `said`, the count of messages on their way
B      ─ words ─► server     ["took", "a"]: the clock of b (`atoll.core.time.lamport`)
B      ─ waits ─► server     after its words: whom b waits for, and how many of their messages it has had
```

The verdict that roles wait for each other stays right although counts come later than messages. A role's words go before its waiting is told. Suppose the
server saw all roles wait and all counts agree, and yet some role went on after it told so. The first to do so had taken a message that somebody sent
after having told that it waits, as all earlier ones were counted; so that one went on before: a contradiction.

In virtual time, a session whose model of devices lets roles work, or loses them, passes through the server: each message must carry its time.

A link that ends while a role may need it ends the job's process, and so the attempt; the next attempt finds out anew which links there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from atoll.core.errors import MessageError, TaskError
from atoll.engines.link import LinkClosed

__all__ = ["NeighbourLost", "Neighbours", "refused", "require_at"]


class NeighbourLost(LinkClosed):
    """The link to another site ended while a role may need it."""


class Neighbours:
    """The links of a site's job process to those of other sites.

    Args:
        links: site -> link: ``send(tree)``, ``recv() -> tree``, which raises ``LinkClosed``.
    """

    def __init__(self, links: Mapping[str, Any]) -> None:
        self._links = dict(links)

    @property
    def names(self) -> list[str]:
        """The sites to which there is a link now."""
        return sorted(self._links)

    async def send(self, site: str, frame: Mapping[str, Any]) -> None:
        """Send a frame; where the link has ended, whoever listens to it says so."""
        link = self._links.get(site)
        if link is not None:
            await link.send(dict(frame))

    async def listen(self, heard: Callable[[str, Any], None], ended: Callable[[str, Exception], None]) -> None:
        """Listen to all of them until cancelled.

        Args:
            heard: called with the site and each frame of its.
            ended: called with the site when its link has ended, and why: ``LinkClosed``, or what came was no message.
        """
        async with asyncio.TaskGroup() as group:
            for site in self.names:
                group.create_task(self._listen(site, heard, ended))
            await asyncio.get_running_loop().create_future()

    async def _listen(
        self, site: str, heard: Callable[[str, Any], None], ended: Callable[[str, Exception], None]
    ) -> None:
        try:
            while True:
                heard(site, await self._links[site].recv())
        except (LinkClosed, MessageError) as error:
            del self._links[site]
            ended(site, error)


def require_at(site: str, role: str, places: Mapping[str, str]) -> None:
    """Refuse a site that speaks for a role which is not there.

    Raises:
        TaskError: always then.
    """
    if places.get(role) != site:
        raise TaskError(
            f"it spoke for role {role!r:.100}, who is at {places.get(role, 'no site')!r}",
            where=f"site {site}",
            remedy="look at what runs there: the message was refused",
        )


def refused(site: str, error: Exception) -> TaskError:
    """What to say of a site that sends what makes no sense."""
    return TaskError(
        f"what it sent directly is no word of a role: {type(error).__name__}: {error}",
        where=f"site {site}",
        remedy="run the same version of Atoll at every site; look at what runs there",
    )
