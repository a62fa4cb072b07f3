"""Masked sums whose parties agree on keys once and then add up many times; `MultiRound` is the reducer."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.algebra.aggregate import Sum
from atoll.core.algebra.tree import Tree
from atoll.core.capability import EXCESS_REMOVED, Capability
from atoll.core.errors import ConfigError, LetterError, PolicyError, QuorumError
from atoll.core.exposure import Exposure
from atoll.core.requests.party import Parties
from atoll.core.requests.task import task

from .ballot import bind_set
from .keystream import SEED, add_masks, derived
from .masking.agreement import Agreement
from .masking.party_steps import label_of, read_promise, require_noise, require_votes
from .masking.reducer import SecureAggregation
from .masking.unmasking import SHARE, Opening, commitment, pair_seed, public_key, shares_of
from .words import common_form, decode_sum, form_of, require_enough

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from atoll.core.federation.reducer import Reduction
    from atoll.core.requests.island import Island
    from atoll.core.requests.request import PartialSum, Reduced
    from atoll.core.requests.results import Exchanged, Replies

__all__ = [
    "KeySetUp",
    "MOST",
    "MultiRound",
    "RoundOpening",
    "StandingTerms",
    "USES",
    "ahead",
    "hide_seed",
    "introduce",
    "is_introduced",
    "is_joined",
    "join",
    "key_of",
    "label_of_path",
    "masked",
    "own_of",
    "pair_of",
    "reveal",
    "setup_context",
    "vote",
]


# ------------------------------------------------------------------ chains of keys
#
# Chains of keys: one link a sum, from which all secrets of this sum follow; a party keeps the next link only.
# A *link* is 32 secret bytes. From the link of sum ``t`` follow, each by HKDF-Expand with a use of its own (`derived`), the secrets of this sum and the link of sum ``t + 1``. So a secret that
# is opened tells nothing of other sums, and whoever steals what a party keeps after sum ``t`` learns nothing of the masks of sums up to ``t``.
#
# A party has one chain of its own, and one with each neighbour, whose first link both derive from their X25519 agreement.


USES = ("key", "own")
"""The secrets of a party in each sum, in the order of their shares."""


def ahead(link: bytes, steps: int) -> bytes:
    """The link so many sums later."""
    for _ in range(steps):
        link = derived(link, "next link")
    return link


def own_of(link: bytes) -> bytes:
    """The seed of the party's own mask in the sum of a link of its own chain."""
    return derived(link, "own seed")


def key_of(link: bytes) -> bytes:
    """The key under which the party's pairs' seeds of this sum lie at the server."""
    return derived(link, "recovery key")


def pair_of(link: bytes) -> bytes:
    """The seed that two parties share in the sum of a link of their chain."""
    return derived(link, "pair seed")


def hide_seed(key: bytes, name: str, seed: bytes) -> bytes:
    """The seed that a party shares with a neighbour, under its key of the sum: a one-time pad of 32 bytes. It is its own inverse.

    Args:
        key: of this sum alone.
        name: of the neighbour.
        seed: shared with it.
    """
    pad = derived(key, "hidden pair", name.encode())
    return bytes(a ^ b for a, b in zip(pad, seed, strict=True))


# ------------------------------------------------------------------ what the parties are told: of a set-up of keys, and of each sum under it


MOST = 10_000
"""The most sums that one set-up serves."""


