"""Adding up blocks of clients: the fast path of a sum, a few array operations for a whole cohort."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import message as M
from ..algebra import tree as T
from ..algebra.aggregate import Aggregate, Total, Totals, kept_apart, merge_totals
from ..algebra.rng import child_keys
from ..algebra.tree import Tree
from ..persistence.state_table import StateTable
from ..persistence.states import States
from ..requests.chain import SentBlock
from ..requests.context import seeds_for
from ..requests.request import PartialSum, Request
from ..requests.task import Batch, Summed
from .admission import not_finite, not_finite_total, oversize, refused, unfit
from .memory import StageMemory
from .summands import measured

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from ..requests.cohort import Cohort
    from .spending import UplinkSpending

__all__ = ["ReplyBlock", "fold_batches"]


def fold_batches(
    request: Request,
    cohort: Cohort,
    spending: UplinkSpending,
    remembered: StateTable | None = None,
    limits: NDArray[np.int64] | None = None,
    batches: Iterable[Batch] | None = None,
) -> PartialSum:
    """Run a task's ``sums``, or run its ``many`` and add up the blocks in order of arrival.

    Args:
        request: the request.
        cohort: the cohort.
        spending: collects what the stages release.
        remembered: the memory of the parties' uplink stages.
        limits: maximum size of each reply on the wire, ``(cohort,)``; ``None`` sets no limit.
        batches: the replies, if they are made already.
    """
    whole = batches is None and limits is None and not request.uplink and not request.apart
    if request.task.sums is not None and whole:
        made = request.task.sums(cohort, request.message, **request.task.args)
        if made is not None:
            if request.task.schema is not None:
                request.task.schema.require_totals(made.totals)
            return _fold_sums(request, made, cohort)
    positions = cohort.positions
    folded = PartialSum({}, positions[:0], positions[:0])
    kept = np.zeros(len(positions), dtype=bool)
    sizes = np.zeros(len(positions), dtype=np.int64)
    encoded = np.zeros(len(positions), dtype=np.int64)
    order: list[NDArray[np.int64]] = []
    left, memories = States(), States()
    for batch in request.task.batches(cohort, request.message) if batches is None else batches:
        folded.errors.update({int(positions[place]): error for place, error in batch.errors.items()})
        most = None if limits is None else limits[batch.positions]
        block = ReplyBlock(request, batch, positions[batch.positions], cohort.keys[batch.positions], most)
        block.leave_out(batch, positions, folded.rejected)
        folded.totals = merge_totals([folded.totals, block.fold(remembered or StateTable(), folded.rejected)])
        encoded[batch.positions[block.encoded]] = len(block.reply)
        kept[batch.positions] = block.keep
        order.append(batch.positions[block.keep])
        sizes[batch.positions] = block.nbytes
        if batch.states is not None:
            _keep_states(left, block.positions, batch.states, block.keep)
        if batch.singles:
            of_kept = batch.positions[block.keep].tolist()
            left.singles.update({int(positions[place]): batch.singles[place] for place in of_kept})
        block.leave(memories)
    for values in np.unique(encoded).tolist():
        spending.add(positions[encoded == values].tolist(), values)
    spending.write()
    folded.left = {slot: states for slot, states in {request.slot: left, request.memory: memories}.items() if states}
    folded.totals = {name: _cohort_order(total, order) for name, total in folded.totals.items()}
    folded.senders = positions[kept]
    folded.nbytes = sizes[kept]
    return folded


def _cohort_order(total: Total, order: list[NDArray[np.int64]]) -> Total:
    """Put single replies into cohort order: blocks may arrive in any order."""
    if total.kind != "parts" or len(total.value) != sum(map(len, order)):
        return total
    return replace(total, value=[total.value[i] for i in np.argsort(np.concatenate(order), kind="stable")])


def _fold_sums(request: Request, made: Summed, cohort: Cohort) -> PartialSum:
    """Do the bookkeeping for a task that has added up by itself."""
    positions = cohort.positions
    senders = positions[made.kept]
    rejected = {int(positions[place]): why for place, why in made.rejected.items()}
    states = States()
    out = np.array(list(made.rejected), dtype=np.int64)
    for places, stacked in made.states:
        _keep_states(states, positions[places], stacked, ~np.isin(places, out))
    nbytes = np.full(len(senders), made.reply_bytes, dtype=np.int64)
    return PartialSum(made.totals, senders, nbytes, rejected=rejected, left={request.slot: states} if states else {})


def _keep_states(states: States, positions: NDArray[np.int64], stacked: Tree, keep: NDArray[np.bool_]) -> None:
    """Keep a block's states, without those of clients that were kept out."""
    if keep.all():
        states.add_block(positions, stacked)
    else:
        states.add_block(positions[keep], T.map(lambda leaf: None if leaf is None else leaf[keep], stacked))


