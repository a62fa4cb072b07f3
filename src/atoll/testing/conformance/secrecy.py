"""What a secure reducer must prevent: that anything about one party follows from what the server receives."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from atoll.core import message as M
from atoll.core.algebra import tree as T
from atoll.core.algebra.rng import Rng
from atoll.core.errors import QuorumError
from atoll.core.execution.engine import RunContext
from atoll.core.execution.executor import Executor
from atoll.core.federation.federation import run_program
from atoll.core.requests.cohort import Community
from atoll.core.requests.island import Secret
from atoll.core.requests.request import PartialSum, wire_form
from atoll.core.time.clock import run
from atoll.core.world import World
from atoll.engines import Inline
from atoll.testing.timetable import Timetable

from .laws import require
from .sums import NAMES, totals

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.algebra.tree import Tree
    from atoll.core.execution.session import Switch
    from atoll.core.federation.federation import Federation
    from atoll.core.federation.reducer import Reducer
    from atoll.core.requests.island import Island
    from atoll.core.requests.request import Reply, Request, TaskResult
    from atoll.core.requests.task import Task

__all__ = ["Looks", "Onlooker", "SecretDraw", "Sight", "WordAt", "require_secrecy"]


class SecretDraw(NamedTuple):
    """One call of a method of ``island.secret``."""

    request: str
    party: str
    place: int


class WordAt(NamedTuple):
    """Where a word of at most eight bytes, or a whole number of any size, is in what the server receives."""

    request: str
    party: str
    path: str
    place: int

    @property
    def column(self) -> tuple[str, str, int]:
        """Return where it is, whichever party sends it."""
        return self.request, self.path, self.place


@dataclass
class Sight:
    """What the server received in one run.

    Attributes:
        words: every word, as a whole number.
        bits: how many bits each word has.
        draws: the secret draws of parties, in order.
        messages: id of a request -> what the parties received.
        asked: id of a request -> the parties that received it.
        wrapping: ids of the requests whose replies consist of the program's totals.
        result: what the program returned.
    """

    words: dict[WordAt, int] = field(default_factory=dict)
    bits: dict[WordAt, int] = field(default_factory=dict)
    draws: list[SecretDraw] = field(default_factory=list)
    messages: dict[str, Tree] = field(default_factory=dict)
    asked: dict[str, list[str]] = field(default_factory=dict)
    wrapping: list[str] = field(default_factory=list)
    result: Any = None

    def note(self, request: str, party: str, sent: Tree) -> None:
        """Record what one party sent."""
        for path, leaf in T.items(sent):
            for index, (word, bits) in enumerate(_words(leaf)):
                at = WordAt(request, party, path, index)
                self.words[at], self.bits[at] = word, bits

    def leave_out(self, tasks: Collection[str]) -> None:
        """Forget what was sent in reply to these tasks."""
        for at in [at for at in self.words if any(f"/{name}/" in at.request for name in tasks)]:
            del self.words[at], self.bits[at]

    def differs(self, other: Sight) -> set[WordAt] | None:
        """Return where another sight has other words; ``None`` if the two have words at different places."""
        if self.words.keys() != other.words.keys():
            return None
        return {at for at, word in self.words.items() if other.words[at] != word}


def _words(leaf: Any) -> Iterator[tuple[int, int]]:
    """Yield the words of a leaf, with their bits."""
    if isinstance(leaf, int) and not isinstance(leaf, bool):
        bits = max(64, -(-leaf.bit_length() // 64) * 64)
        yield leaf % (1 << bits), bits
        return
    plain = isinstance(leaf, np.ndarray | np.generic | float) and np.asarray(leaf).dtype.kind in "biufc"
    if plain:
        array = np.asarray(leaf)
        raw, size = array.astype(array.dtype.newbyteorder("<")).tobytes(), array.dtype.itemsize
    else:
        raw, size = leaf if isinstance(leaf, bytes) else M.encode(leaf), 8
    for start in range(0, len(raw), size):
        part = raw[start : start + size]
        yield int.from_bytes(part, "little"), 8 * len(part)


# ---------------------------------------------------------------- an engine that records what a server receives

AGAIN = "~again"
"""How the id of a request ends that the server sends a second time, with another message."""


class _Redrawn(Secret):
    """Secrets from a seed, each call of a method from its own stream, so that one can be redrawn without the others."""

    __slots__ = ("_anew", "_number", "_place", "_sight")

    def __init__(self, place: tuple[str, str], sight: Sight, anew: Mapping[SecretDraw, int]) -> None:
        super().__init__(0)
        self._place, self._sight, self._anew = place, sight, anew
        self._number = 0

    def _next(self) -> Secret:
        draw = SecretDraw(*self._place, self._number)
        self._number += 1
        self._sight.draws.append(draw)
        self.drawn = True
        return Secret(Rng.of(self._anew.get(draw, 0)).child(*draw).key)

    def bytes(self, n: int) -> bytes:
        return self._next().bytes(n)

    def uint64(self, shape: int | tuple[int, ...]) -> NDArray[np.uint64]:
        return self._next().uint64(shape)

    def uniform(self, shape: int | tuple[int, ...]) -> NDArray[np.float64]:
        return self._next().uniform(shape)

    def generator(self) -> np.random.Generator:
        return self._next().generator()

    def integer(self, below: int) -> int:
        return self._next().integer(below)


@dataclass
class _Watched(Executor):
    """An executor whose islands' secrets can be drawn again."""

    sight: Sight = field(default_factory=Sight)
    anew: Mapping[SecretDraw, int] = field(default_factory=dict)

    def island(self, request: Request, position: int, *args: Any, **more: Any) -> Island:
        made = super().island(request, position, *args, **more)
        made._secret = _Redrawn((request.id, made.name), self.sight, self.anew)
        return made


