"""The server's end of the link to each site: orders go out in the order given, and each answer finds its caller."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from atoll.core.errors import AtollError, CheckpointError, ConfigError, MessageError, TaskError
from atoll.core.requests.wire import unpack_error
from atoll.engines.link import LinkClosed, Poster, feed

from .validation import Intake

if TYPE_CHECKING:
    from atoll.core.message import Limits

__all__ = ["SiteLink", "Sites"]


# ------------------------------------------------------------------ the server's end of the link to one site
#
# The server's end of the link to one site: orders go out in the order given, and each answer finds its caller.


T = TypeVar("T")
_PLAIN = (TaskError, CheckpointError, MemoryError, OSError)
"""Errors that name the site already, and faults of this end while it handles a frame."""


class SiteLink:
    """One site.

    Args:
        name: of the site.
        link: to its job process.
        on_frame: takes frames that are not answers: replies, words of roles.
        on_end: called once when the link has ended, with the reason.

    Attributes:
        heard: when its last frame arrived, or when it was asked for something after a rest.
        alive: whether it has not been given up.
        mute: whether it has been silent for too long; until something from it arrives.
    """

    def __init__(
        self,
        name: str,
        link: Any,
        on_frame: Callable[[SiteLink, Any], None],
        on_end: Callable[[SiteLink, BaseException], None],
    ) -> None:
        self.name = name
        self.link = link
        self.heard = time.monotonic()
        self.alive = True
        self.mute = False
        self._intake = Intake(name, link)
        self._resting = True
        self._on_frame = on_frame
        self._on_end = on_end
        self._poster = Poster(link)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count()
        self._tasks: list[asyncio.Future[Any]] = [asyncio.create_task(self._read())]

    @property
    def owes(self) -> bool:
        """Tell whether it has not answered a question."""
        return bool(self._answers)

    def asks(self, replies: int, limits: Limits | None) -> None:
        """Note that it will be asked for some replies, and how large they may be; ``None``: of any size."""
        self._intake.note_asked(replies, limits)

    def count_unasked(self) -> None:
        """Count a frame that nobody asked for.

        Raises:
            MessageError: there are too many.
        """
        self._intake.count_unasked()

    def post(self, frame: dict[str, Any], body: Any = None) -> None:
        """Send an order with its body; send nothing to a site that is given up."""
        if self._resting:
            self._resting, self.heard = False, time.monotonic()
        if not self.alive:
            return
        self._poster.send(frame, self._check_sent)
        if body is not None:
            self._poster.send(body, self._check_sent)

    def _check_sent(self, error: Exception | None) -> None:
        """Give up the site if an order could not be sent: its answer would never come. An end of the link is seen by whoever reads it."""
        if error is not None and not isinstance(error, LinkClosed | OSError):
            self._end(error)

    async def call(self, frame: dict[str, Any], read: Callable[[Any], T]) -> T:
        """Give an order, wait for its answer and read it.

        Args:
            frame: the order.
            read: turns the answer into the result; if it raises, the site is given up.

        Raises:
            AtollError: the site's own error, the site went away, or its answer is malformed.
        """
        if not self.alive:
            raise self.make_gone_error()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        number = next(self._numbers)
        self._answers[number] = future
        self.post({**frame, "number": number})
        answer = await future
        try:
            told, found = unpack_error(answer.get("error")), None
            # Read before it is believed: whatever the site sent must not raise anywhere else.
            if told is None:
                found = read(answer)
        except Exception as error:
            raise self.refuse(error) from error
        if told is not None:
            raise self._name_error(told)
        return found  # type: ignore[return-value]  # it was read where nothing was told

    def _name_error(self, error: Exception) -> Exception:
        """Add the site's name to its own error."""
        if not isinstance(error, AtollError):
            return error
        place = "" if error.where is None else f", {error.where}"
        return type(error)(error.what, where=f"site {self.name}{place}", remedy=error.remedy)

    def refuse(self, error: BaseException) -> BaseException:
        """Give up the site: it sent something that no job process of ours sends.

        Args:
            error: what is wrong with it.

        Returns:
            The error that names the site; a fault of this end stays unchanged.
        """
        named = error
        if isinstance(error, Exception) and not isinstance(error, _PLAIN):
            named = TaskError(
                f"the site's job process sent a malformed frame: {type(error).__name__}: {_what(error)}",
                where=f"site {self.name}",
                remedy="nothing of it was used; check what runs there, and use the same version of Atoll everywhere",
            )
        self._end(named)
        return named

    def mark_idle(self) -> None:
        """Mark the site as idle: it owes nothing, and its silence counts from the next order."""
        self._resting = True

    def seconds_silent(self) -> float:
        """Return the seconds since anything from it arrived, a piece of a long message included, or since it was asked for something."""
        return time.monotonic() - max(self.heard, getattr(self.link, "heard", 0.0))

    def make_gone_error(self) -> TaskError:
        """Return the error for a site whose process is gone."""
        return TaskError(
            "the site's job process went away",
            where=f"site {self.name}",
            remedy="see the site's log; the job continues from its last checkpoint when the site is back",
        )

    def late(self) -> TaskError:
        """Return the error for a site that shows no progress."""
        return TaskError(
            f"no progress for {self.seconds_silent():.0f} seconds",
            where=f"site {self.name}",
            remedy="see the site's log; raise `patience` if its work is that slow, or set on_lost: drop",
        )

    async def _read(self) -> None:
        try:
            if self.alive:
                await feed(self.link, self._take)
        except LinkClosed:
            self._end(self.make_gone_error())
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # a malformed frame, or a full disk: callers that wait must know
            self.refuse(error)

    def _take(self, frame: Any) -> bool:
        """Hand a frame on; return whether more are wanted. What waits for the next frame does not hold this one, which may be as large as a model."""
        self.heard, self.mute = time.monotonic(), False
        if frame["op"] == "answer":
            future = self._answers.pop(frame["number"], None)
            if future is None:
                self.count_unasked()
            elif not future.done():
                future.set_result(frame)
        elif frame["op"] == "pulse":
            self._intake.pulse()
        else:
            self._on_frame(self, frame)
        return self.alive

    def _end(self, error: BaseException) -> None:
        if not self.alive:
            return
        self.alive = False
        for future in self._answers.values():
            if not future.done():
                future.set_exception(error)
                future.exception()  # the caller may be gone already
        self._answers.clear()
        self._on_end(self, error)

    def disconnect(self) -> None:
        """Drop a site that was given up while others go on: its part of this job may stop."""
        closing = self.link.close()
        if closing is not None:
            self._tasks.append(asyncio.ensure_future(closing))

    async def close(self) -> None:
        """Close the link."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._on_end = lambda *_: None
        self._end(self.make_gone_error())
        closing = self.link.close()
        if closing is not None:
            await closing


def _what(error: BaseException) -> str:
    return str(getattr(error, "what", error))[:1000]


# ------------------------------------------------------------------ the sites of a world as its server sees them: a link each, and who lives where


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
