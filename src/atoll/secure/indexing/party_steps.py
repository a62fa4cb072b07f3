"""The tasks of secure indexing: what a party seals for whom, and what an enclave or each of two servers adds up.

A party's totals have two parts: numbers, which become words of fixed point, and indices.

=============  ===================================  =====================================================================
by             numbers                              indices
=============  ===================================  =====================================================================
``"enclave"``  words, to the enclave                packed, ``ceil(log2 k)`` bits a block, to the enclave
``"shares"``   a seed to one server, masked words   a seed to one server, masked rows of ``k`` words of ``p`` bits a block to
               to the other                         the other
``"keys"``     likewise                             a key of a point function to each server
=============  ===================================  =====================================================================
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from atoll.core import message as M
from atoll.core.algebra.tree import Tree
from atoll.core.errors import AtollError, MessageError, PolicyError
from atoll.core.event import Event
from atoll.core.message import Words
from atoll.core.message.words import word_dtype
from atoll.core.requests.island import Island
from atoll.core.requests.task import task

from ..ballot import Electorate, ready_to_vote, require_majority
from ..keystream import SEED, Keystream, add_stream, derived
from ..words import FixedPoint, WordLayout, form_of
from .counts import (
    BITS,
    CountNoise,
    Indices,
    Sizes,
    by_layer,
    grid_books,
    part_totals,
    require_alone,
    runs_of,
    sizes_of,
)
from .points import KeyParts, deal, evaluate_all

__all__ = ["ENCLAVE", "IndexPlan", "SERVERS", "add", "send"]

ENCLAVE = "enclave"
SERVERS = ("first-server", "second-server")
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class IndexPlan:
    """What all parties of one sum know.

    Attributes:
        by: ``"enclave"``, ``"shares"`` or ``"keys"``.
        names: the cohort.
        least: smallest number of parties in a sum.
        bits: word length of counts.
        unit: the unit of weights.
        most: the largest weight in units.
        codec: how numbers become words.
        bound: largest magnitude of an update's values.
        signs: whether votes are -1, 0 and 1.
        noise: the noise that helpers add; ``None`` for none.
        books: aggregate -> codebooks of its layers, for noise on sums of codewords.
    """

    by: str
    names: tuple[str, ...]
    least: int
    bits: int
    unit: float
    most: int
    codec: FixedPoint
    bound: float | None = None
    signs: bool = True
    noise: CountNoise | None = None
    books: dict[str, list[Array]] = field(default_factory=dict)

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

    def grid(self, sizes: Sizes) -> tuple[dict[str, list[Any]], float]:
        """The codebooks on a grid of whole numbers, and its step."""
        return ({}, 1.0) if self.noise is None else grid_books(self.books, sizes, self.noise.multiplier)

    @classmethod
    def of(cls, message: Any) -> IndexPlan:
        """The inverse of `message`.

        Raises:
            PolicyError: it makes no sense, or the counts could show a single party.
        """
        try:
            noise = None if message["noise"] is None else CountNoise(**message["noise"])
            parts = {"names": tuple(message["names"]), "codec": FixedPoint(**message["codec"]), "noise": noise}
            made = cls(**{**message, **parts})
        except (TypeError, KeyError) as error:
            raise PolicyError(f"a plan of secure indexing that cannot be read: {error}") from error
        if made.least < 2 or made.by not in ("enclave", "shares", "keys"):
            raise PolicyError(
                f"secure indexing by {made.by!r} of at least {made.least} parties", remedy="use 2 parties or more"
            )
        return made

    @property
    def fingerprint(self) -> bytes:
        """A hash of the plan, 32 bytes."""
        return bytes.fromhex(M.fingerprint(self.message()))

    def layout(self, form: Tree) -> WordLayout:
        """The layout of the numbers."""
        return WordLayout(form, self.codec, self.parties, self.bound, signs=self.signs)


@task
async def send(island: Island, message: Tree) -> Tree:
    """Run the program's task, and seal its totals for the enclave or the servers. Return the form of the totals, which is public."""
    plan = IndexPlan.of(message)
    island.bind_letters(plan.fingerprint)
    salts = [b""] * len(_helpers(plan))
    numbers, found = part_totals(await island.totals(plan.least), plan.unit, plan.most, island.name)
    if plan.noise is not None:
        require_alone(numbers, {name: one.weight for name, one in found.items()}, island.name)
        salts = _record_release(
            island, plan.noise.event(sizes_of(found), plan.grid(sizes_of(found))[0]), len(_helpers(plan))
        )
    form = form_of(numbers)
    lanes, sizes = plan.layout(form).encode(numbers, island.name), sizes_of(found)
    bound = {"plan": plan.fingerprint, "asked": bytes.fromhex(island.asked)}
    if plan.by == "enclave":
        packed = {
            name: [
                Words.of(rows, max(1, (k - 1).bit_length())) for rows, k in zip(one.rows, one.codewords, strict=True)
            ]
            for name, one in found.items()
        }
        weights = {name: one.weight for name, one in found.items()}
        island.post(
            ENCLAVE, {**bound, "lanes": lanes, "index": packed, "weights": weights, "sizes": sizes, "salt": salts[0]}
        )
    else:
        seeds = island.secret.bytes(SEED), island.secret.bytes(SEED)
        shared = (_key_indices if plan.by == "keys" else _share_indices)(found, plan.bits, seeds)
        for name, words in lanes.items():
            add_stream(words.view(np.ndarray), derived(seeds[0], f"lane {name}"), subtract=True)
        own = {"keys": shared} if plan.by == "keys" else {}
        island.post(SERVERS[0], {**bound, "seed": seeds[0], "sizes": sizes, "salt": salts[0], **own})
        second = {"salt": salts[1], "seed": seeds[1] if own else b"", "sizes": sizes, "lanes": lanes, "keys": shared}
        island.post(SERVERS[1], {**bound, **second})
    island.state = ready_to_vote(island, plan.electorate())
    return {"form": form, "sizes": sizes}


