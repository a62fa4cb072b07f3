"""What a server can compute from the answers it has: every sum of some parties' numbers that they open.

The parties' numbers are chosen so that a sum says who is in it (`held`): each party has a number in a place of its own, and zeros elsewhere. A vector of words is *open* if every place holds a small
whole number; while one mask is on it, all places are uniform, and a vector of eight looks open with a chance below ``2^-300``. So nobody needs to say what a reply hides: whoever combines answers until a
vector is open has learned the sum of the parties whose places are not zero.

A reader knows one protocol: which seeds, shares or sums its answers give, and how they take masks off. `under_one_mask` needs no reader.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Sum
from atoll.core.errors import AtollError
from atoll.core.requests.request import Request
from atoll.core.requests.task import task
from atoll.core.sealing import Letter
from atoll.secure.encrypted.agreement import EncryptedAgreement, words_of
from atoll.secure.keystream import SEED, add_masks, derived
from atoll.secure.masking.agreement import Agreement
from atoll.secure.masking.one_shot import Code
from atoll.secure.masking.unmasking import is_dealt, open_secret, pair_seed, public_key
from atoll.secure.multi_round import StandingTerms, hide_seed

if TYPE_CHECKING:
    from atoll.core.algebra.tree import Tree
    from atoll.core.requests.island import Island

    from .server import PartyAnswer

__all__ = ["READERS", "SumView", "held", "number_of", "open_places", "reading", "under_one_mask", "whole_places"]

Array = np.ndarray[Any, np.dtype[Any]]
LANE = "64"
"""The lane of numbers of any size."""
_UNIT = 1 << 24
"""Units of a whole number in that lane."""
_MOST = 1 << 20
"""No sum of the numbers of `held` is larger."""
_DRAWS = 1000
_NEAR = 1e-3


@task
def held(island: Island, message: Tree) -> Tree:
    """A number in the party's own place; it follows from the request's random key too, unless the message says otherwise."""
    place, places = (int(x) for x in island.data)
    row = np.zeros(places)
    drawn = int(island.rng.child("drawn").generator().integers(1, _DRAWS)) if message["draws"] else 1
    row[place] = number_of(place) * drawn
    return {"x": Sum(row)}


def number_of(place: int) -> int:
    """The number of the party at a place."""
    return 3 + 2 * place


def open_places(vector: Any) -> tuple[int, ...] | None:
    """The whole numbers of a vector of words without a mask; ``None`` while one is on it."""
    words = np.ascontiguousarray(vector)
    if words.dtype.kind not in "ui" or words.ndim != 1 or not 2 <= words.size <= 64:
        return None
    whole = words.astype(np.uint64).view(np.int64)
    if np.any(whole % _UNIT) or np.any(np.abs(whole // _UNIT) > _MOST):
        return None
    return tuple((whole // _UNIT).tolist())


def whole_places(values: Array) -> tuple[int, ...] | None:
    """The whole numbers of a sum that a reducer has decoded; ``None`` if they are none, or too large to be sums of the parties' numbers."""
    rounded = np.rint(values)
    near = np.all(np.isfinite(values)) and np.all(np.abs(values - rounded) < _NEAR) and np.all(np.abs(values) < _MOST)
    return tuple(rounded.astype(int).tolist()) if near else None


def lanes_in(value: Any) -> Mapping[str, Any] | None:
    """The lanes of words in a reply, wherever they are."""
    if not isinstance(value, Mapping):
        return None
    if LANE in value:
        return value
    return next((found for name in ("words", "lanes") if (found := lanes_in(value.get(name))) is not None), None)


@dataclass(eq=False)
class SumView:
    """What a server knows of one sum.

    Attributes:
        path: of the sum.
        names: the cohort, in order.
        answers: every answer in it, honest or not.
        before: answers of earlier sums and set-ups.
        partner: a party that puts what it has together with the server; ``""`` for none.
        unseal: opens letters to that party.
    """

    path: str
    names: list[str]
    answers: list[PartyAnswer]
    before: list[PartyAnswer]
    partner: str = ""
    unseal: Callable[..., Any] = field(default=lambda letter, agreed=b"": None)

    def of(self, *ends: str) -> list[PartyAnswer]:
        """The answers of tasks whose names end so."""
        return [one for one in self.answers if one.task.endswith(ends) and one.value is not None]

    @property
    def words(self) -> dict[str, list[Array]]:
        """The words of each party, as often as they differ."""
        found = defaultdict[str, list[Array]](list)
        for one in self.answers:
            lanes = None if one.request.wraps is None else lanes_in(one.value)
            if lanes is None or one.party not in self.names:
                continue
            row = np.asarray(lanes[LANE]).astype(np.uint64)
            if not any(np.array_equal(row, known) for known in found[one.party]):
                found[one.party].append(row)
        return dict(found)

    def choices(self, names: Sequence[str]) -> Iterator[dict[str, Array]]:
        """Ways to take one answer of each of these parties: the first ones, the last ones, and each one that differs."""
        words = self.words
        if not names or any(name not in words for name in names):
            return
        yield {name: words[name][0] for name in names}
        if any(len(words[name]) > 1 for name in names):
            yield {name: words[name][-1] for name in names}
        for name in names:
            for other in words[name][1:]:
                yield {**{each: words[each][0] for each in names}, name: other}


