"""Leader-boards: the order of private positive numbers, such as how reliable workers are, without the numbers.

Two protocols, for other assumptions:

| | `rank_parties` | `rank_by_sorting` |
| --- | --- | --- |
| computes | the parties themselves, through a server that relays sealed letters | three helpers, on shares |
| the server sees | the order, and ``h_i = sum_k r_k x_i^k + noise`` under weights that nobody knows | the order alone |
| do not learn the numbers | ``t`` parties that collude, with or without the server | any one helper |
| loses | any parties, as long as each of ``2 t + 1`` groups has somebody left, and ``t + 1`` parties remain | any parties, and no helper |
| compares | units of ``1 / scale`` of the largest number; equal ones come in an order of chance | all 64 bits; equal ones come in order of name |

All follow the protocol. `rank_parties` is the leader-board of FedTruthFinder (section 5), which has stand-ins where Tang, Shi and Yao (2011) have single representatives.
With ``N = 2 t + 1`` groups:

1. Each party encodes ``q_k = round(scale (x / most)^k)`` for ``k`` from 1 to ``N``, and shares each among the groups, ``t + 1`` of ``N``. All members of a group get the same shares.
2. It also shares a random weight of up to ``R``. The server names one member of each group whose weight counts: that of group ``k`` is ``r_k``, and ``r_1`` is at least ``R / 2``.
3. One member of each group computes ``lambda_g sum_k r_k(g) q_k(g)`` for everybody, ``lambda_g = (-1)^(g-1) C(N, g)``, adds noise below ``R / (2 N)``, and shares that among all parties, ``t + 1`` of ``n``.
   If it is lost, the next one does.
4. Each party adds up what it got. Of ``t + 1`` such sums the server opens ``h_i``; of more it corrects and names wrong ones, see `atoll.secure.shares.correct_shamir`.

A unit more raises ``h`` by ``r_1`` at least, and the noise of all groups is below that. So ``h`` has the order of the numbers, exactly in units of ``1 / scale``.

**Why there is noise.** The paper has none. Then each ``h`` is an exact number, and weights are whole numbers up to ``R``. A server that colludes with a few parties has an equation for each of them,
which few weights of that size solve, so it finds them. With ``R`` above ``32 N scale`` the noise leaves all weights near a line of solutions possible.

**What the order's price is.** ``h`` bounds ratios, up to the noise: ``h_b / h_a <= x_b / x_a <= (h_b / h_a)^(1/N)`` for ``x_b < x_a``. Weights are drawn anew for each leader-board. Parties of ``t + 1`` groups that
collude have all numbers, and ``2 t + 1`` parties with the server find the weights nearly, and so all numbers nearly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from atoll.core.errors import ConfigError, DataError, LetterError, PolicyError, QuorumError
from atoll.core.requests.island import Secret
from atoll.core.requests.task import task

from .shares.checks import correct_shamir
from .shares.domain import Array, Field, WordRing
from .shares.replicated import ReplicatedComputation
from .shares.sharing import ReplicatedSharing, lagrange, split_shamir
from .shares.trio import SharedWords
from .tables.sorting import SortKey, find_order

if TYPE_CHECKING:
    from atoll.core.execution.session import Peers
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island
    from atoll.core.requests.party import Parties
    from atoll.core.requests.request import Mailboxes
    from atoll.core.requests.task import Task
    from atoll.core.time.deadline import Deadline

__all__ = [
    "LeaderBoard",
    "RankingTerms",
    "add_ranks",
    "hand_number",
    "mix_powers",
    "rank_by_sorting",
    "rank_parties",
    "send_number",
    "share_number",
    "split_number",
]

FIELD = Field()
"""Integers modulo ``2^61 - 1``."""
_HEAVIER = 32
"""How many times ``N scale`` the largest weight is at least: rounding weights to whole numbers must change ``h`` by less than the noise."""


@dataclass(frozen=True)
class LeaderBoard:
    """An order of private numbers.

    Attributes:
        order: the parties, the largest number first.
        seen: what the server saw of each beside the order: ``h``. Empty if it saw nothing.
        unranked: parties that were lost before they had shared their number.
        representatives: who acted for each group, in order of group.
        wrong: parties that sent other sums than they held; their sums were corrected.
    """

    order: tuple[str, ...]
    seen: Mapping[str, int]
    unranked: tuple[str, ...] = ()
    representatives: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()


# ------------------------------------------------------------------ among all parties


@dataclass(frozen=True)
class RankingTerms:
    """What all parties of a leader-board know.

    Attributes:
        names: the parties, in the order that decides their groups and places.
        threshold: ``t``, at least 1.
        most: the largest number that there can be.
        scale: numbers count in units of ``most / scale``; ``0`` takes the finest that is a power of two.

    Raises:
        ConfigError: a setting makes no sense, or there are fewer parties than groups.
    """

    names: tuple[str, ...]
    threshold: int
    most: float = 1.0
    scale: int = 0

    def __post_init__(self) -> None:
        if len(set(self.names)) < len(self.names):
            raise ConfigError("a party is named twice", where="ranking", remedy="name each party once")
        if self.threshold < 1 or self.groups > len(self.names):
            raise ConfigError(f"threshold={self.threshold} of {len(self.names)} parties", where="ranking", remedy=f"use 1 to {(len(self.names) - 1) // 2}: each of 2 t + 1 groups needs a party" if len(self.names) > 2 else "rank 3 parties or more")  # fmt: skip
        if not (math.isfinite(self.most) and self.most > 0):
            raise ConfigError(f"most={self.most}", where="ranking", remedy="give the largest number that there can be, above 0")  # fmt: skip
        finest = (
            math.isqrt(FIELD.prime // _HEAVIER) - 1
        ) // self.groups  # heaviest >= 32 N scale, and N scale heaviest < p
        if not self.scale:
            object.__setattr__(self, "scale", 1 << (finest.bit_length() - 1))
        if not 2 <= self.scale <= finest:
            raise ConfigError(f"scale={self.scale} for {self.groups} groups", where="ranking", remedy=f"use 2 to {finest}, or a lower threshold")  # fmt: skip

    @property
    def groups(self) -> int:
        """``N = 2 t + 1``."""
        return 2 * self.threshold + 1

    @property
    def heaviest(self) -> int:
        """The largest weight ``R``: ``N R scale`` and the noise stay below the prime."""
        return (FIELD.prime - 1) // (self.groups * self.scale + 1)

    @property
    def noise(self) -> int:
        """What a representative's noise stays below: all of it stays below ``R / 2``."""
        return self.heaviest // 2 // self.groups

    def group_of(self, name: str) -> int:
        """A party's group, from 0."""
        return self.names.index(name) % self.groups

    def members(self, group: int) -> tuple[str, ...]:
        """The parties of a group."""
        return self.names[group :: self.groups]

    def count_units(self, number: float) -> int:
        """A number in units of ``most / scale``."""
        return round(float(number) / self.most * self.scale)

    def encode(self, number: float) -> Array:
        """``round(scale (x / most)^k)`` for ``k`` from 1 to ``N``, of the number rounded to units; rounded alike at all parties.

        Raises:
            DataError: the number is not above 0 and at most ``most``, or is less than half a unit.
        """
        if not (isinstance(number, int | float | np.number) and 0 < number <= self.most):
            raise DataError(f"the number {number}", where="ranking", remedy=f"rank numbers above 0 and at most {self.most:g}, or set `most`")  # fmt: skip
        unit = self.count_units(number)
        if unit < 1:
            raise DataError(f"the number {number:g} is below half of {self.most / self.scale:g}, the unit", where="ranking", remedy="use a smaller `most`, or a larger `scale`")  # fmt: skip
        powers = [(2 * unit**k + self.scale ** (k - 1)) // (2 * self.scale ** (k - 1)) for k in range(1, self.groups + 1)]  # fmt: skip
        return np.array(powers, dtype=np.uint64)

    def message(self) -> dict[str, Any]:
        """The terms as a message."""
        return {"names": list(self.names), "threshold": self.threshold, "most": self.most, "scale": self.scale}

    @classmethod
    def of(cls, message: Any) -> RankingTerms:
        """The inverse of `message`.

        Raises:
            PolicyError: it is something else.
        """
        try:
            return cls(tuple(message["names"]), int(message["threshold"]), float(message["most"]), int(message["scale"]))  # fmt: skip
        except (TypeError, KeyError, ValueError, ConfigError) as error:
            raise PolicyError(f"terms of a ranking that cannot be read: {error}", where="ranking") from error


def share_number(island: Island, number: float, message: Any) -> None:
    """At a party: share a private number for a leader-board. Call it in a task of your own that `rank_parties` is given; `send_number` is one for ``island.data``.

    Args:
        island: the party.
        number: the number.
        message: what the task was sent.

    Raises:
        PolicyError: the terms cannot be read, or do not name this party.
        DataError: the number does not fit the terms.
    """
    terms = RankingTerms.of(message)
    if island.name not in terms.names:
        raise PolicyError(f"a ranking without {island.name}", where="ranking")
    heavy = terms.heaviest // 2 if terms.group_of(island.name) == 0 else 0  # the noise must not outweigh a unit
    weight = 1 + heavy + island.secret.integer(terms.heaviest - heavy)
    values = np.append(terms.encode(number), np.uint64(weight))
    shares = split_shamir(values, terms.groups, terms.threshold + 1, FIELD, island.secret)
    for place, name in enumerate(terms.names):
        island.post(name, shares[place % terms.groups])


@task
def send_number(island: Island, message: Any) -> None:
    """Share ``island.data``, a number."""
    share_number(island, island.data, message)


@task
def mix_powers(island: Island, message: Any) -> None:
    """For a group: each party's share of ``h``, times its group's factor, with noise, shared among all parties.

    A party mixes for one set of weights of one leader-board: under two of them the server would see two numbers of each.
    """
    terms = RankingTerms.of(message["terms"])
    ranked, weights = tuple(message["ranked"]), tuple(message["weights"])
    letters = _letters_of(island, (*ranked, *weights), terms.groups + 1)
    written = {island.letters[name].request for name in letters}
    if len(written) > 1:
        raise LetterError(f"letters of {len(written)} requests", remedy="look at the server: it mixes leader-boards")
    island.promise(f"weights of {written.pop()}", "|".join([*ranked, "", *weights]))
    group = terms.group_of(island.name)
    rows = np.stack([letters[name] for name in ranked])
    factors = np.array([letters[name][-1] for name in weights], dtype=np.uint64)
    mixed = FIELD.dot(rows[:, :-1], factors[:, None])[:, 0]
    own = np.array(lagrange(tuple(range(terms.groups)), FIELD)[group], dtype=np.uint64)
    noise = np.array([island.secret.integer(terms.noise) for _ in ranked], dtype=np.uint64)
    made = split_shamir(
        FIELD.add(FIELD.mul(mixed, own), noise), len(terms.names), terms.threshold + 1, FIELD, island.secret
    )
    for name, share in zip(terms.names, made, strict=True):
        island.post(name, share)


@task
def add_ranks(island: Island, message: Any) -> Array:
    """The sum of what the groups' representatives sent: a share of everybody's ``h``."""
    letters = _letters_of(island, tuple(message["from"]), int(message["count"]))
    return FIELD.total(np.stack(list(letters.values())))


def _letters_of(island: Island, senders: Sequence[str], size: int) -> dict[str, Array]:
    """Letters with elements of the field, checked.

    Raises:
        LetterError: one is missing, or is something else.
    """
    found = {}
    for name in dict.fromkeys(senders):
        letter: Any = island.inbox.get(name)
        if not FIELD.are_elements(letter, (size,)):
            raise LetterError(f"no letter of {name} with {size} shares", remedy=f"look at {name}, or at the server that chose whose letters count")  # fmt: skip
        found[name] = letter
    return found


async def rank_parties(
    fed: Federation,
    parties: Parties,
    threshold: int,
    *,
    at: Any,
    share: Task = send_number,
    most: float = 1.0,
    scale: int = 0,
    stand_ins: bool = True,
    deadline: float | Deadline | None = None,
) -> LeaderBoard:
    """Rank private numbers of parties, see the module.

    Args:
        fed: the federation.
        parties: who is ranked.
        threshold: colluding parties that learn nothing, ``t``; ``2 t + 1`` groups share the parties among them.
        at: the leader-board's name within the program, such as the round.
        share: the task that shares a party's number: one that calls `share_number`.
        most: the largest number that there can be; everyone knows it.
        scale: numbers count in units of ``most / scale``; ``0`` takes the finest.
        stand_ins: whether another member of a group acts if its representative is lost. Without, it is the protocol of Tang, Shi and Yao: a single loss ends it.
        deadline: seconds for each superstep, or a deadline that they share.

    Raises:
        ConfigError: a setting makes no sense.
        QuorumError: a group has nobody left, or fewer than ``threshold + 1`` parties remain; it names the group.
        DataError: more parties sent wrong sums than can be corrected.
    """
    terms = RankingTerms(tuple(parties.names), threshold, most, scale)
    step: dict[str, Any] = {"deadline": deadline, "quorum": 0}
    order = fed.rng.child("ranking", str(at)).generator().permutation(len(terms.names))
    turns = [[terms.names[i] for i in order.tolist() if i % terms.groups == group] for group in range(terms.groups)]
    turns = turns if stand_ins else [members[:1] for members in turns]
    given = await fed.exchange(parties, share, terms.message(), at=(at, "share"), **step)
    ranked = given.senders.names
    weights = tuple(_first_of(members, ranked, group, "shared a weight") for group, members in enumerate(turns))
    message = {"terms": terms.message(), "ranked": list(ranked), "weights": list(weights)}
    mail = given.mail.only_from(set(ranked))
    representatives, shares = await _mix(fed, parties, turns, ranked, message, mail, at, step)
    told = {"from": list(representatives), "count": len(ranked)}
    added = await fed.exchange(parties, add_ranks, told, mail=shares, at=(at, "add"), **{**step, "quorum": threshold + 1})  # fmt: skip
    rows = added.by_name()
    sums = {
        place: rows[name]
        for place, name in enumerate(terms.names)
        if FIELD.are_elements(rows.get(name), (len(ranked),))
    }
    opened = correct_shamir(sums, threshold + 1, FIELD, Secret())
    wrong = tuple(name for place, name in enumerate(terms.names) if place in opened.wrong or (name in rows and place not in sums))  # fmt: skip
    seen = dict(zip(ranked, opened.values.tolist(), strict=True))
    best = tuple(sorted(seen, key=lambda name: (-seen[name], name)))
    unranked = tuple(name for name in terms.names if name not in seen)
    return LeaderBoard(best, seen, unranked, representatives, wrong)


async def _mix(
    fed: Federation,
    parties: Parties,
    turns: Sequence[Sequence[str]],
    ranked: Sequence[str],
    message: Mapping[str, Any],
    mail: Mailboxes,
    at: Any,
    step: Mapping[str, Any],
) -> tuple[tuple[str, ...], Mailboxes]:
    """Let one member of each group mix: the next one where one is lost. Those whose letters came are asked first. Return who did, and their letters."""
    waiting = {g: sorted(members, key=lambda name: name not in ranked) for g, members in enumerate(turns)}
    done: dict[int, str] = {}
    shares: Mailboxes | None = None
    for attempt in range(max(map(len, waiting.values()))):
        asked = {g: names[attempt] for g, names in waiting.items() if g not in done and attempt < len(names)}
        got = await fed.exchange(parties.named(*asked.values()), mix_powers, message, mail=mail, at=(at, "mix", attempt), **step)  # fmt: skip
        came = set(got.senders.names)
        done |= {g: name for g, name in asked.items() if name in came}
        shares = got.mail.only_from(came) if shares is None else shares | got.mail.only_from(came)
        lost = [g for g in waiting if g not in done and attempt + 1 >= len(waiting[g])]
        if lost:
            _first_of(waiting[lost[0]], (), lost[0], "is left to mix")
        if len(done) == len(waiting):
            break
    return tuple(done[g] for g in sorted(done)), cast("Mailboxes", shares)


def _first_of(members: Sequence[str], there: Sequence[str], group: int, what: str) -> str:
    """The first member of a group that is there.

    Raises:
        QuorumError: nobody is.
    """
    for name in members:
        if name in there:
            return name
    raise QuorumError(f"group {group + 1} has nobody who {what}: {', '.join(members)}", where="ranking", remedy="rank again with a lower threshold: fewer groups have more members each")  # fmt: skip


# ------------------------------------------------------------------ among three helpers


def split_number(number: float, secret: Secret) -> list[Array]:
    """Three words whose XOR is a positive number as it is stored: such words have the order of their numbers. A helper gets two of them.

    Raises:
        DataError: the number is not finite and above 0.
    """
    if not (isinstance(number, int | float | np.number) and math.isfinite(number) and number > 0):
        raise DataError(f"the number {number}", where="ranking", remedy="rank finite numbers above 0")
    first, second = secret.uint64((1,)), secret.uint64((1,))
    return [first, second, np.array([number], dtype=np.float64).view(np.uint64) ^ first ^ second]


@task
def hand_number(island: Island, message: Any) -> None:
    """Share ``island.data``, a number, among three helpers."""
    parts = split_number(island.data, island.secret)
    for place, helper in enumerate(message):
        island.post(helper, np.concatenate([parts[place], parts[(place + 1) % 3]]))


@task
def keep_parts(island: Island, message: Any) -> None:
    """At a helper: keep the parts of all numbers, in the order of the message."""
    rows = []
    for name in message:
        letter = island.inbox.get(name)
        if not isinstance(letter, np.ndarray) or letter.shape != (2,) or letter.dtype != np.uint64:
            raise LetterError(f"no letter of {name} with two parts", remedy=f"look at {name}, or at the server that chose whose letters count")  # fmt: skip
        rows.append(letter)
    island.state = np.stack(rows)


@task
async def sort_parts(island: Island, peers: Peers, me: str, helpers: Sequence[str]) -> Array:
    """At a helper: sort the numbers by comparisons of shuffled shares; show where each row of the order comes from."""
    parts = np.asarray(island.state)
    async with ReplicatedComputation(island, peers, helpers, me, ReplicatedSharing(WordRing(64))) as it:
        trio = await cast("ReplicatedComputation", it).trio()
        words = SharedWords(trio, (parts[:, 0].copy(), parts[:, 1].copy()), 64)
        order = await find_order([SortKey(words, descending=True)])
        rows = trio.constant(np.arange(len(parts)), max(1, (len(parts) - 1).bit_length()))
        (moved,) = await order.move([rows])
        shown: Array = await trio.open(cast("SharedWords", moved))
        return shown.astype(np.uint64)


async def rank_by_sorting(
    fed: Federation,
    parties: Parties,
    helpers: Sequence[str],
    *,
    at: Any,
    share: Task = hand_number,
    deadline: float | Deadline | None = None,
) -> LeaderBoard:
    """Rank private numbers of parties by an oblivious sort among three helpers, none of whom learns a number. Nobody sees more than the order.

    Args:
        fed: the federation.
        parties: who is ranked.
        helpers: three parties, of whom no two collude; they may be among those that are ranked.
        at: the leader-board's name within the program.
        share: the task that shares a party's number: one that posts two of `split_number`'s words to each helper, as `hand_number` does.
        deadline: seconds until numbers must be there.

    Raises:
        ConfigError: there are not three helpers.
        QuorumError: no number came, or a helper is lost.
    """
    if len(set(helpers)) != 3:
        raise ConfigError(f"helpers {list(helpers)}", where="ranking", remedy="name three different parties")
    names = list(helpers)
    given = await fed.exchange(parties, share, names, at=(at, "share"), deadline=deadline)
    ranked = list(given.senders.names)
    three = fed.parties.named(*names)
    await fed.exchange(three, keep_parts, ranked, mail=given.mail.only_from(set(ranked)), at=(at, "keep"), quorum=3)
    roles = {name: (name, sort_parts.with_args(me=name, helpers=names)) for name in names}
    found = (await fed.session(roles, at=(at, "sort")))[names[0]]
    order = tuple(ranked[row] for row in np.asarray(found).tolist())
    return LeaderBoard(order, {}, tuple(name for name in parties.names if name not in ranked))