@dataclass(frozen=True)
class StandingTerms:
    """The terms of one sum under standing keys.

    Attributes:
        agreed: the agreement, whose parties are those of the set-up.
        setup: names the set-up.
        round: number of the sum under it, from 0; each is used once.
        who: the places of the parties that are asked.
    """

    agreed: Agreement
    setup: str
    round: int
    who: tuple[int, ...]

    def message(self) -> Tree:
        """The terms as a message."""
        return {"agreed": self.agreed.message(), "id": self.setup, "round": self.round, "who": list(self.who)}

    @classmethod
    def of(cls, message: Any) -> StandingTerms:
        """The inverse of `message`.

        Raises:
            PolicyError: it is something else.
        """
        try:
            made = cls(
                Agreement.of(message["agreed"]),
                str(message["id"]),
                int(message["round"]),
                tuple(map(int, message["who"])),
            )
        except (TypeError, KeyError, ValueError) as error:
            raise PolicyError(f"terms of a sum that cannot be read: {error}", where="masked sum") from error
        return made

    def context(self, asked: str, layout: bytes) -> bytes:
        """What masks are bound to: the agreement, the program's request, the layout of the words, the set-up, the sum's number and who is asked."""
        rest = np.array([self.round, *sorted(self.who)], dtype="<i8").tobytes()
        return hashlib.sha256(self.agreed.context(asked, layout) + self.setup.encode() + b"\0" + rest).digest()


def setup_context(message: Any) -> tuple[int, str]:
    """The number of sums that a set-up is for, and its name.

    Raises:
        PolicyError: these are none.
    """
    sums, label = message.get("sums"), message.get("id")
    if not isinstance(sums, int) or not 1 <= sums <= MOST or not isinstance(label, str) or len(label) != 32:
        raise PolicyError(
            f"a set-up of keys for {sums!r} sums", where="masked sum", remedy=f"use a number from 1 to {MOST}"
        )
    return sums, label


def label_of_path(path: str) -> str:
    """The name of the set-up in a sum of this path. A run has no second one; its resumption repeats the set-up, with the answers of the parties' journals."""
    return hashlib.sha256(b"atoll set-up " + path.encode()).hexdigest()[:32]


# ------------------------------------------------------------------ the server's half of masked sums with standing keys
#
# The server's half of masked sums with standing keys: what it knows of a set-up, and how it opens one sum.


def _has(reply: Any, sizes: Mapping[str, int]) -> bool:
    return isinstance(reply, dict) and all(
        isinstance(reply.get(part), bytes) and len(reply[part]) == nbytes for part, nbytes in sizes.items()
    )


def is_introduced(agreed: Agreement, sums: int, name: str, reply: Any) -> bool:
    """Whether a reply to *introduce* has a public key, a commitment to each secret, and one to each share."""
    each = SEED * sums
    shares = len(USES) * each * len(agreed.holders(agreed.place(name)))
    return _has(reply, {"public": SEED, "own": each, "key": each, "shares": shares})


def is_joined(agreed: Agreement, sums: int, name: str, reply: Any) -> bool:
    """Whether a reply to *join* has the seeds of the party's pairs, and a commitment to each."""
    names = reply.get("names") if isinstance(reply, dict) else None
    near = {agreed.names[i] for i in agreed.graph[agreed.place(name)]}
    if not isinstance(names, list) or not set(map(str, names)) <= near or len(set(names)) != len(names):
        return False
    return _has(reply, dict.fromkeys(("sealed", "checks"), SEED * sums * len(names)))


