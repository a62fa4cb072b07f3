"""Adding up blocks of clients: the fast path of a sum, a few array operations for a whole cohort."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from . import message as M
from . import tree as T
from .aggregate import Aggregate, Total, Totals, kept_apart, merge_totals
from .chain import SentBlock
from .request import Folded, Request, not_finite, not_finite_total
from .rng import Rng
from .shelf import Shelf
from .states import States
from .task import Batch, Summed
from .tree import Tree

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .cohort import Cohort

__all__ = ["fold_batches"]


def fold_batches(request: Request, cohort: Cohort, remembered: Shelf | None = None) -> Folded:
    """Run a task's ``sums``, or its ``many`` and add up the blocks in the order they come.

    Args:
        request: what to do.
        cohort: who does it.
        remembered: what their uplink stages remember.
    """
    if request.task.sums is not None and not request.uplink and not request.apart:
        made = request.task.sums(cohort, request.message, **request.task.args)
        if made is not None:
            return _fold_sums(made, cohort)
    positions = cohort.positions
    folded = Folded({}, positions[:0], positions[:0])
    kept = np.zeros(len(positions), dtype=bool)
    sizes = np.zeros(len(positions), dtype=np.int64)
    order: list[NDArray[np.int64]] = []
    for batch in request.task.batches(cohort, request.message):
        folded.errors.update({int(positions[place]): error for place, error in batch.errors.items()})
        block = _Block(request, batch, positions[batch.positions], cohort.keys[batch.positions])
        for place, why in batch.rejected.items():
            block.keep[batch.positions == place] = False
            folded.rejected[int(positions[place])] = why
        folded.totals = merge_totals([folded.totals, block.fold(remembered or Shelf(), folded.rejected)])
        kept[batch.positions] = block.keep
        order.append(batch.positions[block.keep])
        sizes[batch.positions] = block.nbytes
        if batch.states is not None:
            _keep_states(folded.states, block.positions, batch.states, block.keep)
        if batch.singles:
            of_kept = batch.positions[block.keep].tolist()
            folded.states.singles.update({int(positions[place]): batch.singles[place] for place in of_kept})
        block.leave(folded.memories)
    folded.totals = {name: _cohort_order(total, order) for name, total in folded.totals.items()}
    folded.senders = positions[kept]
    folded.nbytes = sizes[kept]
    return folded


def _cohort_order(total: Total, order: list[NDArray[np.int64]]) -> Total:
    """Put single replies into cohort order: blocks may come in any."""
    if total.kind != "parts" or len(total.value) != sum(map(len, order)):
        return total
    return replace(total, value=[total.value[i] for i in np.argsort(np.concatenate(order), kind="stable")])


def _fold_sums(made: Summed, cohort: Cohort) -> Folded:
    """The task has added up by itself: only the bookkeeping is left."""
    positions = cohort.positions
    senders = positions[made.kept]
    rejected = {int(positions[place]): why for place, why in made.rejected.items()}
    states = States()
    out = np.array(list(made.rejected), dtype=np.int64)
    for places, stacked in made.states:
        _keep_states(states, positions[places], stacked, ~np.isin(places, out))
    nbytes = np.full(len(senders), made.reply_bytes, dtype=np.int64)
    return Folded(made.totals, senders, nbytes, rejected, {}, states)


def _keep_states(states: States, positions: NDArray[np.int64], stacked: Tree, keep: NDArray[np.bool_]) -> None:
    """Keep a block's states without those of clients that were kept out."""
    if keep.all():
        states.add_block(positions, stacked)
    else:
        states.add_block(positions[keep], T.map(lambda leaf: None if leaf is None else leaf[keep], stacked))