@dataclass
class ReplyBlock:
    """A block of clients while it is added to the sums.

    Attributes:
        request: the request that they answer.
        batch: their replies.
        positions: positions of the clients.
        keys: their random keys.
        limits: maximum size of each reply.
        keep: which replies are in.
        reply: the part of the replies that may leave.
        encoded: which replies went through the stages.
        nbytes: encoded size of each reply.
        memory: memory of the uplink's stages, stacked.
        others: their memory of aggregates that are not in these replies, client by client, if it is not stacked.
        singles: maps a place to all memory of its client, for replies that go through one by one.
    """

    request: Request
    batch: Batch
    positions: NDArray[np.int64]
    keys: NDArray[np.uint64]
    limits: NDArray[np.int64] | None
    keep: NDArray[np.bool_] = field(init=False)
    reply: dict[str, Aggregate] = field(init=False)
    encoded: NDArray[np.bool_] = field(init=False)
    nbytes: NDArray[np.int64] = field(init=False)
    memory: dict[str, Tree] = field(default_factory=dict)
    others: list[dict[str, Tree]] = field(default_factory=list)
    singles: dict[int, Tree] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.request.task.schema is not None and len(self.positions):
            self.request.task.schema.require_block(self.batch.reply)
        self.keep = np.ones(len(self.positions), dtype=bool)
        self.reply = dict(self.request.uplink.leaving(self.batch.reply))
        self.encoded = self.keep

    def leave_out(self, batch: Batch, cohort: NDArray[np.int64], rejected: dict[int, str]) -> None:
        """Keep out the clients that the task rejects."""
        for place, why in batch.rejected.items():
            self.keep[batch.positions == place] = False
            rejected[int(cohort[place])] = why

    def totals(self, remembered: StateTable, rejected: dict[int, str]) -> Totals:
        """What each client that is kept adds to the sums: totals with a leading axis of these clients."""
        self._look(rejected)
        chain = self.request.uplink
        if chain and chain.summand_stages:
            return _stacked(self._each(remembered, rejected))
        coded = {name: block.aggregate for name, block in self._through(remembered).items()}
        totals = {name: aggregate.block_totals() for name, aggregate in coded.items()}
        if not all(_finite(total.value) and np.isfinite(total.weight).all() for total in totals.values()):
            self._reject(coded, rejected, encoded=bool(chain))
        return totals if self.keep.all() else {name: _kept(total, self.keep) for name, total in totals.items()}

    def _look(self, rejected: dict[int, str]) -> None:
        """Keep out non-finite replies before they are encoded: a stage might turn them into finite numbers."""
        if self.request.uplink and not all(_finite(a.value) for a in self.reply.values()):
            self._reject(self.reply, rejected)
        self.encoded = self.keep.copy()

    def fold(self, remembered: StateTable, rejected: dict[int, str]) -> Totals:
        """The sums of the clients that are kept. A sum is finite only if all terms are, so single clients are checked only if it is not."""
        chain = self.request.uplink
        self._look(rejected)
        if not chain or not chain.summand_stages:
            blocks = self._through(remembered)
            self.nbytes = self._sizes({name: b.aggregate.with_value(b.wire) for name, b in blocks.items()})
            self._bound(rejected)
            coded = {name: block.aggregate for name, block in blocks.items()}
            totals = self._sum(coded)
            if any(self._unfit(coded[name], total) for name, total in totals.items()):
                self._reject(coded, rejected, encoded=bool(chain))
                totals = self._sum(coded)
            return totals
        return merge_totals(self._each(remembered, rejected))

    def _through(self, remembered: StateTable) -> dict[str, SentBlock]:
        """Send the replies through the uplink's value stages."""
        chain, found = self.request.uplink, {}
        before = self._remembered(remembered) if chain.remembers else {}
        seeds = self.request.secrets(self.positions) if chain.secret else None
        for name, aggregate in self.reply.items():
            if chain and aggregate.staged:
                streams = child_keys(self.keys, name)
                whole = aggregate if self.keep.all() else aggregate.with_value(_without(aggregate.value, ~self.keep))
                own = seeds_for(seeds, name)
                found[name] = chain.send_block(whole, self.request.public, streams, before.get(name, {}), own, name)
                if found[name].memory:
                    self.memory[name] = found[name].memory
            else:
                found[name] = SentBlock(aggregate, aggregate.value, {})
        self.memory.update({name: kept for name, kept in before.items() if name not in self.reply})
        return found

    def _remembered(self, table: StateTable) -> dict[str, dict[str, Tree]]:
        """The stages' memory of these clients, stacked."""
        fresh = self.request.uplink.fresh({name: a.row(0) for name, a in self.reply.items()})
        if not fresh:
            return {}
        stacked = table.gather(self.positions, fresh)
        if stacked is None:  # the forms differ: stack only the memory of these aggregates
            known = [table.get(p) or {} for p in self.positions.tolist()]
            self.others = [{k: v for k, v in row.items() if k not in self.reply} for row in known]
            rows = [{**fresh, **{k: v for k, v in row.items() if k in fresh}} for row in known]
            return T.map(lambda *leaves: np.stack(leaves), *rows)  # type: ignore[no-any-return]
        first = {name: value for name, value in fresh.items() if name not in stacked}
        count = len(self.positions)
        return {**T.map(lambda leaf: None if leaf is None else np.stack([leaf] * count), first), **stacked}

    def leave(self, memories: States) -> None:
        """Pass on the new memory of the clients that are kept."""
        if self.memory and not any(self.others):
            _keep_states(memories, self.positions, self.memory, self.keep)
            return
        rows = T.unstacked(self.memory, len(self.positions))
        for i in np.flatnonzero(self.keep).tolist():
            now = {**self.others[i], **rows[i]} if self.memory else dict(self.singles.get(i, {}))
            if now:
                memories.singles[int(self.positions[i])] = now

    def _bound(self, rejected: dict[int, str]) -> None:
        """Keep out replies that are larger than their party allows."""
        if self.limits is None:
            return
        for i in np.flatnonzero(self.keep & (self.nbytes > self.limits)).tolist():
            error = oversize(int(self.nbytes[i]), int(self.limits[i]))
            if error is not None:
                self.keep[i] = False
                rejected[int(self.positions[i])] = refused(error)

    def _sum(self, reply: dict[str, Aggregate]) -> Totals:
        if not self.keep.any():
            return {}
        if self.request.apart:
            return {name: self._apart(aggregate) for name, aggregate in reply.items()}
        mask = None if self.keep.all() else self.keep.astype(np.float64)
        return {name: aggregate.block_sum(mask, self.positions) for name, aggregate in reply.items()}

    def _unfit(self, aggregate: Aggregate, total: Total) -> bool:
        """Whether a sum, or one of the single replies instead, is not finite."""
        if total.kind == "parts" and not self.request.apart:  # the block itself has the replies, and is checked as one
            return bool(not_finite(aggregate.value, aggregate.weight))
        return bool(not_finite_total(total))

    def _apart(self, aggregate: Aggregate) -> Total:
        """The replies, kept separate."""
        rows = [
            kept_apart(aggregate.row(i).total(), int(self.positions[i])) for i in np.flatnonzero(self.keep).tolist()
        ]
        weight = float(sum(row.weight for row in rows))
        return Total("parts", [row.value[0] for row in rows], weight, len(rows), aggregate.role)

    def _reject(self, reply: dict[str, Aggregate], rejected: dict[int, str], *, encoded: bool = False) -> None:
        """Keep out the clients whose replies have a non-finite value."""
        for i in np.flatnonzero(self.keep).tolist():
            for name, aggregate in reply.items():
                why = unfit(name, aggregate.row(i), encoded=encoded)
                if why:
                    self.keep[i] = False
                    rejected[int(self.positions[i])] = why
                    break

    def _each(self, remembered: StateTable, rejected: dict[int, str]) -> list[Totals]:
        """The totals of one client after another, as stages that act on summands see them."""
        request, parts = self.request, list[Totals]()
        self.nbytes = np.zeros(len(self.positions), dtype=np.int64)
        for i in np.flatnonzero(self.keep).tolist():
            position = int(self.positions[i])
            reply = {name: aggregate.row(i) for name, aggregate in self.reply.items()}
            memory = StageMemory(remembered, position)
            most = None if self.limits is None else int(self.limits[i])
            made = measured(request, reply, int(self.keys[i]), memory, most)
            self.nbytes[i] = made.nbytes
            if made.rejected:
                self.keep[i] = False
                rejected[position] = made.rejected
                continue
            self.singles[i] = memory.now
            parts.append(made.totals)
        return parts

    def _sizes(self, sent: dict[str, Aggregate]) -> NDArray[np.int64]:
        """Encoded size of each reply: equal shapes give equal sizes in a block, except for stages with encodings of any length."""
        count = len(self.positions)
        ragged = any(isinstance(leaf, T.Ragged) for a in sent.values() for leaf in T.leaves(a.value))
        rows = [
            M.nbytes({name: _wire(aggregate, aggregate.row(i).value) for name, aggregate in sent.items()})
            for i in range(count if ragged else min(count, 1))
        ]
        return np.array(rows, dtype=np.int64) if ragged else np.full(count, rows[0] if rows else 0, dtype=np.int64)


