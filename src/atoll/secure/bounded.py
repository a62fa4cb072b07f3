"""Sums at two servers that check the norm of every hidden update; `BoundedSum` is the reducer."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core import message as M
from atoll.core.algebra.tree import Tree
from atoll.core.errors import CompositionError, ConfigError, LetterError, PolicyError, QuorumError, SessionError
from atoll.core.exposure import Exposure
from atoll.core.facets import facet
from atoll.core.message import Words
from atoll.core.message.words import word_dtype
from atoll.core.requests.stage import Worded
from atoll.core.requests.task import task
from atoll.core.validation import Checked

from .ballot import Electorate, collect_votes, hash_set, ready_to_vote, require_majority
from .keystream import SEED, Keystream, add_masks, derived
from .shares import (
    AdditiveComputation,
    AdditiveSharing,
    PartyDealer,
    SharedArray,
    WordRing,
    deal,
    negative,
    opened,
    truncate,
)
from .words import FixedPoint, WordLayout, WordSums, common_form, decode_sum, form_of, require_enough

if TYPE_CHECKING:
    from atoll.core.execution.session import Peers
    from atoll.core.federation.reducer import Reduction
    from atoll.core.requests.chain import Chain
    from atoll.core.requests.island import Island
    from atoll.core.requests.party import Parties
    from atoll.core.requests.request import Reduced
    from atoll.core.requests.results import Terms
    from atoll.core.requests.task import Task

    from .shares import Computation
    from .words import Slot

__all__ = [
    "BoundPlan",
    "BoundedSum",
    "BoundedTotal",
    "DEALER",
    "MOST_OUTSIDE",
    "PROJECTIONS",
    "RATIO",
    "SERVERS",
    "SHARING",
    "add",
    "compare",
    "project_rows",
    "receive",
    "split",
]


# ------------------------------------------------------------------ random projections of hidden words
#
# Random projections of hidden words: a test of norms that two servers can make at each alone, up to a few comparisons.
# The entries of ``R``, ``(K, D)``, are -1, 0 and 1 with chances 1/4, 1/2, 1/4. A projection ``y = R_k x`` has mean 0 and variance ``s^2 = ||x||^2 / 2``. The test refuses ``x`` if more than ``M`` of the ``K``
# projections have ``|y| > b``, where ``b = 3 B / sqrt(2)``, for the bound ``B``. All is modulo ``2^64``; words are taken as numbers of ``[-2^63, 2^63)``.
#
# * **Within the bound it passes**, whatever its shape: ``E exp(t y) <= exp(t^2 ||x||^2 / 4)``, so ``P[|y| > b] <= 2 exp(-9/2) < 0.0223``, and by Chernoff's bound
# ``P[more than M of K] <= exp(-K KL(0.1 || 0.0223)) < 4e-9`` for ``K = 256``, ``M = 25``.
# * **With one entry above 2b it is refused**, also if sums wrap around: whatever the others add up to, if ``z`` is within ``b`` of 0, ``z - x_j`` and ``z + x_j`` are not, so
# ``P[|y| > b] >= 1/2``, and it passes with a chance below ``exp(-2 K 0.4^2) < 1e-35``. No vector whose squares would wrap around slips through.
# * **Above ten times the bound it is refused**, whatever its shape. If all entries are within ``2b``, no sum wraps around (`BoundPlan` demands ``(2D + 1) b < 2^63``), ``E y^4 <= 3 s^4``, and the inequality of
# Paley and Zygmund gives ``P[|y| > b] >= (1 - b^2/s^2)^2 / 3 > 0.27``: it passes with a chance below ``1e-10``.
# * In between the chance depends on the shape. Sums of many entries are close to normal: above 2.5 times the bound such a vector passes with a chance below 1e-6, at twice the bound with about one in twenty.
#
# ``R`` must not be known before ``x`` is fixed: both servers draw its seed together once all shares have arrived.


Array = np.ndarray[Any, np.dtype[Any]]
PROJECTIONS = 256
"""``K``."""
MOST_OUTSIDE = 25
"""``M``."""
RATIO = 3 / 2**0.5
"""``b / B``."""
_COLUMNS = 4096
"""Entries of a vector that are projected at once."""


def project_rows(rows: Array, seed: bytes) -> Array:
    """Random projections of rows of words modulo ``2^64``, ``(rows, K)``.

    Floating point computes them exactly: words are cut into four limbs of 16 bits, whose sums stay below ``2^53``.

    Args:
        rows: uint64, ``(rows, D)``.
        seed: 32 bytes, public once the words are fixed.
    """
    source, made = Keystream(seed), np.zeros((len(rows), PROJECTIONS), dtype=np.uint64)
    for start in range(0, rows.shape[1], _COLUMNS):
        part = rows[:, start : start + _COLUMNS]
        signs = _signs(source, part.shape[1])
        for limb in range(4):
            piece = ((part >> np.uint64(16 * limb)) & np.uint64(0xFFFF)).astype(np.float64)
            made += (piece @ signs).astype(np.int64).view(np.uint64) << np.uint64(16 * limb)
    return made


def _signs(source: Keystream, columns: int) -> Array:
    """The next columns of ``R``, transposed, ``(columns, K)``: the differences of two random bits."""
    words = source(2 * columns * PROJECTIONS // 64).view(np.uint8)
    first, second = np.unpackbits(words).reshape(2, columns, PROJECTIONS).astype(np.float64)
    return np.asarray(first - second)


# ------------------------------------------------------------------ what all parties of one bounded sum are told, and what of their totals is bounded


BITS = 64
MOVING = ("buffer", "side", "update")
"""Roles of totals that move the model; metrics and reports do not."""


@dataclass(frozen=True)
class BoundedTotal:
    """A total whose norm is bounded.

    Attributes:
        slots: its arrays, in one lane.
        weight: its weight, if it is a mean.
        limit: ``b`` of `projections`, as a whole number; of a mean, for a weight of 1.
    """

    slots: list[Slot]
    weight: Slot | None
    limit: float

    @property
    def size(self) -> int:
        """Its numbers."""
        return sum(slot.size for slot in self.slots)


@dataclass(frozen=True)
class BoundPlan:
    """What all parties of one sum know.

    Attributes:
        names: the cohort.
        least: smallest number of parties in the sum.
        norm: the largest norm of an update.
        max_weight: the largest weight.
    """

    names: tuple[str, ...]
    least: int
    norm: float
    max_weight: float

    def message(self) -> Tree:
        """The plan as a message."""
        return {**asdict(self), "names": list(self.names)}

    @property
    def parties(self) -> int:
        """Size of the cohort."""
        return len(self.names)

    def electorate(self) -> Electorate:
        """Who votes on the set of the sum."""
        return Electorate(self.names, self.least, self.fingerprint)

    @classmethod
    def of(cls, message: Any) -> BoundPlan:
        """The inverse of `message`.

        Raises:
            PolicyError: it is something else, or hides nobody.
        """
        try:
            made = cls(**{**message, "names": tuple(message["names"])})
            sound = 2 <= made.least <= made.parties and made.norm > 0 and made.max_weight > 0
        except (TypeError, KeyError) as error:
            raise PolicyError(f"a plan of a bounded sum that cannot be read: {error}", where="bounded sum") from error
        if not sound:
            raise PolicyError(
                f"a bounded sum of {made.parties} parties, at least {made.least}",
                where="bounded sum",
                remedy="look at the server: a sum needs two parties and more",
            )
        return made

    @property
    def fingerprint(self) -> bytes:
        """A hash of the plan, 32 bytes."""
        return bytes.fromhex(M.fingerprint(self.message()))

    def layout(self, form: Tree) -> WordLayout:
        """The layout of totals of a form: numbers are words of 64 bits, and so are votes, so that no projection wraps around unseen."""
        return WordLayout(form, FixedPoint(max_weight=self.max_weight), self.parties, None, signs=False)

    def find_bounded(self, layout: WordLayout) -> dict[str, BoundedTotal]:
        """The totals that move the model, by name.

        Raises:
            CompositionError: one of them has no norm, or is so large that sums could wrap around.
        """
        found = {}
        for name, _, role, _ in layout.form:
            if role not in MOVING:
                continue
            slots, weight = layout.slots_of(name)
            for unit in sorted({slot.unit for slot in slots}, key=str):  # whole numbers apart
                some = [slot for slot in slots if slot.unit == unit]
                if unit is None or {slot.bits for slot in some} != {BITS}:
                    raise CompositionError(
                        f"{name!r} has no norm that two servers can check",
                        where="BoundedSum",
                        remedy="send numbers, without stages that make words of them",
                    )
                made = found[f"{name} {unit}"] = BoundedTotal(some, weight, RATIO * self.norm * 2.0**-unit)
                self._require_room(made)
        return found

    def _require_room(self, total: BoundedTotal) -> None:
        """Require that no projection of numbers within their range wraps around; see `atoll.secure.bounded`."""
        most = (2 * total.size + 1) * total.limit * (self.max_weight if total.weight is not None else 1.0)
        if most >= 2.0**63:
            raise CompositionError(
                f"norm={self.norm:g}, weights up to {self.max_weight:g} and {total.size} numbers need words of more than 64 bits",
                where="BoundedSum",
                remedy=f"use max_weight={self.max_weight * 2.0**62 / most:.3g} or less, or a smaller norm",
            )


# ------------------------------------------------------------------ the tasks of a bounded sum
#
# The tasks of a bounded sum: what a party seals for each of two servers, and how these find out who is beyond the bound.
# ==========  ===========  =========================================================================  ===============================
# superstep   who          what it does                                                               the server gets
# ==========  ===========  =========================================================================  ===============================
# split       party        runs the task, and seals its masked words to the first server, and the     the form of the totals
# seed of the mask to the second
# receive     servers      keep what the parties have sealed                                          whose shares are usable
# compare     servers,     draw projections together, project their shares, and compare on shares     one bit a party
# dealer
# add         servers      add up their shares of the parties within the bound, once                  two shares of the sum
# ==========  ===========  =========================================================================  ===============================


SERVERS = ("first-server", "second-server")
DEALER = "dealer"
SHARING = AdditiveSharing(WordRing(BITS), 2)

_FINE = 8
"""Bits behind the point of a bound that is multiplied by a weight."""


@task
async def split(island: Island, message: Tree) -> Tree:
    """Run the program's task, and seal a share of its words to each server. Return the form of the totals, which is public."""
    plan = BoundPlan.of(message)
    island.bind_letters(plan.fingerprint)
    totals = await island.totals(plan.least)
    layout = plan.layout(form_of(totals))
    plan.find_bounded(layout)
    lanes = layout.encode(totals, island.name)
    seed = island.secret.bytes(SEED)
    add_masks(lanes, [(derived(seed, "bounded sum"), False)])
    bound = {"plan": plan.fingerprint, "asked": bytes.fromhex(island.asked), "layout": layout.fingerprint}
    island.post(SERVERS[0], {**bound, "lanes": lanes})
    island.post(SERVERS[1], {**bound, "seed": seed})
    island.state = ready_to_vote(island, plan.electorate())
    return {"form": layout.form}