@dataclass
class KeySetUp:
    """What the server knows of a set-up.

    Attributes:
        agreed: the agreement of the set-up; a sum has its own least number, codec and bound.
        label: the set-up's name.
        sums: how many sums it serves.
        introduced: name of a party -> its reply to *introduce*.
        joined: name -> its reply to *join*.
        next: number of the next sum.
    """

    agreed: Agreement
    label: str
    sums: int
    introduced: Mapping[str, Any]
    joined: Mapping[str, Any]
    next: int = 0

    def message(self) -> Tree:
        """The set-up as a message, for a checkpoint."""
        own = {name: getattr(self, name) for name in ("label", "sums", "next")}
        return {**own, "agreed": self.agreed.message(), "introduced": {**self.introduced}, "joined": {**self.joined}}

    @classmethod
    def of(cls, message: Any) -> KeySetUp:
        """The inverse of `message`."""
        return cls(**{**message, "agreed": Agreement.of(message["agreed"])})

    def settle(self) -> dict[str, str]:
        """Leave out parties whose pairs' seeds are others than their neighbours say; return why, by name."""
        found = dict[str, str]()
        while pairs := self._disagreeing():
            counts = Counter(name for pair in pairs for name in pair)
            most = max(counts.values())
            for name in [name for name, count in counts.items() if count == most]:
                other = next(b if a == name else a for a, b in pairs if name in (a, b))
                found[name] = f"it has other keys with {other} than {other} has with it"
            self.joined = {name: said for name, said in self.joined.items() if name not in found}
        return found

    def _disagreeing(self) -> list[tuple[str, str]]:
        """The pairs of neighbours that have derived different seeds, or one of them none."""
        names, here = self.agreed.names, self.joined
        near = {name: {names[j] for j in self.agreed.graph[self.agreed.place(name)]} for name in here}
        pairs = [(a, b) for a in sorted(here) for b in sorted(near[a] & set(here)) if a < b]
        return [(a, b) for a, b in pairs if self._checks(a, b) != self._checks(b, a) or not self._checks(a, b)]

    def _checks(self, name: str, other: str) -> list[bytes]:
        said = self.joined[name]
        if other not in said["names"]:
            return []
        at, width = said["names"].index(other), len(said["names"])
        return [said["checks"][SEED * (k * width + at) : SEED * (k * width + at + 1)] for k in range(self.sums)]

    def places(self, names: Sequence[str]) -> tuple[int, ...]:
        """The places of those among some parties that have joined."""
        return tuple(sorted(self.agreed.place(name) for name in names if name in self.joined))

    def serves(self, agreed: Agreement, sums: int) -> bool:
        """Whether another sum of these parties can use it: it has one left, all are in it, and each has enough holders among them."""
        places = set(self.places(agreed.names))
        return (
            self.next < self.sums == sums
            and len(places) == len(agreed.names)
            and (agreed.active, _degree(agreed)) == (self.agreed.active, _degree(self.agreed))
            and all(len(places & set(self.agreed.holders(i))) >= self.agreed.threshold for i in places)
        )

    def terms_of(self, agreed: Agreement) -> Agreement:
        """The agreement of a sum of some of its parties: its own numbers, among the holders of the set-up."""
        own = self.agreed
        return replace(agreed, names=own.names, degree=own.degree, order=own.order, threshold=own.threshold)

    def dealt(self, at: int) -> dict[int, Any]:
        """What each party has committed to for one sum, as `Opening` reads it."""
        found = {}
        for name, said in self.introduced.items():
            i = self.agreed.place(name)
            width = len(USES) * len(self.agreed.holders(i)) * SEED
            part = {use: said[use][at * SEED : (at + 1) * SEED] for use in ("own", "key")}
            found[i] = {**part, "shares": said["shares"][at * width : (at + 1) * width]}
        return found

    def hidden_pair(self, name: str, other: str, at: int) -> tuple[bytes, bytes]:
        """The seed of a pair in one sum as a party has left it, under its key, and the commitment to it."""
        said = self.joined[name]
        where = SEED * (at * len(said["names"]) + said["names"].index(other))
        return said["sealed"][where : where + SEED], said["checks"][where : where + SEED]


def _degree(agreed: Agreement) -> int | None:
    """Neighbours of each party; ``None`` if all are neighbours, however many they are."""
    return None if agreed.degree >= len(agreed.names) - 1 else agreed.degree


