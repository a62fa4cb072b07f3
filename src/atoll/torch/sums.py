"""Weighted sums of a block's replies without ever writing single replies to memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import torch
from atoll.core import tree as T
from atoll.core.aggregate import Total, Totals
from atoll.core.errors import CompositionError
from atoll.core.tree import Tree

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .block import Block, Trained

__all__ = ["Accumulator", "Added"]

Tensor = torch.Tensor


@dataclass
class Added:
    """What is known of the clients of a block once they are in the sums.

    Attributes:
        steps: local steps, one a client.
        losses: mean training loss, one a client.
        rejected: place in the block -> why a client was kept out.
        states: new private states, stacked, or ``None``.
    """

    steps: NDArray[np.int64]
    losses: NDArray[np.float64]
    rejected: dict[int, str]
    states: Tree


class Accumulator:
    """Adds up the replies of blocks of one shape; clients with non-finite replies are left out."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.sums: list[Tensor] = []
        self.weights: dict[str, float] = {}
        self.count = 0

    @torch.no_grad()
    def add(self, trained: Trained, sent: list[Tensor], private: list[Tensor], count: int) -> Added:
        """Add a block.

        Args:
            trained: the block after its last step.
            sent: leaves of the broadcast.
            private: leaves of the private states.
            count: clients in the block; the slots behind them are empty.
        """
        update = self.block.update
        clients = update.clients
        if count not in self.block.valid:
            valid = torch.arange(clients or 1, device=update.network.device) < count
            self.block.valid[count] = valid if clients else valid[0]
        valid = self.block.valid[count]
        rest = [*trained.local, *sent, *private, trained.examples, trained.steps, trained.losses, valid]
        if not self.sums:
            self.sums = [torch.zeros_like(leaf) for leaf in self._templates(rest)]
        inputs = [*self.sums, *rest]
        owned = set(range(len(self.sums)))
        made = list(self.block.program(("sum", len(self.sums)), self._function(len(self.sums)), inputs, owned)(inputs))
        assert update.state is not None  # noqa: S101 - set by tracing
        flags, losses, *more = (_rows(leaf, clients, count) for leaf in made)
        weights, states = more[: len(update.kinds)], more[len(update.kinds) :]
        kept = flags.all(axis=1)
        for (name, kind), weight in zip(update.kinds.items(), weights, strict=True):
            if not kind.aggregate.summable:
                raise CompositionError(
                    f"the reply {name!r} is not summable", remedy="use `many`, which gives single replies"
                )
            self.weights[name] = self.weights.get(name, 0.0) + float(weight[kept].sum(dtype=np.float64))
        self.count += int(kept.sum())
        return Added(
            _rows(trained.steps, clients, count).astype(np.int64),
            losses.astype(np.float64),
            self._reasons(flags, losses),
            update.state.build(states) if update.state.count else None,
        )

    def _reasons(self, flags: NDArray[np.bool_], losses: NDArray[Any]) -> dict[int, str]:
        from .cohort import rejections

        if flags.all():
            return {}
        names = list(self.block.update.kinds)
        places = np.arange(len(flags))
        return rejections(places, names, flags[:, 1:].T, losses.astype(np.float64))

    def _templates(self, rest: list[Tensor]) -> list[Tensor]:
        """Tensors shaped like the sums, from one look at the reply; the block remembers them."""
        if self.block.templates is None:
            update = self.block.update
            made = update.finish(*rest[:-2])
            assert update.reply is not None  # noqa: S101
            values = [fields["value"] for fields in update.reply.build(made[: update.reply.count]).values()]
            leaves = [leaf for value in values for leaf in T.leaves(value)]
            self.block.templates = [leaf[0] if update.clients else leaf for leaf in leaves]
        return self.block.templates

    def _function(self, count: int) -> Any:
        """``sums, local, broadcast, client, examples, steps, losses, valid -> flags, losses, weights, states``; adds in place."""
        update = self.block.update

        def call(*flat: Tensor) -> list[Tensor]:
            sums, rest = list(flat[:count]), flat[count:]
            *inputs, losses, valid = rest
            made = update.finish(*inputs)
            assert update.reply is not None  # noqa: S101
            flags = [torch.isfinite(losses), *update.finite(made[: update.reply.count])]
            keep = torch.stack(flags).all(0) & valid
            weights: list[Tensor] = []
            place = 0
            for fields, kind in zip(
                update.reply.build(made[: update.reply.count]).values(), update.kinds.values(), strict=True
            ):
                rule = kind.aggregate.kind
                weight = fields.get("examples", torch.ones_like(losses))
                weight = torch.as_tensor(weight, device=losses.device).to(losses.dtype).expand_as(losses)
                weights.append(weight)
                for leaf in T.leaves(fields["value"]):
                    term = torch.sign(leaf) if rule == "vote" else leaf
                    if rule == "mean":
                        term = term * _over(weight, term)
                    term = torch.where(_over(keep, term), term, torch.zeros_like(term))
                    sums[place].add_(term.sum(0) if update.clients else term)
                    place += 1
            return [torch.stack(flags, -1), losses, *weights, *made[update.reply.count :]]

        return call

    def totals(self) -> Totals:
        """The sums so far, as NumPy."""
        update = self.block.update
        assert update.reply is not None  # noqa: S101
        arrays = iter([leaf.detach().contiguous().cpu().numpy().copy() for leaf in self.sums])
        totals: Totals = {}
        for (name, kind), fields in zip(update.kinds.items(), update.reply.skeleton.values(), strict=True):
            value = T.rebuild(fields["value"], arrays)
            totals[name] = Total(kind.aggregate.kind, value, self.weights[name], self.count, kind.metric)
        return totals


def _over(vector: Tensor, leaf: Tensor) -> Tensor:
    """A number a client, shaped to multiply a leaf."""
    return vector.reshape(vector.shape + (1,) * (leaf.dim() - vector.dim()))


def _rows(tensor: Tensor, clients: int, count: int) -> NDArray[Any]:
    made: NDArray[Any] = (tensor[:count] if clients else tensor.unsqueeze(0)).detach().contiguous().cpu().numpy()
    return made.copy()