@task
def receive(island: Island, message: Tree) -> list[str]:
    """At a server: keep the shares that have come, and say whose are usable."""
    plan = BoundPlan.of(message["plan"])
    layout, sent = plan.layout(message["form"]), list(message["sent"])
    island.bind_letters(plan.fingerprint, split.name)
    bound = {"plan": plan.fingerprint, "asked": bytes.fromhex(message["asked"]), "layout": layout.fingerprint}
    usable = {
        name: letter for name, letter in island.inbox.items() if name in sent and _is_share(letter, bound, layout)
    }
    require_majority(island, plan.electorate(), sent, message["votes"].get(island.name, {}))
    kept = {name: letter.get("lanes", letter.get("seed")) for name, letter in usable.items()}
    island.state = {"plan": message["plan"], "form": message["form"], "shares": kept}
    return sorted(usable)


def _is_share(letter: Any, bound: dict[str, bytes], layout: WordLayout) -> bool:
    """Whether a letter has a share for this plan, of this request and form."""
    if not isinstance(letter, dict) or any(letter.get(name) != value for name, value in bound.items()):
        return False
    if "seed" in letter:
        return isinstance(letter["seed"], bytes) and len(letter["seed"]) == SEED
    lanes = letter.get("lanes")
    forms = {lane: (length,) for lane, length in layout.lengths.items()}
    return (
        isinstance(lanes, dict)
        and {lane: np.shape(words) for lane, words in lanes.items()} == forms
        and all(np.asarray(words).dtype == word_dtype(int(lane)) for lane, words in lanes.items())
    )