@dataclass
class RoundOpening(Opening):
    """`Opening` of one sum under standing keys: the key of a lost party opens the seeds of its pairs that it has left at the server.

    Attributes:
        setup: the set-up; required.
        round: number of the sum.
    """

    setup: KeySetUp = None  # type: ignore[assignment]
    round: int = 0

    def is_seed(self, use: str, dealer: int, seed: bytes) -> bool:
        """Whether opened shares are what their dealer has committed to."""
        return bool(commitment("seed", seed) == self.dealt[dealer][use])

    def pair(self, key: bytes, lost: int, other: int, context: bytes) -> bytes:
        """The seed of the mask that a lost party, whose key of this sum was opened, shares with another."""
        name = self.agreed.names[other]
        sealed, check = self.setup.hidden_pair(self.agreed.names[lost], name, self.round)
        seed = hide_seed(key, name, sealed)
        if commitment("pair", seed) != check:
            who = self.agreed.names[lost]
            self.wrong[lost] = f"it left another seed with {name} than it has committed to"
            raise QuorumError(
                f"{who} left another seed with {name} than it has committed to",
                where="masked sum",
                remedy=f"leave {who} out, and look at it",
            )
        return derived(seed, "pair", context)


# ------------------------------------------------------------------ the party's half of masked sums with standing keys, as tasks
#
# =========  ==================================================================  ==============================================
# superstep  the party                                                           the server gets
# =========  ==================================================================  ==============================================
# introduce  draws a key and the first link of its chain, and sends each holder  the public key, and commitments to secrets
# its shares of the two secrets of every sum to come, in a letter     and shares
# join       agrees with each neighbour on the first link of their chain, and    the seeds of its pairs, each under the key of
# forgets its private key                                             its sum, and commitments to them
# masked     runs the task, encodes its totals as words, adds the masks of this  masked words, which the engine adds up
# sum, and moves its chains on
# vote       tells the others who is in the sum (against an active server)       nothing
# reveal     opens, for each party in the sum, its share of that party's own     the shares
# seed, and for each that was lost its share of that one's key
# =========  ==================================================================  ==============================================
#
# The first two are the set-up, and what they leave stays. The key of a party opens the seeds of its pairs in one sum: nobody ever opens what the chains come from.
#
# **Once.** A party binds itself in its record (`Island.promise`) for each sum of a set-up twice: to the words that it masks, before they leave, and to the set of parties, before it votes and
# before it reveals. So no crash, resume or replay wins words of two updates under one mask, or both secrets of a party.


def _read_promise(message: Tree) -> int:
    """The least number of parties in a sum of the agreement; see `read_promise`."""
    return read_promise(message["agreed"])


def _promised_before(message: Tree) -> None:
    """What *masked* has promised holds for the steps after it: without it they refuse."""
    del message


@task(promise=_read_promise)
def introduce(island: Island, message: Tree) -> Tree:
    """Deal shares of the secrets of every sum to come, and a public key, to the holders."""
    agreed, (sums, label) = Agreement.of(message["agreed"]), setup_context(message)
    agreed.require_active(island)
    island.bind_letters(agreed.fingerprint)
    holders = agreed.holders(agreed.place(island.name))
    key, link = island.secret.bytes(SEED), island.secret.bytes(SEED)
    rows, said, here = list[list[bytes]](), {"own": b"", "key": b"", "shares": b""}, link
    for _ in range(sums):
        for use, secret in zip(USES, (key_of(here), own_of(here)), strict=True):
            shares = shares_of(secret, len(holders), agreed.threshold, island.secret)
            said[use] += commitment("seed", secret)
            said["shares"] += b"".join(commitment(use, share) for share in shares)
            rows.append(shares)
        here = ahead(here, 1)
    public = public_key(key)
    for place, holder in enumerate(holders):
        dealt = b"".join(shares[place] for shares in rows)
        island.post(agreed.names[holder], {"id": label, "key": public, "shares": dealt})
    island.state = {"id": label, "agreed": message["agreed"], "sums": sums, "key": key, "public": public, "link": link}
    return {"public": public, **said}


