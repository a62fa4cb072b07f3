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

    from .block import Block, TrainedBlock
    from .pool import CohortSums
    from .update import Update

__all__ = ["Accumulator", "hand_over", "in_rows", "merge", "over", "rejections", "summands"]

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

    def joined(*leaves: Any) -> Any:
        return leaves[0] if len(leaves) == 1 else np.concatenate(leaves)[order]

    totals = {}
    for name, first in pieces[0][1].items():
        each = [found[name] for _, found in pieces]
        value = T.map(joined, *(total.value for total in each))
        totals[name] = replace(first, value=value, weight=joined(*(total.weight for total in each)))
    return at[order], totals


def merge(totals: Totals, more: Totals) -> None:
    """Add totals to those of the cohort."""
    totals |= merge_totals([totals, more])


# Weighted sums of a block's replies without ever writing single replies to memory.


class Accumulator:
    """Adds up the replies of blocks of one shape; clients with non-finite replies are left out."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.sums: list[Tensor] = []
        self._added: list[tuple[NDArray[np.int64], list[Tensor]]] = []

    @torch.no_grad()
    def add(
        self, positions: NDArray[np.int64], trained: TrainedBlock, sent: list[Tensor], private: list[Tensor]
    ) -> None:
        """Add a block.

        Args:
            positions: of its clients in the cohort; any further slots are empty.
            trained: the block after its last step.
            sent: leaves of the broadcast.
            private: leaves of the private states.
        """
        update, count = self.block.update, len(positions)
        if count not in self.block.valid:
            valid = torch.arange(update.clients or 1, device=update.network.device) < count
            self.block.valid[count] = valid if update.clients else valid[0]
        rest = [*trained.local, *sent, *private, trained.examples, trained.steps, trained.losses]
        if not self.sums:
            self.sums = [torch.zeros_like(leaf) for leaf in self._templates(rest)]
        inputs = [*self.sums, *rest, self.block.valid[count]]
        owned = set(range(len(self.sums)))
        made = list(self.block.program(("sum", len(self.sums)), self._function(len(self.sums)), inputs, owned)(inputs))
        place = 2 + len(update.kinds)
        # New states may share memory with buffers of the block, which the next block overwrites.
        made[place:] = [leaf.clone() for leaf in made[place:]]
        self._added.append((positions, [trained.steps, *made]))

    def hand_over(self, made: CohortSums) -> None:
        """Put the sums, and the results of each client, into the cohort's."""
        at = np.concatenate([positions for positions, _ in self._added])
        columns = [self._column(i) for i in range(len(self._added[0][1]))]
        hand_over(
            made, self.block.update, at, columns, [leaf.detach().contiguous().cpu().numpy() for leaf in self.sums]
        )

    def _column(self, i: int) -> NDArray[Any]:
        """Return one result over all blocks, one row per client."""
        clients = self.block.update.clients
        if clients:
            made = torch.cat([leaves[i][: len(positions)] for positions, leaves in self._added])
        else:
            made = torch.stack([leaves[i] for _, leaves in self._added])
        array: NDArray[Any] = made.detach().contiguous().cpu().numpy()
        return array

    def _templates(self, rest: list[Tensor]) -> list[Tensor]:
        """Return tensors shaped like the sums, inferred from one reply; the block caches them."""
        if self.block.templates is None:
            update = self.block.update
            made = update.finish(*rest[:-1])
            assert update.reply is not None  # noqa: S101
            values = [fields["value"] for fields in update.reply.build(made[: update.reply.count]).values()]
            leaves = [leaf for value in values for leaf in T.leaves(value)]
            self.block.templates = [leaf[0] if update.clients else leaf for leaf in leaves]
        return self.block.templates

    def _function(self, count: int) -> Any:
        """``sums, local, broadcast, client, examples, steps, losses, valid -> flags, losses, weights, states``; it adds in place."""
        update = self.block.update

        def call(*flat: Tensor) -> list[Tensor]:
            sums, rest = list(flat[:count]), flat[count:]
            *inputs, losses, valid = rest
            made = update.finish(*inputs)
            assert update.reply is not None  # noqa: S101
            flags = [torch.isfinite(losses), *update.finite(made[: update.reply.count])]
            keep = torch.stack(flags).all(0) & valid
            terms, weights = summands(update, made, losses)
            for total, term in zip(sums, terms, strict=True):
                term = torch.where(over(keep, term), term, torch.zeros_like(term))
                total.add_(term.sum(0) if update.clients else term)
            return [torch.stack(flags, -1), losses, *weights, *made[update.reply.count :]]

        return call