def _lanes(share: Any, layout: WordLayout) -> dict[str, Array]:
    """A server's share of a party's words: what it was sent, or what follows from the seed."""
    if isinstance(share, dict):
        return {lane: np.asarray(words) for lane, words in share.items()}
    made = {lane: np.zeros(length, dtype=word_dtype(int(lane))) for lane, length in layout.lengths.items()}
    add_masks(made, [(derived(share, "bounded sum"), True)])
    return made


@task
async def compare(island: Island, peers: Peers, me: str, names: list[str]) -> list[str]:
    """A server's role: return the names of the parties beyond the bound, which is all that is opened."""
    state, other = island.state, SERVERS[1 - SERVERS.index(me)]
    plan = BoundPlan.of(state["plan"])
    layout = plan.layout(state["form"])
    own = island.secret.bytes(SEED)
    await peers.send(other, own)
    theirs = await peers.recv(other)
    if not isinstance(theirs, bytes) or len(theirs) != SEED:
        raise LetterError(f"{other} draws no projections", where="bounded sum", remedy=f"look at {other}")
    drawn = (own, theirs) if me == SERVERS[0] else (theirs, own)
    seed = hashlib.sha256(b"atoll projections" + b"".join(drawn)).digest()
    dealer = PartyDealer(peers, DEALER, first=me == SERVERS[0])
    async with AdditiveComputation(island, peers, SERVERS, me, SHARING, dealer) as it:
        rows = np.stack([_lanes(state["shares"][name], layout)[str(BITS)].view(np.ndarray) for name in names])
        wrong = it.constant(np.zeros(len(names), dtype=np.uint64))
        for place, (_, total) in enumerate(sorted(plan.find_bounded(layout).items())):
            wrong = wrong + await _beyond(it, plan, total, rows, derived(seed, f"total {place}"))
        flags = await opened(await negative(-wrong))
    beyond = [name for name, flag in zip(names, flags.tolist(), strict=True) if flag]
    island.state = {**state, "within": sorted(set(names) - set(beyond))}
    return beyond