def _helpers(plan: IndexPlan) -> tuple[str, ...]:
    return (ENCLAVE,) if plan.by == "enclave" else SERVERS


def _record_release(island: Island, event: Event, helpers: int) -> list[bytes]:
    """Record a release, and return a salt for each helper, from which it makes its noise together with those of the others.

    A party that sends again, because a round is repeated, has other salts, so the noise is fresh: that is another release, and recorded as one.
    """
    salts = [island.secret.bytes(SEED) for _ in range(helpers)]
    mark = hashlib.sha256(b"mark" + b"".join(salts)).hexdigest()[:32]
    island.spend(replace(event, scope=f"{island.name}#{mark}"))
    return salts


def _share_indices(found: dict[str, Indices], bits: int, seeds: tuple[bytes, bytes]) -> list[Words]:
    """Rows of zeros with the weight at the index, minus the words of the first server's seed."""
    made = []
    for place, (index, k, weight) in enumerate(_rows(found)):
        rows = np.zeros((len(index), k), dtype=word_dtype(bits))
        rows[np.arange(len(index)), index] = weight
        flat = rows.ravel()
        add_stream(flat, derived(seeds[0], f"counts {place}"), subtract=True)
        made.append(Words.of(flat, bits))
    return made


def _key_indices(found: dict[str, Indices], bits: int, seeds: tuple[bytes, bytes]) -> list[Tree]:
    """Keys of point functions."""
    return [
        deal(index, weight, k, bits, (derived(seeds[0], f"roots {place}"), derived(seeds[1], f"roots {place}")))
        for place, (index, k, weight) in enumerate(_rows(found))
    ]


def _rows(found: dict[str, Indices]) -> list[tuple[Array, int, int]]:
    """Indices, number of codewords and weight of each run of blocks."""
    return [
        (np.concatenate([found[name].rows[layer] for layer in layers]), k, found[name].weight)
        for name, k, layers in runs_of(sizes_of(found))
    ]