@task(promise=_promised_before)
def join(island: Island, message: Tree) -> Tree:
    """Derive the first link of the chain with each neighbour that has introduced itself; reply with the seeds of these pairs under keys that only their sum opens."""
    state = island.state
    if not state or state.get("id") != message["id"] or "key" not in state:
        raise PolicyError("a set-up of keys that this party has not begun", where="masked sum", remedy=_RESTART)
    agreed = Agreement.of(state["agreed"])
    island.bind_letters(agreed.fingerprint, introduce.name)
    letters = island.inbox
    if len(letters) < agreed.threshold:
        raise PolicyError(
            f"{len(letters)} parties have introduced themselves, fewer than the threshold of {agreed.threshold}",
            where="masked sum",
            remedy="invite more parties",
        )
    near = set(agreed.graph[agreed.place(island.name)])
    context = agreed.fingerprint + state["id"].encode()
    size = state["sums"] * len(USES) * SHARE
    links, shares = dict[str, bytes](), dict[str, bytes]()
    for name, letter in letters.items():
        if not _is_introduction(letter, state["id"], size):
            raise LetterError(
                f"{name} introduced itself to another set-up, or without shares",
                where=island.name,
                remedy=f"leave {name} out, and look at it",
            )
        shares[name] = letter["shares"]
        if agreed.place(name) in near:
            links[name] = pair_seed(state["key"], letter["key"], context)
    said, own, chain = {"sealed": b"", "checks": b""}, state["link"], dict(links)
    for _ in range(state["sums"]):
        for name, link in chain.items():
            seed = pair_of(link)
            said["sealed"] += hide_seed(key_of(own), name, seed)
            said["checks"] += commitment("pair", seed)
        own, chain = ahead(own, 1), {name: ahead(link, 1) for name, link in chain.items()}
    kept = {name: state[name] for name in ("id", "agreed", "sums", "public", "link")}
    island.state = {**kept, "at": 0, "links": links, "shares": shares}
    return {"names": list(links), **said}


_RESTART = "let the server begin anew: its next sum agrees on new keys"


def _is_introduction(letter: Any, label: str, size: int) -> bool:
    parts = letter if isinstance(letter, dict) else {}
    sized = all(
        isinstance(parts.get(name), bytes) and len(parts[name]) == n for name, n in (("key", SEED), ("shares", size))
    )
    return sized and parts.get("id") == label


@task(promise=_read_promise)
async def masked(island: Island, message: Tree) -> Tree:
    """Reply with the masked words of the party's totals, by lane."""
    terms, state = StandingTerms.of(message), island.state
    agreed = terms.agreed
    steps = _steps_to(state, terms)
    require_noise(island, agreed)
    me, near = agreed.place(island.name), _neighbours(island, terms)
    totals = await island.totals(agreed.least)
    layout = agreed.layout(form_of(totals))
    lanes = layout.encode(totals, island.name)
    context = terms.context(island.asked, layout.fingerprint)
    link = ahead(state["link"], steps)
    links = {name: ahead(first, steps) for name, first in state["links"].items()}
    masks = [(derived(own_of(link), "own", context), False)]
    masks += [(derived(pair_of(links[name]), "pair", context), agreed.place(name) < me) for name in near]
    add_masks(lanes, masks)
    if agreed.active or island.sealing.real:
        _promise(island, "masked words", terms.round, _hash(lanes))
    each, past = len(USES) * SHARE, steps * len(USES) * SHARE
    here = {name: row[past : past + each] for name, row in state["shares"].items()}
    island.state = {
        **state,
        "at": terms.round + 1,
        "link": ahead(link, 1),
        "links": {name: ahead(each_link, 1) for name, each_link in links.items()},
        "shares": {name: row[past + each :] for name, row in state["shares"].items()},
        "open": {"terms": message, "shares": here, "form": layout.form, "matter": island.matter},
    }
    return {lane: Sum(words) for lane, words in lanes.items()}


