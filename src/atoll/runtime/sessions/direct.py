"""Direct links: messages between roles of a session go from site to site, and the server keeps count.

Nouns:

* A *neighbour* is another site that this one's job process has a link to. Links exist before work begins, or they are
  not used; `atoll.runtime.site.neighbours` makes them.
* A *pair* of roles is direct in a session when both of their sites report, before any message, a link to each other.
  All messages between these two roles in that session go over it; every other message passes through the server. A
  route never changes later.
* A *word* is what a role's site reports to the server: ``["sent", role, bytes]`` of each direct message,
  ``["took", role]`` of each message that it has taken, whichever way it came. Words go in the order of the role's own
  actions, many in a frame. They are sent before anything for which the server needs them: a message through the server,
  the report that the role only waits, its end.

The path of a message from role ``a`` at site A to role ``b`` at site B:

```
server  ─ meet ────► A, B     roles are announced: messages to them are kept until they begin; each site answers which links it has
server  ─ role ────► A, B     the roles begin, with the names and sites of those that they reach directly
A       ─ hand ────► B        the message itself, over the link; the role's end, if it ended well, follows its last message ("gone")
A       ─ words ───► server   ["sent", "b", bytes]: meters, `said`, the count of messages in transit
B       ─ words ───► server   ["took", "a"]: the clock of b (`Chains`)
B       ─ waits ───► server   after its words: which roles b waits for, and how many of their messages it has taken
A, B    ─ reached ─► server   after their words: the role's state of a checkpoint is durable at its site
server  ─ step ────► A, B     all have reached it, and the server has written that down: the roles go on
```

The verdict that all roles wait for each other stays right although counts arrive later than messages, because a role's
words go before its report that it waits. Suppose the server saw all roles wait and all counts agree, and yet some role
went on after its report. The first to do so took a message that another role sent after reporting that it waits, as all
earlier ones were counted. So that role went on even earlier: a contradiction.

In virtual time, a session whose model of devices lets roles work, or loses them, passes through the server: each
message must carry its time.

A link that ends while a role may need it ends the job's process, and so the attempt; the next attempt finds out again
which links there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from atoll.core.errors import MessageError, TaskError
from atoll.engines.link import LinkClosed, Poster, feed

__all__ = ["DirectLinks", "NeighbourLost", "make_refusal", "require_at"]


class NeighbourLost(LinkClosed):
    """The link to another site ended while a role may need it."""


class DirectLinks:
    """The links of a site's job process to those of other sites.

    Args:
        links: site -> link: ``send(tree)``, ``recv() -> tree``, which raises ``LinkClosed``.
    """

    def __init__(self, links: Mapping[str, Any]) -> None:
        self._links = dict(links)
        self._posters = {site: Poster(link) for site, link in links.items()}

    @property
    def names(self) -> list[str]:
        """Return the sites that have a link now."""
        return sorted(self._links)

    def send(self, site: str, frame: Mapping[str, Any], done: Callable[[Exception | None], None]) -> None:
        """Send a frame; if the link has ended, its listener reports that."""
        if site in self._links:
            self._posters[site].send(dict(frame), done)
        else:
            done(None)

    async def listen(self, heard: Callable[[str, Any], None], ended: Callable[[str, Exception], None]) -> None:
        """Listen to all links until cancelled.

        Args:
            heard: called with the site and each of its frames.
            ended: called with the site when its link has ended, and the reason: ``LinkClosed``, or what arrived was not
                a message.
        """
        async with asyncio.TaskGroup() as group:
            for site in self.names:
                group.create_task(self._listen(site, heard, ended))
            await asyncio.get_running_loop().create_future()

    async def _listen(
        self, site: str, heard: Callable[[str, Any], None], ended: Callable[[str, Exception], None]
    ) -> None:
        def take(frame: Any) -> bool:
            heard(site, frame)
            return True

        try:
            await feed(self._links[site], take)
        except (LinkClosed, MessageError) as error:
            del self._links[site]
            ended(site, error)


def require_at(site: str, role: str, places: Mapping[str, str]) -> None:
    """Refuse a site that sends in the name of a role at another site.

    Raises:
        TaskError: the role is not at the site.
    """
    if places.get(role) != site:
        raise TaskError(
            f"it spoke for role {role!r:.100}, who is at {places.get(role, 'no site')!r}",
            where=f"site {site}",
            remedy="check what runs there: the message was refused",
        )


def make_refusal(site: str, error: Exception) -> TaskError:
    """Return the error for a site that sends a malformed frame."""
    return TaskError(
        f"what it sent directly is not a message of a role: {type(error).__name__}: {error}",
        where=f"site {site}",
        remedy="run the same version of Atoll at every site; check what runs there",
    )