Reader = Callable[[SumView], Iterator[Array]]


def reading(view: SumView, reader: Reader | None) -> Iterator[Array]:
    """Every vector that the answers open, with the protocol's reader."""
    if reader is None:
        return
    try:
        yield from reader(view)
    except (AtollError, KeyError, ValueError, TypeError, IndexError):
        return  # answers that do not fit together open nothing


def under_one_mask(view: SumView) -> list[str]:
    """The parties of which two answers differ in no place but their own: the mask on both is the same, or there is none."""
    found = list[str]()
    for name, rows in _whole_rows(view).items():
        apart = [row - other for i, row in enumerate(rows) for other in rows[:i] if row.shape == other.shape]
        if any(np.count_nonzero(each) == 1 for each in apart):
            found.append(name)
    return found


def _whole_rows(view: SumView) -> dict[str, list[Array]]:
    """The arrays of whole numbers in the words of each party, wherever they are."""
    found = defaultdict[str, list[Array]](list)
    for one in view.answers:
        for _, leaf in T.items(one.value) if one.request.wraps is not None and one.value is not None else ():
            if (
                isinstance(leaf, np.ndarray)
                and leaf.dtype.kind in "ui"
                and leaf.ndim == 1
                and leaf.size >= len(view.names)
            ):
                found[one.party].append(np.asarray(leaf))
    return found


def _total(rows: Mapping[str, Array]) -> Array:
    return np.asarray(np.sum(list(rows.values()), axis=0, dtype=np.uint64))


# ---------------------------------------------------------------------- a holder of seeds, and coded masks


def held_seeds(view: SumView) -> Iterator[Array]:
    """`Enclave` and `TwoServers`: the words of a set, without the sum of its masks."""
    for one in view.of(":open_masks"):
        senders = [name for name in view.names if name in _senders(one)]
        for rows in view.choices(senders):
            yield _total(rows) - np.asarray(one.value[LANE]).astype(np.uint64)


def _senders(one: PartyAnswer) -> set[str]:
    return set() if one.request.mail is None else set(one.request.mail.box(one.party))


def coded_masks(view: SumView) -> Iterator[Array]:
    """`OneShot`: the words of a set, without the mask that a threshold of summed shares gives."""
    sets = defaultdict[tuple[int, ...], dict[int, list[Array]]](lambda: defaultdict(list))
    sent = view.of(":code_words")
    if not sent:
        return
    first = sent[0]
    agreed, private = Agreement.of(first.request.message["agreed"]), int(first.request.message["private"])
    code = Code(len(agreed.names), agreed.threshold, private)
    for one in view.of(":sum_shares"):
        sets[tuple(sorted(one.request.message["kept"]))][agreed.place(one.party)].append(np.asarray(one.value[LANE]))
    length = len(next(iter(view.words.values()))[0])
    for kept, shares in sets.items():
        if len(shares) < code.threshold:
            continue
        for pick in (0, -1):
            mask, _ = code.open_shares({place: rows[pick] for place, rows in shares.items()}, length, int(LANE))
            for rows in view.choices([agreed.names[i] for i in kept]):
                yield _total(rows) - mask


# ---------------------------------------------------------------------- sums that helpers open


def summed_shares(view: SumView) -> Iterator[Array]:
    """`BoundedSum` and `SecureIndexing`: what the helpers' answers add up to."""
    rows = defaultdict[str, list[Array]](list)
    for one in view.of(":add"):
        lanes = lanes_in(one.value)
        if lanes is not None:
            rows[one.party].append(np.asarray(lanes[LANE]).astype(np.uint64))
    for chosen in product(*rows.values()) if rows else ():
        yield np.asarray(np.sum(chosen, axis=0, dtype=np.uint64))