async def _beyond(it: Computation, plan: BoundPlan, total: BoundedTotal, rows: Array, seed: bytes) -> SharedArray:
    """How many of its rules each party breaks, ``(parties,)``: the norm, and the range of the weight."""
    parties = len(rows)
    columns = np.concatenate([np.arange(slot.start, slot.start + slot.size) for slot in total.slots])
    values = rows if len(columns) == rows.shape[1] else rows[:, columns]
    y = SharedArray(it, (project_rows(values, seed),))
    broken = it.constant(np.zeros(parties, dtype=np.uint64))
    if total.weight is None:
        bound = it.constant(np.full((parties, 1), int(total.limit), dtype=np.uint64))
    else:
        weight = SharedArray(it, (rows[:, total.weight.start],))
        most = int(plan.max_weight * 2.0 ** -(total.weight.unit or 0))
        broken = broken + await negative(weight) + await negative(-weight + most)
        # The words of a mean are weight * value, so the bound is the weight times that of a value.
        factor = int(total.limit * 2.0 ** (total.weight.unit or 0) * 2**_FINE)
        bound = (await truncate(weight * factor, _FINE)).reshape(parties, 1)
    wide = SharedArray(it, tuple(np.broadcast_to(part, (parties, PROJECTIONS)) for part in bound.parts))
    outside = await negative(wide - y) + await negative(wide + y)
    return broken + await negative(-outside.sum(axis=1) + MOST_OUTSIDE)


