"""What clients add to the sums of a cohort, and which clients are left out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Total, Totals, merge_totals
from atoll.core.errors import CompositionError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from .pool import CohortSums
    from .update import Update

__all__ = ["hand_over", "in_rows", "merge", "over", "rejections", "summands"]

Tensor = torch.Tensor


def hand_over(
    made: CohortSums, update: Update, at: NDArray[np.int64], columns: list[NDArray[Any]], sums: list[NDArray[Any]]
) -> None:
    """Put sums, and the results of some clients, into the cohort's.

    Args:
        made: the cohort's results.
        update: knows the structures.
        at: the clients' positions.
        columns: one row for each client: steps, flags, losses, weights of the aggregates, leaves of the new states.
        sums: leaves that never change any more; with a leading client axis if ``made`` is of single clients.
    """
    assert update.state is not None  # noqa: S101 - set by tracing
    steps, flags, losses, *rest = columns
    weights, states = rest[: len(update.kinds)], rest[len(update.kinds) :]
    made.steps[at], made.losses[at] = steps, losses
    if update.state.count:
        made.states.append((at, update.state.build(states)))
    count = len(at)
    if not flags.all():
        made.rejected.update(rejections(at, list(update.kinds), flags[:, 1:].T, made.losses[at]))
        kept = flags.all(axis=1)
        weights, count = [weight[kept] for weight in weights], int(kept.sum())
        if made.rows is not None:
            sums, at = [leaf[kept] for leaf in sums], at[kept]
    if made.rows is not None:
        apart = dict(zip(update.kinds, (np.array(weight, dtype=np.float64) for weight in weights), strict=True))
        made.rows.append((at, _totals(update, sums, apart, 1)))
        return
    heavy = {name: float(weight.sum(dtype=np.float64)) for name, weight in zip(update.kinds, weights, strict=True)}
    merge(made.totals, _totals(update, sums, heavy, count))


def _totals(update: Update, sums: list[NDArray[Any]], weights: Mapping[str, Any], count: int) -> Totals:
    """Return the sums by name."""
    assert update.reply is not None  # noqa: S101
    arrays = iter(sums)
    totals: Totals = {}
    for (name, kind), fields in zip(update.kinds.items(), update.reply.skeleton.values(), strict=True):
        value = T.rebuild(fields["value"], arrays)
        totals[name] = Total(kind.aggregate.kind, value, weights[name], count, kind.role)
    return totals


def summands(update: Update, made: list[Tensor], losses: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Return what a client adds to each leaf of the sums, and the weight of each aggregate.

    Raises:
        CompositionError: the reply cannot be added up.
    """
    assert update.reply is not None  # noqa: S101 - set by tracing
    terms: list[Tensor] = []
    weights: list[Tensor] = []
    reply = update.reply.build(made[: update.reply.count])
    for fields, kind in zip(reply.values(), update.kinds.values(), strict=True):
        if not kind.aggregate.summable:
            raise CompositionError(
                f"a reply of kind {kind.aggregate.kind!r} is not summable",
                remedy="use `many`, which gives single replies",
            )
        rule = kind.aggregate.kind
        weight = fields.get("examples", torch.ones_like(losses))
        weight = torch.as_tensor(weight, device=losses.device).to(losses.dtype).expand_as(losses)
        weights.append(weight)
        for leaf in T.leaves(fields["value"]):
            term = torch.sign(leaf) if rule == "vote" else leaf
            terms.append(term * over(weight, term) if rule == "mean" else term)
    return terms, weights


def over(vector: Tensor, leaf: Tensor) -> Tensor:
    """Return a vector over clients, shaped to multiply a leaf."""
    return vector.reshape(vector.shape + (1,) * (leaf.dim() - vector.dim()))


def rejections(
    positions: NDArray[np.int64], names: list[str], flags: NDArray[Any], losses: NDArray[np.float64]
) -> dict[int, str]:
    """Return position -> what was not finite: the training loss, or an aggregate of the reply."""
    bad: dict[int, str] = {}
    if flags.all() and np.isfinite(losses).all():
        return bad
    for i, position in enumerate(positions.tolist()):
        wrong = [name for name, row in zip(names, flags, strict=True) if not row[i]]
        if not np.isfinite(losses[i]):
            wrong.insert(0, f"training loss ({losses[i]})")
        if wrong:
            bad[position] = f"{', '.join(wrong)} not finite"
    return bad


def in_rows(pieces: list[tuple[NDArray[np.int64], Totals]]) -> tuple[NDArray[np.int64], Totals]:
    """Return totals of single clients, in order of position: the positions, and totals with a leading client axis."""
    if not pieces:
        return np.zeros(0, np.int64), {}
    at = np.concatenate([positions for positions, _ in pieces])
    order = np.argsort(at, kind="stable")

    def join_leaves(*leaves: Any) -> Any:
        return leaves[0] if len(leaves) == 1 else np.concatenate(leaves)[order]

    totals = {}
    for name, first in pieces[0][1].items():
        each = [found[name] for _, found in pieces]
        value = T.map(join_leaves, *(total.value for total in each))
        totals[name] = replace(first, value=value, weight=join_leaves(*(total.weight for total in each)))
    return at[order], totals


def merge(totals: Totals, more: Totals) -> None:
    """Add totals to those of the cohort."""
    totals |= merge_totals([totals, more])
