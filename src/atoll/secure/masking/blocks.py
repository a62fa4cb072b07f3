"""The party's half of a masked sum for a cohort that runs in blocks: the stream of a pair that is here is made once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core import message as M
from atoll.core.algebra.aggregate import Aggregate, Sum
from atoll.core.algebra.tree import Tree
from atoll.core.requests.task import Batch

from ..keystream import add_between, derived
from ..words import form_of
from ..words.blocks import CodedBlock
from .agreement import Agreement
from .excess import add_parts
from .party import leave, masks_of, pair_of, prepare_agreement

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.core.requests.cohort import Cohort, TotalsBlock
    from atoll.core.requests.island import Island

__all__ = ["least_of", "masked_many"]

_MOST = 1 << 29
"""Bytes of words that are masked together."""


def masked_many(cohort: Cohort, message: Tree, written_in: str) -> Iterator[Batch]:
    """`masked` for a cohort in blocks, whose parties have dealt in a task of the name ``written_in``."""
    if message is not None:
        yield from _unmasked_many(cohort, Agreement.of(message))
        return
    waiting, nbytes = list[_MaskedBlock](), 0
    for block in cohort.totals(least_of(cohort)):
        waiting.append(_MaskedBlock.of(cohort, block, written_in))
        nbytes += sum(words.nbytes for words in waiting[-1].coded.lanes.values())
        if nbytes > _MOST:
            yield from _together(waiting)
            waiting, nbytes = [], 0
    yield from _together(waiting)


def least_of(cohort: Cohort) -> int | None:
    """The least number of parties in a sum by the agreements that the parties of a cohort hold; ``None`` if one holds none."""
    states = (cohort.state(i) for i in range(len(cohort)))
    found = [int(state["agreed"]["least"]) if state and "agreed" in state else 0 for state in states]
    return min(found, default=0) or None


@dataclass
class _MaskedBlock:
    """The words of a block of parties, before they are masked.

    Attributes:
        coded: the words.
        islands: the parties that have words.
        letters: what each of them has opened.
        agreed: the agreement.
    """

    coded: CodedBlock
    islands: list[Island]
    letters: list[dict[str, Any]]
    agreed: Agreement

    @classmethod
    def of(cls, cohort: Cohort, block: TotalsBlock, written_in: str) -> _MaskedBlock:
        """Encode the totals of a block."""
        islands = [cohort.island(i) for i in block.positions.tolist()]
        ready = [prepare_agreement(island, written_in) for island in islands]
        agreed = ready[0][0]
        coded = CodedBlock.of(block, agreed.layout, [island.name for island in islands])
        kept = [islands[i] for i in coded.good]
        for i, island in enumerate(kept):
            add_parts(island, coded.layout, {lane: words[i] for lane, words in coded.lanes.items()})
        return cls(coded, kept, [ready[i][1] for i in coded.good], agreed)


def _together(blocks: list[_MaskedBlock]) -> Iterator[Batch]:
    """Mask the words of parties that run in one process: the stream of a pair that is here is made once, added at one end and subtracted at the other."""
    rows = [(block, i) for block in blocks for i in range(len(block.islands))]
    here = {block.islands[i].name: at for at, (block, i) in enumerate(rows)}
    contexts = [block.agreed.context(block.islands[i].asked, block.coded.layout.fingerprint) for block, i in rows]
    seeds = list[tuple[bytes, int | None, int | None]]()
    for at, (block, i) in enumerate(rows):
        island, agreed = block.islands[i], block.agreed
        me = agreed.place(island.name)
        elsewhere = {}
        for name, letter in block.letters[i].items():
            other = here.get(name)
            if other is None or other == at or contexts[other] != contexts[at]:
                elsewhere[name] = letter
            elif agreed.place(name) > me and agreed.place(name) in agreed.graph[me]:
                seeds.append((pair_of(island, name, letter, contexts[at]), at, other))
        mine = masks_of(island, agreed, elsewhere, contexts[at])
        seeds += [(seed, None, at) if subtract else (seed, at, None) for seed, subtract in mine]
    for lane in blocks[0].coded.lanes if blocks else ():
        words = [block.coded.lanes[lane][i].view(np.ndarray) for block, i in rows]
        add_between(words, ((derived(seed, f"lane {lane}"), plus, minus) for seed, plus, minus in seeds))
    for block in blocks:
        for island, letters in zip(block.islands, block.letters, strict=True):
            leave(island, letters, block.coded.layout)
        reply: dict[str, Aggregate] = {lane: Sum(words) for lane, words in block.coded.lanes.items()}
        yield Batch(block.coded.positions, reply, errors=block.coded.errors)


def _unmasked_many(cohort: Cohort, agreed: Agreement) -> Iterator[Batch]:
    """The words themselves, for a simulation with virtual masks."""
    for block in cohort.totals(agreed.least):
        encoded = M.encode(form_of(block.totals, block=True))
        made, form = CodedBlock.under(agreed.known_layout(encoded), block), np.frombuffer(encoded, dtype=np.uint8)
        states = {"form": np.broadcast_to(form, (len(made.good), len(form)))}
        reply: dict[str, Aggregate] = {lane: Sum(words) for lane, words in made.lanes.items()}
        yield Batch(made.positions, reply, states, errors=made.errors)
