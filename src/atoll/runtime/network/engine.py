"""The server's half of the engine: sends tasks to where the data is, and adds up the replies.

Every party lives at a site, and what tasks leave there stays: states, journal and privacy ledger. The request and its
message go down; the encoded summand (or the reply) comes up. Orders about generations take all places back to the same
checkpoint after a crash.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from atoll.core.errors import AtollError, ConfigError, MessageError, TaskError
from atoll.core.event import unpack_event
from atoll.core.execution.engine import News
from atoll.core.message import DEFAULT_LIMITS
from atoll.core.requests.request import PartialSum, Reply, Request, TaskResult
from atoll.core.requests.wire import unpack_ran

from .replies import ReplyTable, Running, Started
from .session_server import ServerSessions
from .shared import Shared, bare, words
from .site_link import SiteLink, Sites
from .validation import limits_of, majority, names_in, require_events, text_in, whole_in

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.execution.engine import RunContext
    from atoll.core.execution.session import Switch

__all__ = ["Generations", "Network"]


# ------------------------------------------------------------------ generations of private state: every site writes, keeps and returns to the same ones


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


# ------------------------------------------------------------------ the server's half of the engine: sends tasks to where the data is, and adds up the replies


_LOG = logging.getLogger("atoll.runtime")


class Network:
    """Runs tasks at sites.

    Args:
        links: site -> link to its job process.
        placement: the site of each party, in the order of the roster.
        patience: seconds without progress after which a site that owes a reply is given up.
        on_lost: what happens then: the program fails, or continues without the site's parties.
        required: sites that the program never continues without.
        direct: let the roles of a session talk over links between their sites, if there are any; see
            `atoll.runtime.network.session_site`.
        on_outlier: what happens to a reply that stands far outside its cohort (see `atoll.runtime.network.validation`): it is
            named, or also rejected. To reject, the engine keeps all replies of a round until the last one is there.
    """

    name: ClassVar[str] = "network"
    vectorised: ClassVar[bool] = False
    live: ClassVar[bool] = True

    def __init__(
        self,
        links: Mapping[str, Any],
        placement: Sequence[str],
        *,
        patience: float = 600.0,
        on_lost: Literal["fail", "drop"] = "fail",
        required: Collection[str] = (),
        direct: bool = False,
        on_outlier: Literal["warn", "reject"] = "warn",
    ) -> None:
        if not patience > 0:
            raise ConfigError(f"patience={patience} seconds", remedy="use a positive number")
        self.choices: dict[str, Any] = {}
        self.news = News()
        self.patience = patience
        self.on_lost = on_lost
        self.direct = direct
        self.on_outlier = on_outlier
        self.sites = Sites(links, placement)
        self._replies = ReplyTable(self.news, self._refuse, self._rows)
        self._required = frozenset(required)
        self._generations = Generations(self.sites.site_links, spares=self.spares)
        self._sessions = ServerSessions(self.sites, self.choices, self.note_events, spares=self.spares, direct=direct)
        self._world: RunContext | None = None
        self._watch: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------ opening and closing

    @property
    def world(self) -> RunContext:
        """Return the world that it serves."""
        if self._world is None:
            raise RuntimeError("the engine is not open")
        return self._world

    async def open(self, world: RunContext) -> None:
        """Start listening to the sites."""
        self._world = world
        self._sessions.open(world)
        self.choices["sites"] = sorted(self.sites.links)
        self.sites.open(self._take_frame, self._end_site)
        if not world.clock.virtual:
            self._watch = asyncio.create_task(self._watching())

    async def close(self) -> None:
        """Close all links."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        await self.sites.close()

    # ------------------------------------------------------------------ what sites send

    def _take_frame(self, site_link: SiteLink, frame: Any) -> None:
        if frame["op"] in ("pass", "waits", "words", "reached"):
            self._sessions.take_frame(site_link, frame)
            return
        position, request = whole_in(frame, "party"), text_in(frame, "id")
        self.require_home(site_link, position)
        if not self._replies.awaits(request, position):
            site_link.count_unasked()
            return
        try:
            events = self.events_of(frame.get("events"), position)
            self._replies.take_reply(request, position, frame, self.world.clock.now())
        except MessageError as error:
            if self.spares(site_link):
                self._replies.reject_reply(
                    request, position, f"site {site_link.name}: {error.what}", self.world.clock.now()
                )
            raise
        self._book_events(events)

    def _rows(self, position: int) -> int | None:
        """Return the rows that a party declared when the job began."""
        sizes = getattr(self.world.population, "sizes", None)
        return None if sizes is None or position >= len(sizes) else int(sizes[position])

    def require_home(self, site_link: SiteLink, position: int) -> None:
        """Refuse a site that speaks for a party that does not live there; see `Sites.require_home`."""
        self.sites.require_home(site_link, position, self.world.roster.name)

    def note_events(self, events: Any, position: int) -> None:
        """Write what a party has spent to the server's ledger before the program sees what it released.

        Raises:
            MessageError: they are not events, or they belong to another party.
        """
        self._book_events(self.events_of(events, position))

    def events_of(self, events: Any, position: int) -> list[tuple[Any, str, str]]:
        """Read what a party has spent.

        Raises:
            MessageError: they are not events, or they belong to another party.
        """
        require_events(events, self.world.roster.name(position))
        return [(unpack_event(dict(told["event"])), told["party"], told["request"]) for told in events]

    def _book_events(self, events: list[tuple[Any, str, str]]) -> None:
        for event, party, request in events:
            self.world.ledger.append(event, party, request)

    def _refuse(self, position: int, error: MessageError) -> BaseException:
        """Give up a party's site: its reply cannot be added to the others."""
        return self.sites.of(position).refuse(error)

    def spares(self, site_link: SiteLink) -> bool:
        """Whether the program goes on without a site, if it is lost."""
        return self.on_lost == "drop" and site_link.name not in self._required

    def _end_site(self, site_link: SiteLink, error: BaseException) -> None:
        if not self.spares(site_link) or not isinstance(error, TaskError):
            self.news.fail(error)
        else:
            _LOG.warning("the job goes on without site %s: %s", site_link.name, error.what)
            self._give_up(site_link)
            site_link.disconnect()

    def _give_up(self, site_link: SiteLink) -> None:
        self._replies.note_losses(self.sites.at(site_link), self.world.clock.now())

    async def _watching(self) -> None:
        while True:
            await asyncio.sleep(min(self.patience / 10, 5.0))
            self.check_patience()

    def check_patience(self) -> None:
        """Give up each site that owes a reply and shows no progress for ``patience`` seconds. Call this now and then.

        If the program goes on without a site, it does not wait for that site again until something from it arrives.
        """
        owing = self.sites.group_parties(self._replies.owed())
        # A site that owes nothing may be silent for as long as it likes, and must not be given up for it at its next order.
        for site_link in self.sites.site_links.values():
            if site_link not in owing and not site_link.owes:
                site_link.mark_idle()
            elif site_link.seconds_silent() > self.patience and site_link.alive:
                self._silent(site_link)

    def _silent(self, site_link: SiteLink) -> None:
        if site_link.owes:  # what its parties keep differs from the others now: it cannot come back
            site_link.refuse(site_link.late())
        elif self.spares(site_link):
            site_link.mute = True
            self._give_up(site_link)
        else:
            self.news.fail(site_link.late())

    # ------------------------------------------------------------------ work

    def launch(self, request: Request, positions: NDArray[np.int64], push: str) -> Started:
        """Start the task at each party, once even if the party is named several times; see `atoll.core.execution.engine.LiveEngine`."""
        waits = push == "sum" and self.on_outlier == "reject"
        started = self._replies.begin(request, positions, self._drop, "fold" if waits else push)
        body = Shared(words(request))
        wanted = "fold" if push == "sum" else push
        for site_link, here in self.sites.group_parties(dict.fromkeys(positions.tolist())).items():
            if not self._expect_replies(site_link, request, len(here)):
                continue
            names = [self.world.roster.name(p) for p in here] if request.mail else []
            frame = {"op": "launch", "request": bare(request, names), "positions": here, "push": wanted, "body": True}
            site_link.post(frame, body.form(site_link.link))
        return started

    def _expect_replies(self, site_link: SiteLink, request: Request, replies: int) -> bool:
        """Note that a site will be asked for some replies; return false for a site that will not answer, whose replies are given up: nothing else ends the wait."""
        if site_link.mute or not site_link.alive:
            self._give_up(site_link)
            return False
        site_link.asks(replies, limits_of(request, DEFAULT_LIMITS))
        return True

    def _drop(self, request: str, positions: list[int], undo: bool) -> None:
        for site_link, here in self.sites.group_parties(dict.fromkeys(positions)).items():
            site_link.post({"op": "discard" if undo else "keep", "id": request, "positions": here})

    async def _ready(self, request: Request, positions: NDArray[np.int64], kind: str) -> None:
        """Wait for the replies of these parties, and ask for those not asked for yet."""
        missing = [p for p in positions.tolist() if not self._replies.knows(request.id, p)]
        if missing:
            everyone = kind == "fold" and len(missing) == len(positions) and not request.apart
            self.launch(request, np.array(missing, dtype=np.int64), "sum" if everyone else kind)
        with self.world.clock.busy():
            await self._replies.wait(request.id, positions.tolist())
            await self._collect(request, positions.tolist(), kind)

    async def _collect(self, request: Request, positions: list[int], kind: str) -> None:
        """Fetch replies that were left where they were made."""
        parked = [p for p in dict.fromkeys(positions) if self._replies.parked(request.id, p, kind)]
        if not parked:
            return
        words = bare(request)
        frame = {"op": "collect", "as": kind, "id": request.id, "positions": []}
        frame |= {name: words[name] for name in ("uplink", "place", "public", "apart")}
        for site_link, here in self.sites.group_parties(parked).items():
            self._replies.reopen(request, here, kind)
            if self._expect_replies(site_link, request, len(here)):
                site_link.post({**frame, "positions": here})
        await self._replies.wait(request.id, parked)

    async def run(self, request: Request, positions: NDArray[np.int64]) -> list[Reply]:
        """Return the reply of each party, in the order given."""
        await self._ready(request, positions, "run")
        frames = [self._take_reply(request.id, p) for p in positions.tolist()]
        self._drop(request.id, positions.tolist(), undo=False)
        return [_reply(frame, p) for frame, p in zip(frames, positions.tolist(), strict=True)]

    async def fold(self, request: Request, positions: NDArray[np.int64]) -> PartialSum:
        """Return the sum of the parties' summands, in cohort order; undo what a failed sum left."""
        await self._ready(request, positions, "fold")
        running = self._replies.sum_of(request.id, positions.tolist())
        outliers = self._replies.outlying(request.id, positions.tolist())
        for position, how in outliers.items():
            _LOG.warning("the reply of %s stands far outside its cohort: %s", self.world.roster.name(position), how)
        rejects = outliers if running is None and self.on_outlier == "reject" else {}
        if running is None:
            running = self._sum_replies(request, positions, rejects)
        folded = running.fold_sum()
        folded.outliers = {} if rejects else outliers
        if (
            not request.sum or request.wraps is not None
        ):  # a reducer's next step finds what this one left, until the sum ends
            self._drop(request.id, positions.tolist(), undo=False)
        return folded

    async def conclude(self, path: str, asked: NDArray[np.int64], kept: NDArray[np.int64]) -> None:
        """Tell the sites of those asked; every site learns it before its next order."""
        there = set(kept.tolist())
        for site_link, here in self.sites.group_parties(dict.fromkeys(asked.tolist())).items():
            site_link.post({"op": "conclude", "id": path, "positions": [p for p in here if p in there]})

    def _take_reply(self, request: str, position: int) -> Any:
        """Return what a party said, once; an error of its site names the site."""
        try:
            return self._replies.take(request, position)
        except AtollError as error:
            place = f"site {self.sites.placement[position]}"
            where = place if error.where is None else f"{place}: {error.where}"
            raise type(error)(error.what, where=where, remedy=error.remedy) from error

    def _sum_replies(self, request: Request, positions: NDArray[np.int64], rejects: Mapping[int, str]) -> Running:
        """Add up replies of single parties in cohort order; one that does not fit is left out, or fails the program."""
        running = Running(positions)
        taken = [(position, self._take_reply(request.id, position)) for position in positions.tolist()]
        said = request.form is not None or request.task.schema is not None
        like = None if said else majority((frame for _, frame in taken), complete=True)
        for position, frame in taken:
            if position in rejects:
                running.reject(position, rejects[position])
                continue
            try:
                running.add(frame, None if running.begun else like)
            except MessageError as error:
                named = self._refuse(position, error)
                if self.on_lost == "fail":
                    raise named from error
                running.reject(position, error.what)
        return running

    async def converse(
        self, roles: dict[str, tuple[Request, int]], switch: Switch, start: float
    ) -> dict[str, TaskResult]:
        """Run each role at its party's site; their messages pass through here."""
        for _, position in roles.values():
            self.sites.of(position).asks(1, None)  # roles say what they like to each other
        with self.world.clock.busy():
            return await self._sessions.hold(roles, switch, start)

    # ------------------------------------------------------------------ generations

    async def commit(self, slot: str, generation: int, *, full: bool = False) -> list[str]:
        """Let every site write what changed; the names of the segments say where they are: ``file@site``."""
        with self.world.clock.busy():
            return await self._generations.commit(slot, generation, full=full)

    async def settle(self, slot: str) -> None:
        """Tell sites that the generation is safe: they may forget earlier ones."""
        with self.world.clock.busy():
            await self._generations.settle(slot, self.world.checkpoints.chains.get(slot, []))

    async def load(self, slot: str, segments: list[str]) -> None:
        """Let every site return the private state of a slot to a generation."""
        with self.world.clock.busy():
            await self._generations.load(slot, segments)

    async def publish(self) -> None:
        """Let every site keep the named results of its parties; none of them come here."""
        with self.world.clock.busy():
            await self._generations.publish()

    async def drop(self, slot: str) -> None:
        """Make every site forget the slot of a program that has ended."""
        self._generations.drop(slot)


def _reply(frame: Any, position: int) -> Reply:
    if frame["op"] == "lost":
        return Reply(position, error=TaskError("the party was lost", where="network", remedy="see the site's log"))
    return unpack_ran(frame["ran"]).reply