def _wire(aggregate: Aggregate, wire: Tree) -> dict[str, Any]:
    return {"kind": aggregate.kind, "value": wire, "weight": 1.0}


def _stacked(rows: list[Totals]) -> Totals:
    """Stack totals of single clients with a leading client axis."""
    if not rows:
        return {}
    made = {}
    for name, first in rows[0].items():
        value = T.map(lambda *leaves: T.stack(leaves), *(row[name].value for row in rows))
        made[name] = replace(first, value=value, weight=np.array([row[name].weight for row in rows]))
    return made


def _kept(total: Total, keep: NDArray[np.bool_]) -> Total:
    """Some clients of a total with a leading client axis."""
    return replace(total, value=T.map(lambda leaf: leaf[keep], total.value), weight=np.asarray(total.weight)[keep])


def _finite(value: Tree) -> bool:
    """Whether the sum of each leaf is finite: then all entries are. A sum may also overflow, so a non-finite one is checked again."""
    with np.errstate(all="ignore"):
        return all(np.isfinite(float(leaf.sum())) for leaf in T.leaves(value) if getattr(leaf, "ndim", 0))


def _without(value: Tree, out: NDArray[np.bool_]) -> Tree:
    """The same block, with zeros for some clients."""

    def blank(leaf: Any) -> Any:
        if isinstance(leaf, np.ndarray):
            return np.where(out.reshape(-1, *[1] * (leaf.ndim - 1)), np.zeros((), leaf.dtype), leaf)
        copied = leaf.clone()
        copied[T.namespace(leaf).as_tensor(np.flatnonzero(out), device=leaf.device)] = 0
        return copied

    return T.map(blank, value)