@dataclass
class _Block:
    """A block of clients on its way into the sums.

    Attributes:
        request: what they answer.
        batch: their replies.
        positions: who they are.
        keys: their random keys.
        keep: whose replies are in.
        nbytes: encoded size of each reply.
        memory: what the uplink's stages remember, stacked.
        others: what they remember of aggregates that are not in these replies, client by client, where it is not stacked.
        singles: place -> all that they remember, for replies that go through one by one.
    """

    request: Request
    batch: Batch
    positions: NDArray[np.int64]
    keys: NDArray[np.uint64]
    keep: NDArray[np.bool_] = field(init=False)
    nbytes: NDArray[np.int64] = field(init=False)
    memory: dict[str, Tree] = field(default_factory=dict)
    others: list[dict[str, Tree]] = field(default_factory=list)
    singles: dict[int, Tree] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.keep = np.ones(len(self.positions), dtype=bool)

    def fold(self, remembered: Shelf, rejected: dict[int, str]) -> Totals:
        """The sums of those that are kept; a sum is finite only if every term is, so single clients are looked at only when it is not."""
        chain = self.request.uplink
        if chain and not all(_finite(a.value) for a in self.batch.reply.values()):
            self._reject(self.batch.reply, rejected, "is not finite")  # a stage might make a number of what is none
        if not chain or not chain.summand_stages:
            blocks = self._through(remembered)
            self.nbytes = self._sizes({name: b.aggregate.with_value(b.wire) for name, b in blocks.items()})
            coded = {name: block.aggregate for name, block in blocks.items()}
            totals = self._sum(coded)
            if any(self._unfit(coded[name], total) for name, total in totals.items()):
                self._reject(coded, rejected, "is not finite once encoded" if chain else "is not finite")
                totals = self._sum(coded)
            return totals
        return self._one_by_one(remembered, rejected)

    def _through(self, remembered: Shelf) -> dict[str, SentBlock]:
        """The replies through the uplink's value stages."""
        chain, found = self.request.uplink, {}
        before = self._remembered(remembered) if chain.remembers else {}
        for name, aggregate in self.batch.reply.items():
            if chain and not aggregate.metric:
                streams = np.array([Rng(int(k)).child(name).key for k in self.keys], dtype=np.uint64)
                whole = aggregate if self.keep.all() else aggregate.with_value(_without(aggregate.value, ~self.keep))
                found[name] = chain.send_block(whole, self.request.public, streams, before.get(name, {}))
                if found[name].memory:
                    self.memory[name] = found[name].memory
            else:
                found[name] = SentBlock(aggregate, aggregate.value, {})
        self.memory.update({name: kept for name, kept in before.items() if name not in self.batch.reply})
        return found

    def _remembered(self, shelf: Shelf) -> dict[str, dict[str, Tree]]:
        """What the stages remember of these clients, stacked."""
        fresh = self.request.uplink.fresh({name: a.row(0) for name, a in self.batch.reply.items()})
        if not fresh:
            return {}
        stacked = shelf.gather(self.positions, fresh)
        if stacked is None:  # of different forms: only what is known of these aggregates has one
            known = [shelf.get(p) or {} for p in self.positions.tolist()]
            self.others = [{k: v for k, v in row.items() if k not in self.batch.reply} for row in known]
            rows = [{**fresh, **{k: v for k, v in row.items() if k in fresh}} for row in known]
            return T.map(lambda *leaves: np.stack(leaves), *rows)  # type: ignore[no-any-return]
        first = {name: value for name, value in fresh.items() if name not in stacked}
        count = len(self.positions)
        return {**T.map(lambda leaf: None if leaf is None else np.stack([leaf] * count), first), **stacked}

    def leave(self, memories: States) -> None:
        """Hand over what is to be remembered of the clients that are kept."""
        if self.memory and not any(self.others):
            _keep_states(memories, self.positions, self.memory, self.keep)
            return
        rows = T.unstacked(self.memory, len(self.positions))
        for i in np.flatnonzero(self.keep).tolist():
            now = {**self.others[i], **rows[i]} if self.memory else dict(self.singles.get(i, {}))
            if now:
                memories.singles[int(self.positions[i])] = now

    def _sum(self, reply: dict[str, Aggregate]) -> Totals:
        if not self.keep.any():
            return {}
        if self.request.apart:
            return {name: self._apart(aggregate) for name, aggregate in reply.items()}
        mask = None if self.keep.all() else self.keep.astype(np.float64)
        return {name: aggregate.block_sum(mask, self.positions) for name, aggregate in reply.items()}

    def _unfit(self, aggregate: Aggregate, total: Total) -> bool:
        """Whether a sum, or one of the single replies in its place, is not finite."""
        if total.kind == "parts" and not self.request.apart:  # the block is the replies, and is looked at in one
            return bool(not_finite(aggregate.value, aggregate.weight))
        return bool(not_finite_total(total))

    def _apart(self, aggregate: Aggregate) -> Total:
        """Every reply by itself."""
        rows = [
            kept_apart(aggregate.row(i).total(), int(self.positions[i])) for i in np.flatnonzero(self.keep).tolist()
        ]
        weight = float(sum(row.weight for row in rows))
        return Total("parts", [row.value[0] for row in rows], weight, len(rows), aggregate.metric)

    def _reject(self, reply: dict[str, Aggregate], rejected: dict[int, str], why: str) -> None:
        """Keep out the clients of whose reply something is not finite."""
        for i in np.flatnonzero(self.keep).tolist():
            for name, aggregate in reply.items():
                one = aggregate.row(i)
                bad = not_finite(one.value, one.weight)
                if bad:
                    self.keep[i] = False
                    rejected[int(self.positions[i])] = f"{name}{'' if bad == '.' else '/' + bad} {why}"
                    break

    def _one_by_one(self, remembered: Shelf, rejected: dict[int, str]) -> Totals:
        """Stages that act on summands see one reply after another."""
        from .memory import Memory

        request, parts = self.request, list[Totals]()
        self.nbytes = np.zeros(len(self.positions), dtype=np.int64)
        for i in np.flatnonzero(self.keep).tolist():
            reply = {name: aggregate.row(i) for name, aggregate in self.batch.reply.items()}
            memory, part, wires = Memory(remembered, int(self.positions[i])), Totals(), dict[str, Any]()
            memory.begin(request, reply)
            for name, aggregate in reply.items():
                stream = Rng(int(self.keys[i])).child(name)
                sent = request.uplink.send(aggregate, request.public, stream, memory.of(name))
                memory.keep(name, sent.memory)
                total = kept_apart(sent.total, int(self.positions[i])) if request.apart else sent.total
                part[name], wires[name] = total, _wire(aggregate, sent.wire)
            bad = next((f"{k}/{bad}" for k, t in part.items() if (bad := not_finite_total(t))), None)
            if bad is not None:
                self.keep[i] = False
                rejected[int(self.positions[i])] = f"{bad} is not finite once encoded"
                continue
            self.nbytes[i] = M.nbytes(wires)
            self.singles[i] = memory.now
            parts.append(part)
        return merge_totals(parts)

    def _sizes(self, sent: dict[str, Aggregate]) -> NDArray[np.int64]:
        """Encoded size of every reply: all of a block have the same shapes, but for stages whose encodings are of any length."""
        count = len(self.positions)
        ragged = any(isinstance(leaf, T.Ragged) for a in sent.values() for leaf in T.leaves(a.value))
        rows = [
            M.nbytes({name: _wire(aggregate, aggregate.row(i).value) for name, aggregate in sent.items()})
            for i in range(count if ragged else min(count, 1))
        ]
        return np.array(rows, dtype=np.int64) if ragged else np.full(count, rows[0] if rows else 0, dtype=np.int64)


def _wire(aggregate: Aggregate, wire: Tree) -> dict[str, Any]:
    return {"kind": aggregate.kind, "value": wire, "weight": 1.0}


def _finite(value: Tree) -> bool:
    """Whether the sum of every leaf is finite: then every entry is, but for sums that are too large, which cost a second look."""
    return all(np.isfinite(float(leaf.sum())) for leaf in T.leaves(value) if getattr(leaf, "ndim", 0))


def _without(value: Tree, out: NDArray[np.bool_]) -> Tree:
    """The same block with zeros for some clients."""

    def blank(leaf: Any) -> Any:
        if isinstance(leaf, np.ndarray):
            return np.where(out.reshape(-1, *[1] * (leaf.ndim - 1)), np.zeros((), leaf.dtype), leaf)
        copied = leaf.clone()
        copied[T.namespace(leaf).as_tensor(np.flatnonzero(out), device=leaf.device)] = 0
        return copied

    return T.map(blank, value)