class Onlooker(Inline):
    """The inline engine, one party at a time, which records what a server between organisations could read.

    That is the value and the notes of every reply, why one failed or was rejected, who wrote to whom and how many bytes,
    what the roles of a session return, and how many messages and bytes they sent each other. The contents of letters
    and of messages between roles are sealed.

    Args:
        anew: secret draws to replace -> the number of the replacement.
        asks: id of a request -> a message with which the server sends it a second time, if it is another.
    """

    def __init__(self, anew: Mapping[SecretDraw, int] | None = None, asks: Mapping[str, Tree] | None = None) -> None:
        super().__init__()
        self.sight = Sight()
        self._anew, self._asks = anew or {}, asks or {}

    async def open(self, world: RunContext) -> None:
        """Create the host."""
        await super().open(world)
        made = self.host.executor
        same = {each.name: getattr(made, each.name) for each in fields(made)}
        self.host.executor = _Watched(**same, sight=self.sight, anew=self._anew)

    def _note_begin(self, request: Request, positions: NDArray[np.int64]) -> None:
        self.sight.messages[request.id] = request.message
        names = [self.host.executor.roster.name(position) for position in positions.tolist()]
        self.sight.asked.setdefault(request.id, []).extend(names)
        if request.wraps is not None and request.id not in self.sight.wrapping:
            self.sight.wrapping.append(request.id)

    async def run(self, request: Request, positions: NDArray[np.int64]) -> list[Reply]:
        """Run the task at each party."""
        self._note_begin(request, positions)
        replies = await super().run(request, positions)
        self._saw(request.id, replies)
        if request.id in self._asks and not M.equal(self._asks[request.id], request.message):
            twice = replace(request, id=request.id + AGAIN, message=self._asks[request.id])
            self._saw(twice.id, await super().run(twice, positions))
        return replies

    def _saw(self, request: str, replies: list[Reply]) -> None:
        for reply in replies:
            letters = {to: letter.nbytes for to, letter in reply.mail.items()}
            sent = {"value": wire_form(reply.value), "notes": reply.notes, "letters": letters}
            refused = {"error": None if reply.error is None else str(reply.error), "rejected": reply.rejected}
            self.sight.note(request, self.host.executor.roster.name(reply.party), {**sent, **refused})

    async def fold(self, request: Request, positions: NDArray[np.int64]) -> PartialSum:
        """Run the task at each party and add up; a server of separate parties gets each total by itself."""
        self._note_begin(request, positions)
        parts = []
        for position in positions:
            part = await super().fold(request, np.array([position]))
            sent: dict[str, Any] = {
                name: {"kind": total.kind, "value": total.value, "weight": total.weight}
                for name, total in part.totals.items()
                if total.kind != "parts"
            }
            refused = {"errors": [str(e) for e in part.errors.values()], "rejected": list(part.rejected.values())}
            self.sight.note(request.id, self.host.executor.roster.name(int(position)), {"totals": sent, **refused})
            parts.append(part)
        return PartialSum.zero().merge(*parts)

    async def converse(
        self, roles: dict[str, tuple[Request, int]], switch: Switch, start: float
    ) -> dict[str, TaskResult]:
        """Run the roles of a session."""
        ended = await super().converse(roles, switch, start)
        for role, ran in ended.items():
            said = {to: [words.messages, words.nbytes] for to, words in ran.said.items()}
            sent = {"value": ran.reply.value, "said": said}
            self.sight.note(roles[role][0].id, self.host.executor.roster.name(ran.reply.party), sent)
        return ended


