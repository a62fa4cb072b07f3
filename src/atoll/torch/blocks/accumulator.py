"""Weighted sums of a block's replies without ever writing single replies to memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from atoll.core.algebra import tree as T

from .sums import hand_over, over, summands

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .block import Block, TrainedBlock
    from .results import CohortSums

__all__ = ["Accumulator"]

Tensor = torch.Tensor


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
