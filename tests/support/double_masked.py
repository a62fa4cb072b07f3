"""Secure aggregation with double masks (Bonawitz et al. 2017) of whatever a task adds up, in fixed point: a miniature of a reducer."""

from __future__ import annotations

import dataclasses

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Total
from atoll.core.errors import CompositionError, ConfigError, PolicyError, QuorumError
from atoll.core.federation.reducer import Reducer
from atoll.core.requests.request import Reduced
from atoll.core.requests.task import task
from tests.support.masks import mask
from tests.support.shamir import join, split

UNIT = 2.0**-32


def packed(totals, parties):
    """All numbers of a party's totals, in order of name, as words of 64 bits; and what they are, the same for every party."""
    rows = [leaf for _, t in sorted(totals.items()) for leaf in (*T.leaves(t.value), t.weight)]
    numbers = np.concatenate([np.ravel(np.asarray(row, dtype=np.float64)) for row in rows]) / UNIT
    if np.abs(numbers).max(initial=0) * parties >= 2**63:
        raise ConfigError(
            f"a number of {np.abs(numbers).max() * UNIT:g}", remedy="clip, so that the sum stays below 2^31"
        )
    return np.rint(numbers).astype(np.int64).view(np.uint64), [
        [name, t.kind, t.role, T.map(lambda leaf: f"{np.asarray(leaf).dtype.str}{np.shape(leaf)}", t.value)]
        for name, t in sorted(totals.items())
    ]


def unpacked(words, form, n):
    """The totals of n parties."""
    numbers, totals = words.view(np.int64) * UNIT, {}

    def leaf(text):
        nonlocal numbers
        dtype, _, rest = text.partition("(")
        shape = tuple(int(size) for size in rest.strip(")").split(",") if size.strip())
        mine, numbers = np.split(numbers, [int(np.prod(shape, dtype=int))])
        return mine.reshape(shape).astype(dtype)[()]

    for name, kind, role, shapes in form:
        value = T.map(leaf, shapes)
        totals[name] = Total(kind, value, float(numbers[0]), n, role)
        numbers = numbers[1:]
    return totals


def opened(kept, lost):
    """The seeds that the sum of ``kept`` needs: the own ones of those in it, and those between each of them and one that is lost."""
    return [(n, n) for n in kept] + [(min(a, b), max(a, b)) for a in kept for b in lost]


@task
def share(island, names, threshold):
    """My own mask's seed and one for every later party; the others get shares of all, and each its own pair seed."""
    seeds = {n: island.secret.integer(2**64) for n in names if n >= island.name}
    shares = {n: split(seed, names, threshold, island.secret) for n, seed in seeds.items()}
    for name in names:
        seed = seeds.get(name, 0) if name != island.name else 0
        island.post(name, {"seed": seed.to_bytes(8), "shares": {n: rows[name] for n, rows in shares.items()}})
    island.state = {"seeds": {n: seed.to_bytes(8) for n, seed in seeds.items()}}


@task
async def masked(island, _):
    theirs = {n: m["seed"] for n, m in island.inbox.items() if n < island.name}
    words, form = packed(await island.totals(), len(island.inbox))
    for name in island.inbox:
        pad = mask({**island.state["seeds"], **theirs}[name], words.size)
        words = words + pad if name >= island.name else words - pad
    island.state = {"shares": {n: m["shares"] for n, m in island.inbox.items()}}
    return {"words": words, "form": form}


@task
def reveal(island, message):
    """Shares of the seeds that one set of survivors needs; once, for two sets together would open a party."""
    kept, lost, shares = message["kept"], message["lost"], island.state["shares"]
    if not shares or set(kept) & set(lost):
        raise PolicyError("shares of a second set of seeds", remedy="look at the server: it asked twice")
    island.state = {"shares": {}}
    return [shares[a][b] for a, b in opened(kept, lost)]


@dataclasses.dataclass(frozen=True)
class DoubleMasked(Reducer):
    """Any ``threshold`` parties open what the sum needs; fewer learn nothing."""

    threshold: int = 3
    secure = True

    def check(self, uplink, parties, terms, task):
        super().check(uplink, parties, terms, task)
        if len(parties) < self.threshold:
            raise QuorumError(f"{len(parties)} parties, fewer than the threshold of {self.threshold}")
        if isinstance(terms.accept, int) and terms.accept < self.threshold:
            raise CompositionError(f"accept={terms.accept}, below the threshold of {self.threshold}")

    async def reduce(self, reduction):
        names, quorum = reduction.parties.names, self.threshold
        first = await reduction.exchange(reduction.parties, share.with_args(threshold=quorum), names, quorum=quorum)
        mail = first.mail.only_from(set(first.senders.names))
        second = await reduction.exchange(first.senders, masked, mail=mail, wraps=True, quorum=quorum)
        kept, lost = second.senders.names, first.senders.without(second.senders).names
        third = await reduction.ask_all(second.senders, reveal, {"kept": kept, "lost": lost}, quorum=quorum)
        shares = dict(list(third.by_name().items())[:quorum])
        total = sum((reply["words"] for reply in second.values), np.uint64(0))
        for i, (a, b) in enumerate(opened(kept, lost)):
            pad = mask(join({n: row[i] for n, row in shares.items()}, names), total.size)
            # Of two survivors the masks have cancelled; of a survivor and a lost party one side is left.
            total = total + pad if b in kept and a != b else total - pad
        return Reduced(unpacked(total, second.values[0]["form"], len(kept)), second.senders.positions)
