"""What a secure reducer must prevent: that anything about one party follows from what the server receives."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any

from .laws import require
from .looking import Looks
from .sight import SecretDraw, Sight, WordAt
from .sums import NAMES

if TYPE_CHECKING:
    from atoll.core.federation.reducer import Reducer
    from atoll.core.requests.task import Task

__all__ = ["require_secrecy"]

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
    _seen(looks, "of sums of all kinds", sums=2, kinds=True).require_masks()
    _seen(looks, "when everyone answers").require()
    steps = list(one.asked)
    for number, step in enumerate(steps):
        name = one.asked[step][(number + 2) % len(one.asked[step])]
        lost = {step: [name] for step in steps[number:]}
        _seen(looks, f"when {name} drops out at superstep {number + 1}", lost=lost).require()
    last = NAMES[4]
    _seen(looks, f"when {last} is late", seconds={last: 9.0}, accept=len(NAMES) - 1, late="drop").require()
    pretend = {request: [NAMES[2]] for request in one.wrapping}
    _seen(looks, f"from a server that asks twice, as if {NAMES[2]} had dropped out", pretend=pretend).require()


def _seen(looks: Looks, when: str, **how: Any) -> _Seen:
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
                raise AssertionError(f"{self.law}: {_shown(revealing)} tells of several secrets together")
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
            return f"the masks of {sorted(apart)} cancel among themselves, so that {_shown([at])} gives a sum of a few"
        if at in self.told:
            return f"every secret behind {_shown([at])} is opened by {_shown([self.told[at]])}"
        return f"{_shown([at])} is sent in the clear: no secret changes it"

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
                raise AssertionError(f"{self.law}: {_shown([at])} is sent in the clear: no secret changes it")
            if abs(share - 0.5) > 0.02 + 2.5 / trials**0.5:  # five standard deviations
                raise AssertionError(f"{self.law}: {_shown([at])} is not uniform: secrets flip {share:.0%} of its bits")

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
                raise AssertionError(f"{self.law}: one mask serves both {_shown([one])} and {_shown([other])}")


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


def _shown(words: Iterable[WordAt]) -> str:
    first = min(words)
    return f"word {first.place} of {first.path!r} in {first.party}'s reply to {first.request}"