@task
def add(island: Island, message: Tree) -> Tree:
    """Add up what the parties sealed for this helper: sums of words, and counts or a share of them. Nothing about a single party leaves.

    Raises:
        PolicyError: letters of fewer parties than the least sum, so that counts would show single indices.
        MessageError: a letter has another form.
    """
    plan, lengths, sizes = IndexPlan.of(message["plan"]), message["lengths"], message["sizes"]
    island.bind_letters(plan.fingerprint, send.name)
    letters = dict(island.inbox)
    require_majority(island, plan.electorate(), list(letters), message["votes"].get(island.name, {}))
    if len(letters) < plan.least:
        raise PolicyError(
            f"letters of {len(letters)} parties, fewer than {plan.least}",
            where="secure indexing",
            remedy="invite more parties: the counts of a few show their indices",
        )
    lanes = {name: np.zeros(length, dtype=word_dtype(int(name))) for name, length in lengths.items()}
    runs = [(sum(sizes[name][layer][0] for layer in layers), k) for name, k, layers in runs_of(sizes)]
    counts = [np.zeros(run, dtype=word_dtype(plan.bits)) for run in runs]
    keys: list[list[KeyParts]] = [[] for _ in runs]
    server = SERVERS.index(island.name) if plan.by != "enclave" else 0
    first: bytes | None = None
    for name, letter in letters.items():
        try:
            first = _require_bound(plan, name, letter, first)
            _add_letter(plan, server, letter, sizes, lanes, counts, keys)
        except AtollError:
            raise
        except (TypeError, KeyError, ValueError, IndexError, AttributeError) as error:
            raise MessageError(
                f"{name} sealed a letter that is none of this sum: {error}",
                where="secure indexing",
                remedy=f"leave {name} out, and look at it",
            ) from error
    for total, known in zip(counts, keys, strict=True):
        if known:  # of all parties at once
            total += evaluate_all(known, server, len(total), total.shape[1], plan.bits)
    counts, bits = by_layer(sizes, counts), plan.bits
    if plan.noise is not None:
        # Equal letters give equal noise, so that a helper that is asked twice tells the same. Who does not know all salts knows nothing of it.
        salts = b"".join(bytes(letter["salt"]) for _, letter in sorted(letters.items()))
        source, bits = Keystream(hashlib.sha256(b"noise" + salts).digest()), BITS
        counts = plan.noise.add(counts, sizes, plan.grid(sizes)[0], source)
    return {
        "lanes": {name: Words.of(words, int(name)) for name, words in lanes.items()},
        "counts": [Words.of(one.ravel(), bits) for one in counts],
    }


def _require_bound(plan: IndexPlan, name: str, letter: Any, first: bytes | None) -> bytes:
    """Require that a party has agreed on the plan that this helper was told, and was asked what the others were; return what that is.

    Raises:
        PolicyError: names a party for which that is not so.
    """
    asked = bytes(letter["asked"])
    if bytes(letter["plan"]) != plan.fingerprint or asked != (first or asked):
        told = "agreed on another sum" if asked == (first or asked) else "was asked something else than the others"
        raise PolicyError(
            f"{name} {told}", where="secure indexing", remedy="look at the server: it told parties different things"
        )
    return asked


def _add_letter(
    plan: IndexPlan, server: int, letter: Any, sizes: Sizes, lanes: dict[str, Array], counts: list[Array],
    keys: list[list[KeyParts]],
) -> None:  # fmt: skip
    """Add one party's words and counts; keys of point functions are kept until all have come."""
    if letter["sizes"] != sizes:
        raise ValueError("indices of other sizes, so another codebook")
    for lane, words in lanes.items():
        if plan.by == "enclave" or server:
            words += letter["lanes"][lane].astype(words.dtype)
        else:
            add_stream(words, derived(letter["seed"], f"lane {lane}"))
    _count(plan, server, letter, sizes, counts, keys)


def _count(
    plan: IndexPlan, server: int, letter: Any, sizes: Sizes, counts: list[Array], keys: list[list[KeyParts]]
) -> None:
    """Add a party's counts, or this server's share of them."""
    for place, ((name, k, layers), total) in enumerate(zip(runs_of(sizes), counts, strict=True)):
        blocks = len(total)
        if plan.by == "enclave":
            told = [np.asarray(letter["index"][name][layer]).astype(np.int64) for layer in layers]
            weight, right = int(letter["weights"][name]), [(sizes[name][layer][0],) for layer in layers]
            index = np.concatenate(told)
            if [one.shape for one in told] != right or int(index.max(initial=0)) >= k or not 0 < weight <= plan.most:
                raise ValueError("indices outside the codebook, or a weight outside its range")
            total[np.arange(blocks), index] += total.dtype.type(weight)
        elif plan.by == "keys":
            seed = derived(letter["seed"], f"roots {place}")
            keys[place].append(KeyParts.of(letter["keys"][place], seed, blocks, k, plan.bits))
        elif server:
            total += np.asarray(letter["keys"][place]).reshape(blocks, k)
        else:
            add_stream(total.reshape(-1), derived(letter["seed"], f"counts {place}"))
