"""Adding up blocks of clients: the fast path of a sum, a few array operations for a whole cohort."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from . import message as M
from . import tree as T
from .aggregate import Aggregate, Total, Totals, merge_totals
from .request import Folded, Request, not_finite
from .rng import Rng
from .states import States
from .task import Batch, Summed
from .tree import Tree

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .cohort import Cohort

__all__ = ["fold_batches"]


def fold_batches(request: Request, cohort: Cohort) -> Folded:
    """Run a task's ``sums``, or its ``many`` and add up the blocks in the order they come."""
    if request.task.sums is not None and not request.uplink:
        made = request.task.sums(cohort, request.message, **request.task.args)
        if made is not None:
            return _fold_sums(made, cohort)
    positions = cohort.positions
    folded = Folded({}, positions[:0], positions[:0])
    kept = np.zeros(len(positions), dtype=bool)
    sizes = np.zeros(len(positions), dtype=np.int64)
    order: list[NDArray[np.int64]] = []
    for batch in request.task.batches(cohort, request.message):
        keys = cohort.keys[batch.positions]
        keep = np.ones(len(batch.positions), dtype=bool)
        for place, why in batch.rejected.items():
            keep[batch.positions == place] = False
            folded.rejected[int(positions[place])] = why
        totals = _sum_finite(request, batch, keys, keep, positions, folded.rejected)
        folded.totals = merge_totals([folded.totals, totals])
        kept[batch.positions] = keep
        order.append(batch.positions[keep])
        sizes[batch.positions] = _reply_bytes(request, batch, keys)
        if batch.states is not None:
            _keep_states(folded.states, positions[batch.positions], batch.states, keep)
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


def _sum_finite(
    request: Request,
    batch: Batch,
    keys: NDArray[np.uint64],
    keep: NDArray[np.bool_],
    positions: NDArray[np.int64],
    rejected: dict[int, str],
) -> Totals:
    """Sum a block; a sum is finite only if every term is, so single clients are looked at only when it is not."""
    totals = _sum_block(request, batch, keys, keep)
    if not any(_total_not_finite(total) for total in totals.values()):
        return totals
    for i in np.flatnonzero(keep).tolist():
        for name, aggregate in batch.reply.items():
            one = T.map(lambda leaf, i=i: leaf[i], aggregate.value)
            bad = not_finite(one, np.broadcast_to(aggregate.weight, keep.shape)[i])
            if bad:
                keep[i] = False
                reason = f"{name}{'' if bad == '.' else '/' + bad} is not finite"
                rejected[int(positions[batch.positions[i]])] = reason
                break
    return _sum_block(request, batch, keys, keep)


def _total_not_finite(total: Total) -> bool:
    if total.kind == "parts":
        return any(not_finite(part.value, part.weight) for part in total.value)
    return bool(not_finite(total.value, total.weight))


def _sum_block(request: Request, batch: Batch, keys: NDArray[np.uint64], keep: NDArray[np.bool_]) -> Totals:
    chain = request.uplink
    if not keep.any():
        return {}
    mask = None if keep.all() else keep.astype(np.float64)
    totals: Totals = {}
    for name, aggregate in batch.reply.items():
        if not chain or aggregate.metric:
            totals[name] = aggregate.block_sum(mask)
        elif chain.summable and aggregate.summable and not chain.summand_stages:
            stream = np.array([Rng(int(k)).child(name).key for k in keys], dtype=np.uint64)
            totals[name] = chain.encode_block(aggregate, request.public, stream).block_sum(mask)
        else:
            totals.update(_sum_one_by_one(request, name, aggregate, keys, keep))
    return totals


def _sum_one_by_one(
    request: Request, name: str, aggregate: Aggregate, keys: NDArray[np.uint64], keep: NDArray[np.bool_]
) -> Totals:
    rows = [
        {name: request.uplink.encode(aggregate.row(i), request.public, Rng(int(keys[i])).child(name))[0]}
        for i in np.flatnonzero(keep).tolist()
    ]
    return merge_totals(rows)


def _reply_bytes(request: Request, batch: Batch, keys: NDArray[np.uint64]) -> int:
    """Encoded size of one client's reply; all of a block have the same shapes."""
    sent: dict[str, Any] = {}
    for name, aggregate in batch.reply.items():
        one = aggregate.row(0)
        wire = one.value
        if request.uplink and not aggregate.metric:
            _, wire = request.uplink.encode(one, request.public, Rng(int(keys[0])).child(name))
        sent[name] = {"kind": aggregate.kind, "value": wire, "weight": 1.0}
    return M.nbytes(sent)