@task
def add(island: Island, message: Tree) -> Tree:
    """At a server: its share of the sum of the parties within the bound, once.

    Raises:
        PolicyError: the set is another than the one that was found, or too small.
    """
    state = island.state
    if not state or "within" not in state:
        raise PolicyError(
            "a sum before its bound is checked", where="bounded sum", remedy="look at the server: it left out a step"
        )
    plan, kept = BoundPlan.of(state["plan"]), sorted(message["kept"])
    if kept != state["within"] or len(kept) < plan.least:
        raise PolicyError(
            f"a sum of {len(kept)} parties, {len(state['within'])} within the bound, at least {plan.least}",
            where="bounded sum",
            remedy="invite more parties, or raise the bound; a sum of others than those within it is given to nobody",
        )
    island.promise(f"added in {island.sum}", hash_set(kept))
    layout = plan.layout(state["form"])
    sums = {lane: np.zeros(length, dtype=word_dtype(int(lane))) for lane, length in layout.lengths.items()}
    for name in kept:
        for lane, words in _lanes(state["shares"][name], layout).items():
            sums[lane] += words.view(np.ndarray)
    island.state = {"plan": state["plan"]}
    return {lane: Words.of(words, int(lane)) for lane, words in sums.items()}


# ------------------------------------------------------------------ secure sums with a bound on every update's norm, which two servers check on shares