@dataclass
class Looks:
    """Sums of five parties, and what a server receives for them."""

    reducer: Reducer
    others: dict[str, Any]
    proved: tuple[str, ...]
    seed: int

    @property
    def law(self) -> str:
        """Return how complaints begin."""
        return f"{type(self.reducer).__name__} breaks the law of hiding"

    def sight(
        self,
        turned: int = 0,
        inside: Collection[str] = (),
        anew: Mapping[SecretDraw, int] | None = None,
        *,
        sums: int = 1,
        kinds: bool = False,
        pretend: Mapping[str, Collection[str]] | None = None,
        lost: Mapping[str, Collection[str]] | None = None,
        seconds: Mapping[str, float] | None = None,
        **terms: Any,
    ) -> Sight:
        """Run a program that adds up.

        Args:
            turned: by how many places to rotate the data of the parties in the sum, which keeps the sum; other parties
                get other data.
            inside: who is in the sum.
            anew: secret draws to replace.
            sums: how many sums.
            kinds: sums of all kinds, not only means.
            pretend: id of a request -> whose reply the server calls lost when it asks for the steps behind it a second
                time.
            lost: id of a request -> whose reply is lost.
            seconds: seconds of each party's replies.
            **terms: terms of the sums.
        """
        rows = {name: (np.arange(4) * 7 + i + 1) / 8 for i, name in enumerate(NAMES)}
        mine = [name for name in NAMES if name in inside]
        data = {name: row + turned for name, row in rows.items()}
        data.update({name: rows[mine[(i + turned) % len(mine)]] for i, name in enumerate(mine)})

        async def program(fed: Federation) -> list[list[str]]:
            found: list[list[str]] = []
            task = totals.with_args(kinds=kinds)
            for number in range(sums):
                try:
                    got = await fed.sum(fed.parties, task, float(number), reducer=self.reducer, at=number, **terms)
                    found.append(list(got.senders.names))
                except QuorumError:
                    found.append([])
            return found

        def look(gone: Mapping[str, Collection[str]], asks: Mapping[str, Any]) -> Sight:
            onlooker = Onlooker(anew or {}, asks)
            people = Community(list(data.values()), others=self.others)
            world = World(people, onlooker, cost=Timetable(seconds or {}, lost=gone), seed=self.seed)
            onlooker.sight.result = run(run_program(world, program))[0]
            onlooker.sight.leave_out(self.proved)
            return onlooker.sight

        return look(lost or {}, look(pretend, {}).messages if pretend else {})


# ---------------------------------------------------------------- what a secure reducer must prevent

_REDRAWS = 8
Observe = Callable[[int, Mapping[SecretDraw, int]], Sight]
Column = tuple[str, str, int]


