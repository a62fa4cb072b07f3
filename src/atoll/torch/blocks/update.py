"""The local update of an algorithm as functions of flat tensors: start, a few steps, finish, and finish-and-add.

Each is written for one client; ``clients`` turns it into one for a block with a leading client axis (``vmap``). These
functions are traced and compiled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.func import vmap

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.errors import CompositionError
from atoll.learn.algorithm import LocalWork
from atoll.learn.local.update import drew_undeclared, finish_update, start_update

from ..client import without_buffers
from ..examples.choose import clipped_sum, form_of
from ..examples.sums import Examples, gradient_of
from ..leaves import Layout, ReplyKind, flatten, split_reply, to_tensor
from ..network import ExampleWay
from ..tracing.keyed import Bounded

if TYPE_CHECKING:
    from atoll.learn.algorithm import Algorithm
    from atoll.learn.local.examples import Clipping

    from ..network import FunctionalModule

__all__ = ["StepForm", "Update"]

Tensor = torch.Tensor


@dataclass(frozen=True)
class StepForm:
    """The shape of a program of local steps.

    Attributes:
        unroll: steps in one call.
        weighted: whether batches are padded and rows carry weights.
        masked: whether some clients skip some steps.
        noisy: whether steps get noise of the clients' secrets.
    """

    unroll: int
    weighted: bool = False
    masked: bool = False
    noisy: bool = False


class _Oracle:
    """``grad(params)`` and related functions, for tracing; it keeps the first loss.

    Args:
        mode: keys the random numbers of the step.
        examples: the mini-batch, example by example.
        noise: noise of the client's secret, one row for each draw of this step; ``None`` for none.
    """

    def __init__(self, mode: Bounded, examples: Examples, noise: Tensor | None = None) -> None:
        self.mode = mode
        self.examples = examples
        self.noise = noise
        self.drawn = 0
        self.seen: list[Tensor] = []
        self.chosen: Any = None

    @property
    def first(self) -> Tensor | None:
        """The first loss of the step."""
        return self.seen[0] if self.seen else None

    def loss_at(self, params: Tree) -> Tensor:
        own = self.examples
        with self.mode:
            made: Tensor = own.network.batch_loss(
                params, own.frozen, own.columns, own.weights, own.broadcast, self.mode, self.chosen
            )
        return made

    def on(self, loss: Any = None, **given: Tree) -> _Oracle:
        own = replace(self.examples, broadcast={**self.examples.broadcast, **given})
        made = _Oracle(self.mode, own, self.noise)
        made.drawn, made.seen, made.chosen = self.drawn, self.seen, self.chosen if loss is None else loss
        return made

    def read(self, loss: Any, params: Tree) -> Any:
        own = self.examples
        with self.mode:
            made = own.network.reading(params, own.frozen, own.columns, own.weights, own.broadcast, self.mode, loss)
        return T.map(lambda leaf: leaf.detach(), made)

    def __call__(self, params: Tree) -> Tree:
        gradient, loss = gradient_of(self.loss_at, params)
        self.seen.append(loss.detach())
        return gradient

    def loss(self, params: Tree) -> Tensor:
        loss = self.loss_at(params).detach()
        self.seen.append(loss)
        return loss

    def hvp(self, params: Tree, vector: Tree) -> Tree:
        def along(at: Tree) -> Tensor:
            found: Tensor = T.dot(gradient_of(self.loss_at, at, again=True)[0], vector)
            return found

        return gradient_of(along, params)[0]

    def hvps(self, params: Tree, vectors: Tree) -> Tree:
        return vmap(lambda vector: self.hvp(params, vector))(vectors)

    def clipped(self, params: Tree, clipping: Clipping) -> Tree:
        network = self.examples.network
        way = network.ways.get(form_of(self.examples.columns), ExampleWay(None))
        made, losses = clipped_sum(self.examples, params, clipping, way)
        weights = self.examples.weights
        counts = torch.ones_like(losses) if weights is None else weights.to(losses.dtype)
        self.seen.append((losses * counts).sum() / counts.sum().clamp(min=1.0))
        return made

    def normal(self, params: Tree) -> Tree:
        if self.noise is None or self.drawn >= len(self.noise):
            raise drew_undeclared()
        flat, self.drawn = self.noise[self.drawn], self.drawn + 1
        made, at = list[Tensor](), 0
        for leaf in T.leaves(params):
            made.append(flat[at : at + leaf.numel()].reshape(leaf.shape))
            at += leaf.numel()
        return T.rebuild(params, made)


class Update:
    """An algorithm on a network, for one structure of broadcast and client state.

    Args:
        network: model and loss.
        algorithm: pure functions over trees.
        broadcast: structure of what the server sends.
        client: structure of the private state.
        clients: clients in a block; 0 is one client without a client axis.
        columns: names of the columns of a mini-batch.
    """

    def __init__(
        self,
        network: FunctionalModule,
        algorithm: Algorithm,
        broadcast: Layout,
        client: Layout,
        clients: int,
        columns: tuple[str, ...] = ("x", "y"),
    ) -> None:
        self.network = network
        self.algorithm = algorithm
        self.broadcast = broadcast
        self.client = client
        self.clients = clients
        self.columns = columns
        self.frozen_names = list(network.frozen)
        self.local: Layout | None = None
        self.reply: Layout | None = None
        self.kinds: dict[str, ReplyKind] = {}
        self.state: Layout | None = None

    def _each(self, fn: Callable[..., Any], in_dims: tuple[Any, ...]) -> Callable[..., Any]:
        """Return the function over a block of clients, or itself for one client."""
        return vmap(fn, in_dims=in_dims) if self.clients else fn

    def _tensors(self, leaves: Sequence[Any]) -> list[Tensor]:
        return _tensors(leaves, self.network.device, self.network.dtype)

    @property
    def first_column(self) -> int:
        """Return the number of a step's inputs between the local state and the columns."""
        return self.broadcast.count + len(self.frozen_names)

    def alone(self) -> Update:
        """Return the update of one client without a client axis."""
        if not self.clients:
            return self
        made = Update(self.network, self.algorithm, self.broadcast, self.client, 0, self.columns)
        made.local = self.local
        return made

    def start(self, *flat: Tensor) -> list[Tensor]:
        """``broadcast, client -> local``."""
        n = self.broadcast.count

        def one(sent: list[Tensor], private: list[Tensor]) -> list[Tensor]:
            local = start_update(self.algorithm, self.broadcast.build(sent), self.client.build(private))
            leaves, self.local = flatten(local)
            return self._tensors(leaves)

        # If a block's start depends on nothing private, no input is batched: the client axis is added here.
        sent, private = list(flat[:n]), list(flat[n:])
        if self.clients and not private:
            return [leaf.expand(self.clients, *leaf.shape) for leaf in one(sent, private)]
        made: list[Tensor] = self._each(one, (None, 0))(sent, private)
        return made

    def steps(self, form: StepForm) -> Callable[..., list[Tensor]]:
        """``local, broadcast, frozen, columns, [weights], [active], [noise], seeds -> local, sum of losses``."""
        assert self.local is not None  # noqa: S101 - set by tracing `start`
        counts = (self.local.count, self.broadcast.count, len(self.frozen_names))

        def one(
            local: list[Tensor], sent: list[Tensor], fixed: list[Tensor], data: list[Tensor], seeds: Tensor
        ) -> list[Tensor]:
            frozen = dict(zip(self.frozen_names, fixed, strict=True))
            broadcast = self.broadcast.build(sent)
            losses: list[Tensor] = []
            for s in range(form.unroll):
                batch = [column[s] for column in data]
                noise = batch.pop() if form.noisy else None
                columns = dict(zip(self.columns, batch, strict=False))
                weights = batch[len(columns)] if form.weighted else None
                active = batch[-1] if form.masked else None
                local, loss = self._step(local, broadcast, frozen, columns, weights, seeds[s], active, noise)
                losses.append(loss)
            return [*local, functools.reduce(torch.add, losses)]

        def call(*flat: Tensor) -> list[Tensor]:
            a, b, c = counts
            local, sent, fixed = list(flat[:a]), list(flat[a : a + b]), list(flat[a + b : a + b + c])
            *data, seeds = flat[a + b + c :]
            made: list[Tensor] = self._each(one, (0, None, None, 0, 0))(local, sent, fixed, data, seeds)
            return made

        return call

    def _step(
        self,
        local: list[Tensor],
        broadcast: Tree,
        frozen: dict[str, Tensor],
        columns: dict[str, Tensor],
        weights: Tensor | None,
        seed: Tensor,
        active: Tensor | None,
        noise: Tensor | None = None,
    ) -> tuple[list[Tensor], Tensor]:
        mode = Bounded(seed, strict=True, fused=not self.clients)

        grad = _Oracle(mode, Examples(self.network, frozen, columns, weights, broadcast, seed), noise)
        assert self.local is not None  # noqa: S101
        after, layout = flatten(self.algorithm.step(self.local.build(local), grad, broadcast))
        if layout.key != self.local.key:
            raise CompositionError(
                f"{type(self.algorithm).__name__}.step returns another structure than start",
                remedy="return a local state with the same keys from start and from every step",
            )
        self.network.looks_up = self.network.looks_up or mode.looked
        after = self._tensors(after)
        loss = grad.first if grad.first is not None else torch.zeros((), dtype=self.network.dtype, device=seed.device)
        if active is not None:
            pairs = zip(after, local, strict=True)  # a leaf that no step changes needs no choice
            after = [old if new is old else torch.where(active, new, old) for new, old in pairs]
            loss = torch.where(active, loss, torch.zeros_like(loss))
        return after, loss

    def finish(self, *flat: Tensor) -> list[Tensor]:
        """``local, broadcast, client, examples, steps -> reply leaves, state leaves``."""
        assert self.local is not None  # noqa: S101
        counts = (self.local.count, self.broadcast.count, self.client.count)

        def one(
            local: list[Tensor], sent: list[Tensor], private: list[Tensor], examples: Tensor, steps: Tensor
        ) -> list[Tensor]:
            assert self.local is not None  # noqa: S101
            work = LocalWork(examples, steps)
            ends = (self.local.build(local), self.broadcast.build(sent), self.client.build(private), work)
            reply, state = finish_update(self.algorithm, *ends)
            tree, self.kinds = split_reply(reply)
            leaves, self.reply = flatten(tree)
            kept, self.state = flatten(state)
            return self._tensors([*leaves, *kept])

        a, b, c = counts
        parts = (list(flat[:a]), list(flat[a : a + b]), list(flat[a + b : a + b + c]), flat[-2], flat[-1])
        made: list[Tensor] = self._each(one, (0, None, 0, 0, 0))(*parts)
        return made

    def finite(self, leaves: Sequence[Tensor]) -> list[Tensor]:
        """Return for each aggregate of the reply whether it is finite, one flag for each client."""
        assert self.reply is not None  # noqa: S101
        flags: list[Tensor] = []
        for fields in self.reply.build(list(leaves)).values():
            # A sum is finite only if every term is (barring overflow, which is no valid result either).
            sums = [self._total(leaf) for leaf in T.leaves(fields) if isinstance(leaf, torch.Tensor)]
            total: Any = sum(s for s in sums if s.is_floating_point())
            flags.append(torch.isfinite(total))
        return flags

    def _total(self, leaf: Tensor) -> Tensor:
        return leaf.reshape(self.clients, -1).sum(1) if self.clients else leaf.sum()


def _tensors(leaves: Sequence[Any], device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    """Turn plain numbers among the leaves into tensors."""

    def tensor(leaf: Any) -> Tensor:
        if isinstance(leaf, torch.Tensor):
            return leaf
        return torch.full((), leaf, device=device, dtype=torch.int64 if isinstance(leaf, int) else dtype)

    return [tensor(leaf) for leaf in leaves]


# Leaves as tensors on the device and in the form that programs need.


def sent_leaves(
    network: FunctionalModule, broadcast: Tree, *, channels_last: bool = False
) -> tuple[list[Tensor], Layout]:
    """Return the broadcast as tensors."""
    leaves, layout = flatten(without_buffers(broadcast))
    return [place(network, leaf, channels_last=channels_last) for leaf in leaves], layout


def place(network: FunctionalModule, leaf: Any, *, channels_last: bool = False) -> Tensor:
    """Return a leaf as a tensor on the model's device, filters with the channel innermost if asked."""
    tensor = to_tensor(leaf, network.device, network.dtype)
    return tensor.contiguous(memory_format=torch.channels_last) if channels_last and tensor.dim() == 4 else tensor