@dataclass(frozen=True)
class BoundedSum(Checked, WordSums):
    """Sums at two servers that leave out, by name, every party whose update is longer than ``norm``; no server sees an update.

    A party seals its masked words to the helper ``first-server``, and the seed of the mask to ``second-server``. The two test the norm of each update on their shares, with correlated randomness of a helper
    ``dealer``, and open one bit a party. Then each adds up its shares of the parties that pass, and the server puts the two together.

    The test projects an update on 256 random vectors, which are drawn once all shares have arrived, and counts how many projections are too long. An update within ``norm`` passes. One above ten times ``norm``, whatever its shape,
    is refused, and one of many entries of similar size above 2.5 times: see `atoll.secure.bounded` for the chances and their proofs. Weights are checked too: they are between 0 and ``max_weight``. Metrics and reports, which do not move
    the model, are not. Of a value with numbers and whole numbers, each kind is bounded by itself.

    It assumes two servers that follow the protocol and do not put together what they have, and a dealer that does the same and colludes with neither. Parties may lie as they like.

    Attributes:
        norm: the largest L2 norm of a party's update, and of each further value that moves the model, such as a control variate; before the weight.
        max_weight: the largest weight of a party.
        least: smallest number of parties in a sum; never below 2.

    Raises:
        ConfigError: a setting makes no sense.
    """

    norm: float = 1.0
    max_weight: float = 65536.0
    least: int = 2
    codec: FixedPoint = field(init=False, repr=False, compare=False)
    others: ClassVar[Mapping[str, str]] = {**dict.fromkeys(SERVERS, "index server"), DEALER: DEALER}

    def __post_init__(self) -> None:
        for name in ("norm", "max_weight"):
            given = getattr(self, name)
            if not (math.isfinite(given) and given > 0):
                raise ConfigError(f"{name}={given}", where="BoundedSum", remedy="use a number above 0")
        self.require_least()
        object.__setattr__(self, "codec", FixedPoint(max_weight=self.max_weight))

    def check(self, uplink: Chain, parties: Parties, terms: Terms, task: Task) -> None:
        """Refuse stages whose encodings have no norm; see ``Reducer.check``.

        Raises:
            CompositionError: the parts do not go together.
            QuorumError: the cohort is too small.
        """
        super().check(uplink, parties, terms, task)
        coded = [stage.name for stage in uplink.stages if facet(stage, Worded).words]
        if coded:
            raise CompositionError(
                f"{coded[0]} makes other words of an update than its numbers, which have no norm",
                where="BoundedSum",
                remedy="leave it out, or use TwoServers or SecureAggregation, which check no norm",
            )

    def word_length(self, uplink: Chain, parties: int) -> int:
        """64 bits: a test of norms needs them."""
        del uplink, parties
        return 64

    def exposures(self, parties: int) -> tuple[Exposure, ...]:
        """Who sees what of the replies of a cohort."""
        del parties
        apart = "the two servers and the dealer follow the protocol, and no two of them put together what they have"
        return (
            Exposure(
                "server",
                f"the sum of the replies of {self.least} clients or more, who took part, and whose update is longer than {self.norm:g}",
                apart,
            ),
            *(
                Exposure(name, f"whose update is longer than {self.norm:g}; nothing else of a reply", apart)
                for name in SERVERS
            ),
            Exposure(DEALER, "how many clients are compared; nothing of a reply", apart),
            Exposure("other clients", "nothing of a reply"),
        )

    async def reduce(self, reduction: Reduction) -> Reduced:
        """Let the parties share their words, the servers test their norms and add up what passes, and put the two sums together."""
        least = max(self.least, reduction.terms.quorum)
        plan = BoundPlan(tuple(reduction.parties.names), least, self.norm, self.max_weight)
        sent = await reduction.exchange(reduction.parties, split, plan.message(), wraps=True, quorum=least)
        layout = plan.layout(common_form([one["form"] for one in sent.values]))
        servers = reduction.parties.named(*SERVERS)
        told = {"plan": plan.message(), "form": layout.form, "asked": reduction.request.fingerprint}
        votes = await collect_votes(reduction, sent.senders, SERVERS, plan.electorate())
        told |= {"sent": list(sent.senders.names), "votes": votes}
        mail = sent.mail.only_from(set(sent.senders.names))
        usable = (await reduction.exchange(servers, receive, told, mail=mail, quorum=len(SERVERS))).values
        names = sorted(set(usable[0]) & set(usable[1]))
        require_enough(sent.senders.named(*names), least, "BoundedSum")
        beyond = await self._beyond(reduction, names)
        kept = sent.senders.named(*(name for name in sent.senders.names if name in names and name not in beyond))
        if len(kept) < least:
            raise QuorumError(
                f"{len(kept)} parties within norm={self.norm:g}, fewer than {least}; beyond it: {', '.join(beyond)}",
                where="BoundedSum",
                remedy="raise norm, clip at the parties with Clip, or invite more parties",
            )
        shares = await reduction.exchange(servers, add, {"kept": list(kept.names)}, quorum=len(SERVERS))
        first, second = shares.values
        made = decode_sum(
            layout,
            {lane: np.asarray(first[lane]) + np.asarray(second[lane]) for lane in layout.lengths},
            kept.positions,
        )
        position = reduction.world.roster.position
        made.rejected.update(
            {
                position(
                    name
                ): f"its update is longer than norm={self.norm:g}, or its weight is not 0 to {self.max_weight:g}"
                for name in beyond
            }
        )
        lost = set(sent.senders.names) - set(names)
        made.rejected.update({position(name): "it sealed shares that are not usable" for name in lost})
        return made

    async def _beyond(self, reduction: Reduction, names: list[str]) -> list[str]:
        """The parties beyond the bound, as both servers find."""
        roles: dict[str, Any] = {name: (name, compare.with_args(me=name, names=names)) for name in SERVERS}
        roles[DEALER] = (DEALER, deal.with_args(parties=list(SERVERS), sharing=SHARING.spec()))
        try:
            found = await reduction.session(roles, at="bound")
        except SessionError as error:
            raise QuorumError(
                f"the norms could not be compared: {error.what}",
                where="BoundedSum",
                remedy=f"start the helpers {', '.join(SERVERS)} and {DEALER}; the sum changed nothing",
            ) from error
        return list(found[SERVERS[0]])
