"""Gathering the sites of a job: who is there, in which order, and whether they are the sites that the job began with."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from atoll.core.errors import AtollError, CheckpointError, JobError, MessageError
from atoll.core.persistence.files import read_message, write_message
from atoll.engines.link import LinkClosed
from atoll.runtime.network.judging.intake import QUIET

from .cards import DataCard
from .frames import Hello, raise_if_error, require_own_names
from .letters import SignedKey

__all__ = ["Gathered", "cards_of_all", "gather", "tell_all", "until_ready"]

OnLost = Literal["fail", "drop"]


@dataclass(frozen=True)
class Gathered:
    """The sites of a job.

    Attributes:
        hellos: site -> what it said when the job began, in the order of the roster; with its newest key for letters.
        present: sites that are there now.
    """

    hellos: Mapping[str, Hello]
    present: frozenset[str]

    @property
    def names(self) -> tuple[str, ...]:
        """Return all clients in the order of the roster: sites by name (numbers in names by value), each site's clients as it listed them."""
        return tuple(name for hello in self.hellos.values() for name in hello.parties)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the rows of each client."""
        return tuple(size for hello in self.hellos.values() for size in hello.sizes)

    @property
    def letters(self) -> dict[str, SignedKey]:
        """Return the keys for letters that sites have sent."""
        return {site: hello.letters for site, hello in self.hellos.items() if hello.letters is not None}

    @property
    def placement(self) -> tuple[str, ...]:
        """Return the site of each client."""
        return tuple(site for site, hello in self.hellos.items() for _ in hello.parties)


async def gather(
    channels: Mapping[str, Any],
    record: Path,
    *,
    patience: float = 600.0,
    on_lost: OnLost = "fail",
    helpers: Collection[str] = (),
) -> Gathered:
    """Read every site's hello, and check that it matches what the site said when the job began.

    Args:
        channels: site -> channel to its job process.
        record: the file that records what they said at first.
        patience: seconds without a sign of life after which a site is lost.
        on_lost: what happens then: the job fails, or goes on without the site.
        helpers: the sites without clients; the job never goes on without one of them.

    Raises:
        JobError: a site is lost, or none is left.
        CheckpointError: a site is missing that the job began with, or came back with other parties or data.
        AtollError: a site's own error.
    """
    heard = await asyncio.gather(*(_hello(s, c, patience, on_lost, s in helpers) for s, c in channels.items()))
    hellos = {site: hello for site, hello in zip(channels, heard, strict=True) if hello is not None}
    # The first attempt alone writes the record. A site that comes back with other parties or rows must not continue their random streams.
    if not record.exists():
        if not hellos.keys() - set(helpers):
            raise JobError("no site is left", where="job", remedy="see the sites' logs, then submit again")
        ordered = {site: hellos[site] for site in sorted(hellos, key=_natural)}
        write_message(record, [[site, hello.packed()] for site, hello in ordered.items()])
        return Gathered(ordered, frozenset(ordered))
    first = {site: Hello.unpack(tree, str(record)) for site, tree in read_message(record)}
    for site, hello in hellos.items():
        if site in first:
            _require_same(site, first[site], hello)
    gone = [site for site in first if site not in hellos]
    needed = [site for site in gone if on_lost == "fail" or not first[site].parties]
    if needed or (gone and set(gone) >= {site for site, hello in first.items() if hello.parties}):
        raise CheckpointError(
            f"site {[*needed, *gone][0]!r} is missing, and the job began with it",
            where="job",
            remedy="bring the site back, or set on_lost: drop to go on without it"
            if first[[*needed, *gone][0]].parties
            else "bring the helper back: no job goes on without one",
        )
    renewed = {site: replace(hello, letters=hellos.get(site, hello).letters) for site, hello in first.items()}
    return Gathered(renewed, frozenset(site for site in hellos if site in first))


async def _hello(site: str, channel: Any, patience: float, on_lost: OnLost, helper: bool) -> Hello | None:
    where = f"site {site!r}"
    narrow = getattr(channel, "narrow", None)
    if narrow is not None:
        narrow(QUIET)
    try:
        frame = await _read_frame(channel, patience)
    except (LinkClosed, TimeoutError) as error:
        if on_lost == "drop" and not helper:
            return None
        raise _make_loss_error(where, error, patience, "before it had loaded its data") from error
    except MessageError as error:
        raise MessageError(f"its greeting cannot be read: {error.what}", where=where, remedy=error.remedy) from error
    raise_if_error(frame, where)
    hello = Hello.unpack(frame.get("hello"), where)
    require_own_names(site, hello, helper)
    return hello


async def _read_frame(channel: Any, patience: float) -> Any:
    """Return the next frame that is not a sign of life; each sign restarts the wait."""
    while True:
        frame = await asyncio.wait_for(channel.recv(), patience)
        if not (isinstance(frame, dict) and frame.get("pulse") is True):
            return frame


def _make_loss_error(where: str, error: Exception, patience: float, when: str) -> JobError:
    why = f"no progress for {patience:g} s" if isinstance(error, TimeoutError) else f"its job process ended: {error}"
    return JobError(
        f"the site was lost {when}: {why}",
        where=where,
        remedy="see the site's log; raise `patience`, or set on_lost: drop to go on without it",
    )


def _require_same(site: str, first: Hello, now: Hello) -> None:
    """Refuse a site that came back with other parties or data."""
    if first == now:
        return
    if first.parties != now.parties:
        said = f"parties {', '.join(now.parties[:5])}, and it began with {', '.join(first.parties[:5])}"
    elif first.sizes != now.sizes:
        said = f"{sum(now.sizes)} rows, and it began with {sum(first.sizes)}"
    else:
        said = "columns, features or labels other than those it began with"
    raise CheckpointError(
        f"it came back with {said}",
        where=f"site {site!r}",
        remedy="bring back the data that the job began with, or submit the job again: atoll clone JOB",
    )


def cards_of_all(gathered: Gathered, test: DataCard | None = None) -> dict[str, DataCard]:
    """Return the card of every site with clients, keyed as errors name it (``"site 'a'"``), and that of the server's own test rows.

    Raises:
        JobError: a site's data has no card.
    """
    cards = {f"site {site!r}": hello.card for site, hello in gathered.hellos.items() if hello.parties}
    bare = [name for name, card in cards.items() if card is None]
    if bare:
        raise JobError(
            "its data has a form of its own, and a model needs columns x and y",
            where=bare[0],
            remedy="give it a data set (a CSV file, an archive, an atoll.data.Dataset), or run a program of your own",
        )
    known = {name: card for name, card in cards.items() if card is not None}
    return known if test is None else {**known, "the server's data.test": test}


async def tell_all(channels: Mapping[str, Any], frame: Any) -> None:
    """Send every site the same frame; a site that is gone is noticed when its answer is awaited."""

    async def tell(channel: Any) -> None:
        try:
            await channel.send(frame)
        except LinkClosed:
            return

    await asyncio.gather(*(tell(channel) for channel in channels.values()))


async def until_ready(
    channels: Mapping[str, Any],
    *,
    patience: float = 600.0,
    on_lost: OnLost = "fail",
    helpers: Collection[str] = (),
) -> set[str]:
    """Wait until every site can begin; return those that are lost. No job goes on without a helper.

    Raises:
        JobError: a site is lost.
        AtollError: a site's own error; the others are told.
    """
    lost: set[str] = set()

    async def wait(site: str, channel: Any) -> None:
        try:
            frame = await _read_frame(channel, patience)
        except (LinkClosed, TimeoutError) as error:
            if on_lost == "fail" or site in helpers:
                raise _make_loss_error(f"site {site!r}", error, patience, "before the work began") from error
            lost.add(site)
            return
        raise_if_error(frame, f"site {site!r}")

    found = await asyncio.gather(*(wait(s, c) for s, c in channels.items()), return_exceptions=True)
    for error in found:
        if isinstance(error, BaseException):
            # A site's own error says more than the loss of another site, which may follow from it.
            raise next((e for e in found if isinstance(e, AtollError) and not isinstance(e, JobError)), error)
    return lost


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts site-2 before site-10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