def list_decrypted(view: SumView) -> Iterator[Array]:
    """`Encrypted` with a key holder: what it decrypts."""
    for one in view.of(":open_sum"):
        first = view.of(":encrypt_totals")[0]
        agreed = EncryptedAgreement.of(first.request.message["agreed"], real=False)
        lanes = agreed.lanes(agreed.layout(one.request.message["form"]))
        yield words_of(lanes, [np.asarray(row) for row in one.value], len(one.request.message["kept"]))[LANE]


# ---------------------------------------------------------------------- double masks


def double_masks(view: SumView) -> Iterator[Array]:
    """`SecureAggregation`: the words of a set, without the masks whose seeds the shares give."""
    dealt = {one.party: one for one in view.of(":deal")}
    if not dealt or not view.words:
        return
    agreed = Agreement.of(next(iter(dealt.values())).request.message)
    keys = {name: one.value["key"] for name, one in dealt.items() if is_dealt(agreed, name, one.value)}
    layout = agreed.layout(_form(view))
    context = agreed.context(_find_request(view).fingerprint, layout.fingerprint)
    own, secret = _seeds(view.of(":reveal"), agreed, _partners_shares(view, agreed))
    old = _keys_before(view)
    for name in own:
        for row in _without_pairs(view, name):
            lanes = {LANE: row}
            add_masks(lanes, [(derived(own[name], "own", context), True)])
            yield lanes[LANE]

    def pair(name: str, other: str) -> bytes | None:
        if other in secret or other in old:
            return pair_seed(secret.get(other) or old[other], keys[name], context)
        return pair_seed(secret[name], keys[other], context) if name in secret else None

    yield from _list_unmasked(view, _Masks(agreed, context, own, set(keys), pair))


def standing_masks(view: SumView) -> Iterator[Array]:
    """`MultiRound`: the same, with seeds of pairs that lie at the server under the party's key of the sum."""
    words = [one for one in view.answers if one.request.wraps is not None and one.value is not None]
    if not words:
        return
    terms = StandingTerms.of(words[0].request.message)
    agreed = terms.agreed
    joined = {one.party: one.value for one in [*view.before, *view.answers] if _joins(one, terms.setup)}
    layout = agreed.layout(_form(view))
    context = terms.context(_find_request(view).fingerprint, layout.fingerprint)
    own, secret = _seeds(view.of(":reveal"), agreed)

    def pair(name: str, other: str) -> bytes | None:
        holder, end = (other, name) if other in secret else (name, other)
        if holder not in secret:
            return None
        said = joined[holder]
        at = SEED * (terms.round * len(said["names"]) + said["names"].index(end))
        return derived(hide_seed(secret[holder], end, said["sealed"][at : at + SEED]), "pair", context)

    yield from _list_unmasked(view, _Masks(agreed, context, own, {agreed.names[i] for i in terms.who}, pair))


@dataclass
class _Masks:
    """What is known of the masks of one sum.

    Attributes:
        agreed: the agreement.
        context: what the masks are bound to.
        own: seeds of parties' own masks.
        inside: the parties that share masks.
        pair: the seed of the mask that two share; ``None`` if nobody knows it.
    """

    agreed: Agreement
    context: bytes
    own: Mapping[str, bytes]
    inside: set[str]
    pair: Callable[[str, str], bytes | None]

    def of(self, chosen: Sequence[str]) -> list[tuple[bytes, bool]] | None:
        """The masks on the sum of some parties' words, and which are subtracted to take them off; ``None`` if one is not known."""
        if any(name not in self.own for name in chosen):
            return None
        masks = [(derived(self.own[name], "own", self.context), True) for name in chosen]
        for name in chosen:
            i = self.agreed.place(name)
            near = [(j, self.agreed.names[j]) for j in self.agreed.graph[i]]
            for j, other in near:
                if other in chosen or other not in self.inside:
                    continue
                seed = self.pair(name, other)
                if seed is None:
                    return None
                masks.append((seed, not j < i))
        return masks


def _list_unmasked(view: SumView, masks: _Masks) -> Iterator[Array]:
    """The words of every set that anybody was asked to open, and of each party in it, as far as their masks are known."""
    sets = sorted({tuple(sorted(one.request.message["kept"])) for one in view.of(":reveal")})
    names = [[masks.agreed.names[i] for i in kept] for kept in sets]
    for chosen in [*names, *([name] for name in dict.fromkeys(name for kept in names for name in kept))]:
        known = masks.of(chosen)
        if known is not None:
            for rows in view.choices(chosen):
                lanes = {LANE: _total(rows)}
                add_masks(lanes, known)
                yield lanes[LANE]