def _steps_to(state: Any, terms: StandingTerms) -> int:
    """By how many links the party's chains must move to reach a sum.

    Raises:
        PolicyError: it has no keys of this set-up, its chains have passed the sum, or the agreement is not that of the set-up.
    """
    if not state or state.get("id") != terms.setup or "links" not in state:
        raise PolicyError("masked words under keys that this party does not have", where="masked sum", remedy=_RESTART)
    if not state["at"] <= terms.round < state["sums"]:
        raise PolicyError(
            f"sum {terms.round} of {state['sums']} under one set-up, after sum {state['at'] - 1}",
            where="masked sum",
            remedy="look at the server: it asks for a second sum under keys that were used",
        )
    first, now = Agreement.of(state["agreed"]), terms.agreed
    if [getattr(first, name) for name in _FIXED] != [getattr(now, name) for name in _FIXED]:
        raise PolicyError("other holders or another threshold than in the set-up", where="masked sum", remedy=_RESTART)
    return int(terms.round - state["at"])


_FIXED = ("names", "degree", "order", "threshold", "active")


def _neighbours(island: Island, terms: StandingTerms) -> list[str]:
    """The neighbours with which the party shares a mask in a sum.

    Raises:
        PolicyError: the sum is not of this party, of too few, or of a party that has not joined.
    """
    agreed, links = terms.agreed, island.state["links"]
    agreed.require_set(set(terms.who), set(), agreed.place(island.name), island.organisation)
    taking_part = set(terms.who)
    found = [agreed.names[i] for i in agreed.graph[agreed.place(island.name)] if i in taking_part]
    strange = [name for name in found if name not in links]
    if strange:
        raise PolicyError(
            f"a sum with {strange[0]}, which has agreed on no keys with this party",
            where="masked sum",
            remedy=_RESTART,
        )
    return found


def _hash(lanes: Mapping[str, Any]) -> str:
    made = hashlib.sha256()
    for lane in sorted(lanes):
        made.update(lane.encode() + b"\0")
        made.update(np.ascontiguousarray(lanes[lane]).view(np.uint8).data)
    return made.hexdigest()


def _promise(island: Island, what: str, at: int, bound: str) -> None:
    matter = f"{what} {at} of {hashlib.sha256(island.state['public']).hexdigest()[:32]}"
    island.promise(matter, bound)


@task(promise=_promised_before)
def vote(island: Island, message: Tree) -> Tree:
    """Tell the parties in the sum, all of which hold my shares, who is in it, once."""
    terms, kept, lost = _read_request(island, message)
    for place in sorted(kept):
        island.post(terms.agreed.names[place], label_of(sorted(kept), sorted(lost)))
    return None


@task(promise=_promised_before)
def reveal(island: Island, message: Tree) -> Tree:
    """Reply with the shares that the sum of one set of parties needs, once."""
    terms, kept, lost = _read_request(island, message)
    agreed, state = terms.agreed, island.state
    if agreed.active:
        require_votes(island, agreed, label_of(sorted(kept), sorted(lost)))
    shares = {}
    for use, places in enumerate((lost, kept)):
        for name in (agreed.names[place] for place in sorted(places)):
            if name in state["open"]["shares"]:
                shares[name] = state["open"]["shares"][name][use * SHARE : (use + 1) * SHARE]
    island.state = {**state, "open": {**state["open"], "shares": {}}}
    return {"shares": shares, "form": state["open"]["form"]}


def _read_request(island: Island, message: Tree) -> tuple[StandingTerms, set[int], set[int]]:
    """The terms of the sum, and the set of parties that a request names.

    Raises:
        PolicyError: the request is for another sum, for a second set, or for one that would tell a sum of a few.
    """
    left = (island.state or {}).get("open") or {}
    if not left.get("shares"):
        raise PolicyError("a second set of seeds", where="masked sum", remedy="look at the server: it asked twice")
    terms = StandingTerms.of(left["terms"])
    kept, lost = set(message["kept"]), set(message["lost"])
    if (message["id"], message["round"]) != (terms.setup, terms.round) or kept | lost != set(terms.who):
        raise PolicyError(
            f"seeds of sum {message['round']}, or of other parties than its {len(terms.who)}",
            where="masked sum",
            remedy="look at the server: it asks for seeds that no sum needs",
        )
    agreed = terms.agreed
    island.bind_letters(agreed.fingerprint, vote.name)
    agreed.require_set(kept, lost, agreed.place(island.name), island.organisation)
    bind_set(island, [agreed.names[i] for i in kept], left["matter"])
    _promise(island, "masked sum", terms.round, label_of(sorted(kept), sorted(lost)))
    return terms, kept, lost