def require_secrecy(
    reducer: Reducer, *, others: Mapping[str, Any] | None = None, proved: Collection[Task] = (), seed: int = 0
) -> None:
    """Require that nothing about one party follows from what a server receives; see ``check_reducer``.

    Raises:
        AssertionError: something about a party follows.
    """
    looks = Looks(reducer, dict(others or {}), tuple(task.name for task in proved), seed)
    one = looks.sight()
    again = looks.sight().differs(one) == set()
    require(again, f"{looks.law}: two equal runs send different words; draw every secret from island.secret")
    _look_once(looks, "of sums of all kinds", sums=2, kinds=True).require_masks()
    _look_once(looks, "when everyone answers").require()
    steps = list(one.asked)
    for number, step in enumerate(steps):
        name = one.asked[step][(number + 2) % len(one.asked[step])]
        lost = {step: [name] for step in steps[number:]}
        _look_once(looks, f"when {name} drops out at superstep {number + 1}", lost=lost).require()
    last = NAMES[4]
    _look_once(looks, f"when {last} is late", seconds={last: 9.0}, accept=len(NAMES) - 1, late="drop").require()
    pretend = {request: [NAMES[2]] for request in one.wrapping}
    _look_once(looks, f"from a server that asks twice, as if {NAMES[2]} had dropped out", pretend=pretend).require()


def _look_once(looks: Looks, when: str, **how: Any) -> _Seen:
    """Return what the server sees in one setting."""
    base, law = looks.sight(**how), f"{looks.law} {when}"
    inside = set(NAMES).intersection(*base.result)

    def observe(turned: int, anew: Mapping[SecretDraw, int]) -> Sight:
        found = looks.sight(turned, inside, anew, **how)
        require(found.result == base.result, f"{law}: data or secrets decide who is in the sum")
        return found

    return _Seen(law, base, observe)


