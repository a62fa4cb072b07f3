"""The party's half of masked sums with standing keys, as tasks.

=========  ==================================================================  ==============================================
superstep  the party                                                           the server gets
=========  ==================================================================  ==============================================
introduce  draws a key and the first link of its chain, and sends each holder  the public key, and commitments to secrets
           its shares of the two secrets of every sum to come, in a letter     and shares
join       agrees with each neighbour on the first link of their chain, and    the seeds of its pairs, each under the key of
           forgets its private key                                             its sum, and commitments to them
masked     runs the task, encodes its totals as words, adds the masks of this  masked words, which the engine adds up
           sum, and moves its chains on
vote       tells the others who is in the sum (against an active server)       nothing
reveal     opens, for each party in the sum, its share of that party's own     the shares
           seed, and for each that was lost its share of that one's key
=========  ==================================================================  ==============================================

The first two are the set-up, and what they leave stays. The key of a party opens the seeds of its pairs in one sum: nobody ever opens what the chains come from.

**Once.** A party binds itself in its record (`Island.promise`) for each sum of a set-up twice: to the words that it masks, before they leave, and to the set of parties, before it votes and
before it reveals. So no crash, resume or replay wins words of two updates under one mask, or both secrets of a party.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra.aggregate import Sum
from atoll.core.algebra.tree import Tree
from atoll.core.errors import LetterError, PolicyError
from atoll.core.requests.task import task

from ..ballot import bind_set
from ..keystream import SEED, add_masks, derived
from ..masking.agreement import Agreement
from ..masking.excess import require_noise
from ..masking.halves import label_of, read_promise, require_votes
from ..masking.seeds import SHARE, commitment, pair_seed, public_key, shares_of
from ..words import form_of
from .chain import USES, ahead, hide_seed, key_of, own_of, pair_of
from .terms import StandingTerms, setup_context

if TYPE_CHECKING:
    from collections.abc import Mapping

    from atoll.core.requests.island import Island

__all__ = ["introduce", "join", "masked", "reveal", "vote"]


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
    found = [agreed.names[i] for i in agreed.graph[agreed.place(island.name)] if i in set(terms.who)]
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