# ------------------------------------------------------------------ masked sums whose parties agree on keys once
#
# Masked sums whose parties agree on keys once: the multi-round secure aggregation of Flamingo (Ma et al. 2023), with chains of keys and shares among neighbours.


@dataclass(frozen=True)
class MultiRound(SecureAggregation):
    """`SecureAggregation` with one set-up of keys for many sums: the same sums, losses and assumptions, with a superstep, an agreement in pairs and the letters with shares once in ``sums`` sums.

    In the set-up every two neighbours agree on the first link of a chain of keys, and each party deals its holders shares of the secrets of all sums to come. Each sum takes one
    link of every chain, so that secrets which are opened tell nothing of another sum. What the chains come from is never shared and never opened. The seeds that a party shares
    with its neighbours lie at the server, under a key for each sum, of which holders have shares: if the party is lost, they open the key of this sum alone.

    A set-up serves sums of its own parties, or of as many of them as leave each ``threshold`` holders. A party that joins, a party whose reply was refused, a sum that fails
    and a server that starts again make the next sum begin with a new set-up. So it pays where the same parties take part again and again, as organisations do, and not where
    each round samples a few of many.

    It has no virtual masks. The steps and bytes of a sum of `SecureAggregation` follow from its agreement and its losses alone, so a simulation can count them without making a key. Here they depend on the
    sums before: whether the keys still serve, which parties have them, and which link each chain has come to. To know that, a simulation must keep the parties' states and the server's memory as they are, which is
    what the masks cost. ``SecureAggregation(masks="virtual")`` gives the same sums in a simulation.

    Attributes:
        sums: the most sums that one set-up serves.

    Raises:
        ConfigError: a setting makes no sense.
    """

    sums: int = 20
    lasting: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.sums <= MOST:
            raise ConfigError(f"sums={self.sums}", where="MultiRound", remedy=f"use a number from 1 to {MOST}")
        if self.masks != "real":
            raise ConfigError(
                f"masks={self.masks!r}",
                where="MultiRound",
                remedy="use masks='real', or SecureAggregation(masks='virtual')",
            )

    @property
    def offers(self) -> frozenset[Capability]:
        """What it offers to the other parts of a job: all that `SecureAggregation` does, but for taking excess noise back."""
        return super().offers - {EXCESS_REMOVED}

    def exposures(self, parties: int) -> tuple[Exposure, ...]:
        """Who sees what of the replies of a cohort."""
        server, others = super().exposures(parties)
        once = f"the sites' folders are not set back to an earlier day; keys serve up to {self.sums} sums, and a stolen one tells nothing of sums before the theft"
        return (replace(server, assuming=f"{server.assuming}; {once}"), others)

    # ------------------------------------------------------------------ the protocol

    async def reduce(self, reduction: Reduction) -> Reduced:
        """Agree on keys if there are none that serve, add up masked words, let the parties reveal, and take the masks off."""
        wanted, memory = self.agreement(reduction), reduction.memory
        known = memory.pop("keys", None)  # whatever goes wrong from here, the next sum begins anew
        setup, odd = None if known is None else KeySetUp.of(known), dict[str, str]()
        if fresh := setup is None or not setup.serves(wanted, self.sums):
            setup = await self._agreed_keys(reduction, wanted)
            odd = setup.settle()
        terms = StandingTerms(setup.terms_of(wanted), setup.label, setup.next, setup.places(wanted.names))
        setup.next += 1
        agreed, quorum, roster = terms.agreed, max(wanted.least, setup.agreed.threshold), reduction.world.roster
        named = {roster.position(name): why for name, why in odd.items()}
        asked = reduction.parties.named(*(agreed.names[i] for i in terms.who))
        require_enough(asked, quorum, "MultiRound", named)
        found = await reduction.fold(masked, terms.message(), parties=asked, at=f"{setup.label}/{terms.round}")
        kept = Parties(roster, found.senders)
        require_enough(kept, quorum, "MultiRound", found.rejected)
        opening, forms = await self._opening(reduction, terms, setup, asked, kept)
        result = _open_sum(reduction, terms, found, opening, forms)
        if not (found.rejected or found.errors or opening.wrong):
            memory["keys"] = setup.message()
        result.counts["key_set_ups"] = int(fresh)
        result.rejected.update(named)
        return result

    async def _agreed_keys(self, reduction: Reduction, agreed: Agreement) -> KeySetUp:
        """Let the parties introduce themselves and agree on keys; they keep them whatever becomes of the sum."""
        quorum, label = max(agreed.least, agreed.threshold), label_of_path(reduction.slot)
        steps = reduction.set_up(label)
        told = {"agreed": agreed.message(), "id": label, "sums": self.sums}
        first: Exchanged = await steps.exchange(reduction.parties, introduce, told, quorum=quorum)
        said = {n: one for n, one in first.by_name().items() if is_introduced(agreed, self.sums, n, one)}
        begun = first.senders.named(*said)
        require_enough(begun, quorum, "MultiRound")
        second = await steps.exchange(begun, join, {"id": label}, mail=first.mail.only_from(set(said)), quorum=quorum)
        joined = {n: one for n, one in second.by_name().items() if is_joined(agreed, self.sums, n, one)}
        return KeySetUp(agreed, label, self.sums, said, joined)

    async def _opening(
        self, reduction: Reduction, terms: StandingTerms, setup: KeySetUp, asked: Parties, kept: Parties
    ) -> tuple[RoundOpening, list[Any]]:
        """Let the parties vote on the set, if the server may lie, and reveal its shares; return them with the forms of their totals."""
        agreed = terms.agreed
        places = [agreed.place(name) for name in kept.names]
        lost = [agreed.place(name) for name in asked.without(kept).names]
        message = {"id": terms.setup, "round": terms.round, "kept": places, "lost": lost}
        label, mail, who, some = label_of(places, lost), None, kept, min(agreed.threshold, len(kept))
        if agreed.active:
            voted: Exchanged = await reduction.exchange(kept, vote, message, at=label, quorum=some)
            mail, who = voted.mail.only_from(set(voted.senders.names)), voted.senders
        shown: Replies = await reduction.exchange(who, reveal, message, at=label, mail=mail, quorum=some)
        told = {name: reply for name, reply in shown.by_name().items() if isinstance(reply, dict) and "form" in reply}
        opening = RoundOpening(agreed, setup.dealt(terms.round), places, lost, setup=setup, round=terms.round)
        for name, reply in told.items():
            opening.take(agreed.place(name), reply.get("shares"))
        return opening, [reply["form"] for reply in told.values()]


def _open_sum(
    reduction: Reduction, terms: StandingTerms, found: PartialSum, opening: RoundOpening, forms: list[Any]
) -> Reduced:
    """The totals of the sum, and how many parties dealt or revealed what is wrong."""
    layout = terms.agreed.layout(common_form(forms))
    lanes = {lane: np.array(total.value) for lane, total in found.totals.items()}
    opening.unmask(lanes, terms.context(reduction.request.fingerprint, layout.fingerprint))
    return decode_sum(layout, lanes, found.senders, wrong=len(opening.wrong))