@dataclass
class _Seen:
    """What the server sees in one setting, with other data and other secrets.

    Attributes:
        law: begins every error.
        base: what it sees with the usual data and secrets.
        observe: the number of places to rotate the data, and the replaced secrets -> what it sees.
        turned: what it sees with other data.
        moved: the words that depend on data.
        links: place in a reply -> for each secret that nothing else reveals, the parties whose words at that place it
            changes.
        told: a word -> another that changes with a secret behind it, and does not depend on data.
    """

    law: str
    base: Sight
    observe: Observe
    turned: list[Sight] = field(init=False)
    moved: set[WordAt] = field(init=False, default_factory=set)
    links: dict[Column, list[set[str]]] = field(init=False, default_factory=lambda: defaultdict(list))
    told: dict[WordAt, WordAt] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.turned = [self.observe(places, {}) for places in (1, 2)]
        for other in self.turned:
            differs = self.base.differs(other)
            if differs is None:
                raise AssertionError(f"{self.law}: what is sent has another shape when data are exchanged")
            self.moved |= differs

    def require(self) -> None:
        """Require that behind every word that depends on data are secrets that nothing else reveals, and that tie all parties together."""
        secrets = self._secrets()
        for column, parties in self._columns(self.moved).items():
            if apart := _apart(parties, self.links[column]):
                raise AssertionError(f"{self.law}: {self._why(column, apart)}")
        redrawn = self._redrawn(secrets)
        for sight in redrawn:
            if revealing := (self.base.differs(sight) or set()) - self.moved:
                raise AssertionError(f"{self.law}: {_format_words(revealing)} tells of several secrets together")
        self._uniform(redrawn)
        self._masked_once(redrawn)

    def require_masks(self) -> None:
        """Require that every word that depends on data looks uniform, and has its own mask."""
        redrawn = self._redrawn(self.base.draws)
        self._uniform(redrawn)
        self._masked_once(redrawn)

    def _redrawn(self, secrets: Iterable[SecretDraw]) -> list[Sight]:
        found = [self.observe(0, dict.fromkeys(secrets, number)) for number in range(1, _REDRAWS + 1)]
        if any(self.base.differs(sight) is None for sight in found):
            raise AssertionError(f"{self.law}: what is sent has another shape with other secrets")
        return found

    @staticmethod
    def _columns(words: Iterable[WordAt]) -> dict[Column, set[str]]:
        found: dict[Column, set[str]] = defaultdict(set)
        for at in words:
            found[at.column].add(at.party)
        return found

    def _secrets(self) -> list[SecretDraw]:
        """Return secret draws that change only words that depend on data: as many as needed."""
        columns, found = self._columns(self.moved), []
        for draws in self._in_turn():
            if not any(_apart(parties, self.links[column]) for column, parties in columns.items()):
                break
            differs = self.base.differs(self.observe(0, dict.fromkeys(draws, 1)))
            others, touched = (differs or set()) - self.moved, self._columns(differs or set())
            if len(draws) == 1 and others:
                self.told.update(dict.fromkeys((differs or set()) & self.moved, min(others)))
            if others or (len(draws) > 1 and any(len(parties) > 1 for parties in touched.values())):
                continue  # which of several draws ties whom to whom shows when each is drawn alone
            found += draws
            for column, parties in touched.items():
                self.links[column].append(parties)
        return found

    def _in_turn(self) -> list[list[SecretDraw]]:
        """Return all draws of a party in a request, which may hide that party alone; then each draw alone, first ones first."""
        together: dict[tuple[str, str], list[SecretDraw]] = defaultdict(list)
        for draw in self.base.draws:
            together[draw.request, draw.party].append(draw)
        groups = [draws for draws in together.values() if len(draws) > 1]
        return [*groups, *([draw] for draw in sorted(self.base.draws, key=lambda draw: draw.place))]

    def _why(self, column: Column, apart: set[str]) -> str:
        name = min(apart)
        at = WordAt(column[0], name, *column[1:])
        if any(name in link for link in self.links[column]):
            return f"the masks of {sorted(apart)} cancel among themselves, so that {_format_words([at])} gives a sum of a few"
        if at in self.told:
            return f"every secret behind {_format_words([at])} is opened by {_format_words([self.told[at]])}"
        return f"{_format_words([at])} is sent in the clear: no secret changes it"

    def _uniform(self, redrawn: list[Sight]) -> None:
        """Require that other secrets flip half of the bits that data or secrets can flip."""
        for at in sorted(self.moved):
            word, active = self.base.words[at], 0
            flips = [word ^ sight.words[at] for sight in redrawn]
            for flip in [*flips, *(word ^ sight.words[at] for sight in self.turned)]:
                active |= flip
            trials = active.bit_count() * len(flips)
            share = sum(flip.bit_count() for flip in flips) / trials
            if not flips or not any(flips):
                raise AssertionError(f"{self.law}: {_format_words([at])} is sent in the clear: no secret changes it")
            if abs(share - 0.5) > 0.02 + 2.5 / trials**0.5:  # five standard deviations
                raise AssertionError(
                    f"{self.law}: {_format_words([at])} is not uniform: secrets flip {share:.0%} of its bits"
                )

    def _masked_once(self, redrawn: list[Sight]) -> None:
        """Require that no two words have the same mask: their difference would be that of the values."""
        count: Counter[tuple[WordAt, WordAt]] = Counter()
        for sight in redrawn:
            for added in (True, False):
                groups: dict[tuple[int, int], list[WordAt]] = defaultdict(list)
                for at in sorted(self.moved):
                    bits, new, old = self.base.bits[at], sight.words[at], self.base.words[at]
                    groups[bits, (new - old) % (1 << bits) if added else new ^ old].append(at)
                for group in groups.values():
                    count.update(combinations(group, 2))
        for (one, other), times in count.items():
            if times >= _REDRAWS // 2:
                raise AssertionError(
                    f"{self.law}: one mask serves both {_format_words([one])} and {_format_words([other])}"
                )


def _apart(parties: Collection[str], links: Collection[set[str]]) -> set[str]:
    """Return the parties that a secret neither hides alone nor ties to all others not hidden alone."""
    rest = set(parties).difference(*(link for link in links if len(link) == 1))
    if not rest:
        return set()
    reached: set[str] = set()
    grown = {min(rest)}
    while grown - reached:
        reached |= grown
        grown = set().union(*(link for link in links if link & reached))
    return rest if not grown else rest - reached


def _format_words(words: Iterable[WordAt]) -> str:
    first = min(words)
    return f"word {first.place} of {first.path!r} in {first.party}'s reply to {first.request}"