def _without_pairs(view: SumView, name: str) -> Iterator[Array]:
    """A party's words without the masks of its pairs: each is the difference of what its neighbour sends with the party's letter, and without it."""
    rows = defaultdict[str, dict[frozenset[str], Array]](dict)
    for one in view.answers:
        lanes = None if one.request.wraps is None else lanes_in(one.value)
        if lanes is not None:
            rows[one.party].setdefault(frozenset(_senders(one)), np.asarray(lanes[LANE]).astype(np.uint64))
    if name not in rows:
        return
    everyone, row = max(rows[name].items(), key=lambda each: len(each[0]))
    fewer = everyone - {name}
    others = [rows[other] for other in sorted(fewer) if other in rows]
    if len(others) == len(fewer) and all(everyone in each and fewer in each for each in others):
        yield row + np.sum([each[everyone] - each[fewer] for each in others], axis=0, dtype=np.uint64)


def _joins(one: PartyAnswer, setup: str) -> bool:
    return one.task.endswith(":join") and one.value is not None and one.request.message["id"] == setup


def _find_request(view: SumView) -> Request:
    """The program's request, as most parties got it."""
    asked = [(one.extra, one.request.wraps) for one in view.answers if one.request.wraps is not None]
    return next((wraps for extra, wraps in asked if not extra), asked[0][1])


def _form(view: SumView) -> Any:
    said = [one.value["form"] for one in view.of(":reveal", ":describe") if isinstance(one.value, dict)]
    return said[0] if said else [["x", "sum", "update", f"<f8({len(next(iter(view.words.values()))[0])})"]]


Shares = dict[tuple[str, str], dict[int, bytes]]
"""``(use, dealer)`` -> the holder's place among the dealer's holders -> share."""


def _partners_shares(view: SumView, agreed: Agreement) -> Shares:
    """The shares in the letters to the party that colludes with the server."""
    found: Shares = {}
    for one in view.of(":deal") if view.partner else ():
        letter = one.letters.get(view.partner)
        if letter is None:
            continue
        place = agreed.holders(agreed.place(one.party)).index(agreed.place(view.partner))
        held_shares = view.unseal(Letter.decode(view.unseal(letter, agreed.fingerprint)["shares"]), agreed.fingerprint)
        for use in ("own", "key"):
            found[use, one.party] = {place: held_shares[use]}
    return found


def _seeds(
    revealed: Sequence[PartyAnswer], agreed: Agreement, known: Shares | None = None
) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """The seeds of parties' own masks, and their keys, that shares give."""
    shares = defaultdict[tuple[str, str], dict[int, bytes]](dict, known or {})
    for one in revealed:
        lost = {agreed.names[i] for i in one.request.message["lost"]}
        for name, share in one.value["shares"].items():
            place = agreed.holders(agreed.place(name)).index(agreed.place(one.party))
            shares["key" if name in lost else "own", name][place] = share
    found: dict[str, dict[str, bytes]] = {"own": {}, "key": {}}
    for (use, name), rows in shares.items():
        if len(rows) >= agreed.threshold:
            with contextlib.suppress(AtollError):
                found[use][name] = open_secret(dict(sorted(rows.items())[: agreed.threshold]))
    return found["own"], found["key"]


def _keys_before(view: SumView) -> dict[str, bytes]:
    """Keys that earlier sums have opened, by dealer."""
    found: dict[str, bytes] = {}
    for path in dict.fromkeys(one.request.sum for one in view.before if one.task.endswith("masking.halves:reveal")):
        here = [one for one in view.before if one.request.sum == path and one.value is not None]
        dealt = [one for one in here if one.task.endswith(":deal")]
        if dealt:
            agreed = Agreement.of(dealt[0].request.message)
            said = {one.party: one.value["key"] for one in dealt}
            _, keys = _seeds([one for one in here if one.task.endswith(":reveal")], agreed)
            found |= {name: key for name, key in keys.items() if public_key(key) == said[name]}
    return found


READERS: dict[str, Reader] = {
    "masking.halves": double_masks,
    "standing.halves": standing_masks,
    "masking.coded": coded_masks,
    "holders.halves": held_seeds,
    "bounded.halves": summed_shares,
    "indexing.halves": summed_shares,
    "encrypted.halves": list_decrypted,
}
"""The module of a reducer's halves, without ``atoll.secure`` -> how to read what it opens."""
