"""The local update of one client, step by step: slow, readable, and the reference for every faster path."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate
from atoll.core.algebra.tree import Tree
from atoll.core.errors import DataError
from atoll.learn.algorithm import LocalWork
from atoll.learn.local.update import (
    batch_rows,
    drew_undeclared,
    finish_update,
    labelled_batches,
    quota,
    share_of,
    start_update,
    step_secrets,
)

from .blocks.schedule import labelled_rows
from .buffers import require_unwritten
from .examples.choose import clipped_sum, way_of
from .examples.sums import Examples
from .leaves import flatten, join_reply, split_reply, to_tensor
from .network import Held
from .own_state import seed_generators
from .tracing.keyed import Bounded, step_seeds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from atoll.core.algebra.rng import Rng
    from atoll.learn.algorithm import Algorithm
    from atoll.learn.local.examples import Clipping, StepSecrets

    from .network import FunctionalModule

__all__ = ["ReferenceUpdate", "as_arrays", "as_tensors", "train_one"]

Tensor = torch.Tensor


@dataclass
class ReferenceUpdate:
    """The result of one client's training.

    Attributes:
        reply: named aggregates of NumPy arrays.
        state: the client's new private state.
        losses: the mini-batch loss of every step.
        buffers: buffers, and parameters that are not trained, after the last step.
        written: those that a step wrote.
    """

    reply: dict[str, Aggregate]
    state: Tree
    losses: list[float]
    buffers: dict[str, Tensor]
    written: list[str]


def train_one(
    network: FunctionalModule,
    algorithm: Algorithm,
    columns: Mapping[str, Tensor],
    broadcast: Tree,
    client: Tree,
    key: int,
    buffers: Mapping[str, Tensor] | None = None,
    epochs: int | None = None,
    noise: Rng | None = None,
) -> ReferenceUpdate:
    """Train one client: ``start``, one ``step`` for each mini-batch, ``finish``.

    Args:
        network: model and loss.
        algorithm: pure functions over trees.
        columns: ``x``, ``y`` and further columns that the loss asks for, one row for each example.
        broadcast: what the server sent, NumPy leaves.
        client: the private state, NumPy leaves.
        key: the client's random key; it orders the batches and draws the dropout masks.
        buffers: of the model (running statistics); the model's own by default.
        epochs: epochs (or steps) in place of the algorithm's own.
        noise: a stream of the client's secret, for an algorithm that draws mini-batches and noise from it.

    Raises:
        DataError: a mini-batch is too small for the model, or an index beyond a table.
    """
    frozen = Held({name: value.clone() for name, value in {**network.frozen, **(buffers or {})}.items()})
    first = {name: (value._version, value) for name, value in frozen.items()}
    sent, private = as_tensors(broadcast, network), as_tensors(client, network)
    examples = len(columns["y"])
    secrets = step_secrets(algorithm, examples, key, noise, epochs)
    batches = batch_rows(quota(algorithm, epochs), examples, key) if secrets is None else secrets.rows
    labelled = labelled_rows(columns) if share_of(algorithm) else None
    if labelled is not None:
        batches = labelled_batches(batches, labelled, share_of(algorithm), key)
    if secrets is not None:
        way_of(network, columns, sent)
    seeds = torch.from_numpy(step_seeds(np.array([key], np.uint64), np.arange(len(batches)))[0]).to(network.device)
    # In memory of its own: a pass may write parameters in place, and neither the message nor the start of the update moves with them.
    sent = T.map(_copy_leaf, sent)
    local = T.map(_copy_leaf, start_update(algorithm, sent, private))
    losses: list[float] = []
    # All other random draws of the model and its loss come from generators with keyed seeds; the global ones are restored.
    with seed_generators(key):
        for number, rows in enumerate(batches):
            mode = Bounded(seeds[number], strict=False)
            index = torch.from_numpy(rows).to(network.device)
            batch = {name: column[index] for name, column in columns.items()}
            oracle = _Oracle(network, frozen, batch, sent, mode, secrets, guarded=noise is not None)
            try:
                local = algorithm.step(local, oracle, sent)
            except ValueError as error:
                if "more than 1 value per channel" not in str(error):
                    raise
                raise _lonely(len(rows), examples, algorithm) from error
            losses.append(oracle.losses[0] if oracle.losses else 0.0)
    work = LocalWork(float(examples), float(len(losses)))
    reply, state = finish_update(algorithm, local, sent, private, work)
    tree, kinds = split_reply(reply)
    written = [
        name for name, (version, value) in first.items() if frozen[name] is not value or value._version != version
    ]
    return ReferenceUpdate(join_reply(as_arrays(tree), kinds), as_arrays(state), losses, frozen, written)


def _copy_leaf(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, Tensor) else leaf


def _lonely(rows: int, examples: int, algorithm: Algorithm) -> DataError:
    """Return the error for normalisation of a mini-batch of one row, which has no variance."""
    size = algorithm.batch_size
    batches = f"all its {examples} rows at once" if size is None else f"its {examples} rows in mini-batches of {size}"
    other = "" if examples < 2 else "choose a batch_size that leaves no single row at any client, or None; or "
    return DataError(
        f"BatchNorm has no variance to divide by in a mini-batch of {rows} row ({batches})",
        where="the client's data",
        remedy=f"{other}give clients more rows, go on without such clients (errors='drop'), or use nn.GroupNorm",
    )


class _Oracle:
    """``grad(params)``: the gradient of the mean loss over the current mini-batch, by automatic differentiation."""

    def __init__(
        self,
        network: FunctionalModule,
        frozen: Held,
        batch: dict[str, Tensor],
        sent: Tree,
        mode: Bounded,
        secrets: StepSecrets | None = None,
        *,
        guarded: bool = False,
    ) -> None:
        self.guarded = guarded
        self.secrets = secrets
        self.network = network
        self.frozen = frozen
        self.batch = batch
        self.sent = sent
        self.mode = mode
        self.losses: list[float] = []
        self.chosen: Any = None

    def on(self, loss: Any = None, **given: Tree) -> _Oracle:
        sent = {**self.sent, **given}
        made = _Oracle(self.network, self.frozen, self.batch, sent, self.mode, self.secrets, guarded=self.guarded)
        made.losses, made.chosen = self.losses, self.chosen if loss is None else loss
        return made

    def read(self, loss: Any, params: Tree) -> Any:
        with torch.no_grad(), self.mode, self._unwritten(params):
            return self.network.reading(params, self.frozen, self.batch, None, self.sent, self.mode, loss)

    def __call__(self, params: Tree) -> Tree:
        leaves, loss = self._at(params)
        found = self._differentiate(leaves, loss, leaves.values(), allow_unused=True)
        self.losses.append(float(loss.detach()))
        return _fill_missing(leaves, found)

    def loss(self, params: Tree) -> Tensor:
        with self.mode, self._unwritten(params):
            loss = self._loss(params).detach()
        self.losses.append(float(loss))
        return loss

    def hvps(self, params: Tree, vectors: Tree) -> Tree:
        leaves, loss = self._at(params)
        slopes = self._differentiate(leaves, loss, leaves.values(), allow_unused=True, create_graph=True)
        bent = {n: g for n, g in zip(leaves, slopes, strict=True) if g is not None and g.requires_grad}
        if not bent:  # the gradient is constant
            return {name: torch.zeros_like(value) for name, value in vectors.items()}

        def turn_vector(i: int) -> Tree:
            along = [vectors[name][i] for name in bent]
            ours = leaves.values()
            return _fill_missing(
                leaves,
                self._differentiate(leaves, [*bent.values()], ours, along, retain_graph=True, allow_unused=True),
            )

        return T.map(lambda *parts: torch.stack(parts), *(turn_vector(i) for i in range(len(T.leaves(vectors)[0]))))

    def hvp(self, params: Tree, vector: Tree) -> Tree:
        leaves, loss = self._at(params)
        slopes = self._differentiate(leaves, loss, leaves.values(), allow_unused=True, create_graph=True)
        with torch.enable_grad():
            along = sum((g * vector[n]).sum() for n, g in zip(leaves, slopes, strict=True) if g is not None)
        if not isinstance(along, Tensor) or not along.requires_grad:  # the gradient is constant
            return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
        return _fill_missing(leaves, self._differentiate(leaves, along, leaves.values(), allow_unused=True))

    def _differentiate(self, leaves: Tree, value: Any, by: Iterable[Tensor], *along: Any, **options: Any) -> Any:
        """Differentiate with the leaves in the model, which backward hooks may read."""
        if not self.network.looks_back:
            return torch.autograd.grad(value, [*by], *along, **options)
        return self.network.run_with(
            lambda: torch.autograd.grad(value, [*by], *along, **options), leaves, dict(self.frozen)
        )

    def clipped(self, params: Tree, clipping: Clipping) -> Tree:
        examples = Examples(self.network, dict(self.frozen), self.batch, None, self.sent, self.mode.seed)
        way = way_of(self.network, self.batch, self.sent)
        with torch.no_grad(), self._unwritten(params):
            made, losses = clipped_sum(examples, params, clipping, way)
        self.losses.append(float(losses.mean()) if len(losses) else 0.0)
        return made

    def normal(self, params: Tree) -> Tree:
        if self.secrets is None:
            raise drew_undeclared()
        flat = torch.from_numpy(self.secrets.normal(self.network.size))
        flat = flat.to(device=self.network.device, dtype=self.network.dtype)
        leaves = T.leaves(params)
        parts = zip(torch.split(flat, [leaf.numel() for leaf in leaves]), leaves, strict=True)
        return T.rebuild(params, [part.reshape(leaf.shape) for part, leaf in parts])

    def _at(self, params: Tree) -> tuple[dict[str, Tensor], Tensor]:
        leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
        with torch.enable_grad(), self.mode, self._unwritten(leaves):
            return leaves, self._loss(leaves)

    @contextmanager
    def _unwritten(self, params: Mapping[str, Tensor]) -> Iterator[None]:
        """Refuse passes that write parameters, where a mechanism noises gradients alone: a write may follow a flag, and so not be in the first step."""
        before = {name: value.detach().clone() for name, value in params.items()} if self.guarded else {}
        yield
        now = {name: params[name].detach() for name in before}
        changed = [n for n, value in before.items() if not bool(value.isclose(now[n], 0, 0, equal_nan=True).all())]
        require_unwritten(changed, self.network.title)

    def _loss(self, params: Tree) -> Tensor:
        return self.network.batch_loss(params, self.frozen, self.batch, None, self.sent, self.mode, self.chosen)


def _fill_missing(leaves: dict[str, Tensor], found: Any) -> Tree:
    pairs = zip(leaves.items(), found, strict=True)
    return {name: torch.zeros_like(leaf) if g is None else g.detach() for (name, leaf), g in pairs}


def as_tensors(tree: Tree, network: FunctionalModule) -> Tree:
    """Return the same tree with tensors for numbers."""
    leaves, layout = flatten(tree)
    return layout.build([to_tensor(leaf, network.device, network.dtype) for leaf in leaves])


def as_arrays(tree: Tree) -> Tree:
    """Return the same tree with NumPy arrays for tensors, in their own memory; a scalar weight becomes a float."""

    def convert(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        array = leaf.detach().contiguous().cpu().numpy()
        return float(array) if array.ndim == 0 else array.copy()

    return T.map(convert, tree)
