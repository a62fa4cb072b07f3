"""Which way a model's clipped sums are computed: by norms of its layers if two trials say that they are right, otherwise by single gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from atoll.core.algebra.tree import Tree
from atoll.learn.local.examples import Clipping

from ..network import ExampleWay
from ..tracing.compiler import notice, refuse_loops
from ..tracing.keyed import Bounded
from .sums import Examples, by_norms, gradients_of, one_by_one, sum_gradients
from .tape import Tape, UntapedError

if TYPE_CHECKING:
    from ..network import FunctionalModule

__all__ = ["clipped_sum", "form_of", "way_of"]

Tensor = torch.Tensor
_ROWS = 3
_CLOSE = 1e-3


def clipped_sum(
    examples: Examples, params: dict[str, Tensor], clipping: Clipping, way: ExampleWay
) -> tuple[dict[str, Tensor], Tensor]:
    """Return ``sum_i clip(grad f_i)`` and the examples' losses."""
    if way.axes is not None:
        return by_norms(examples, params, clipping, way.axes)
    return one_by_one(examples, params, clipping, loops=way.loops)


def form_of(columns: Mapping[str, Tensor]) -> Any:
    """Return the form of a row, by which ways are kept."""
    return tuple((name, tuple(column.shape[1:])) for name, column in columns.items())


def way_of(network: FunctionalModule, columns: Mapping[str, Tensor], broadcast: Tree) -> ExampleWay:
    """Return the way for mini-batches of these columns; found once for each form of a row, on three rows of them.

    The first trial runs the model on two and on three rows. An axis whose length changes is that of the examples. The second compares the sum by norms with
    that of gradients taken one by one.
    """
    form = form_of(columns)
    if form not in network.ways and len(columns["y"]):
        network.ways[form] = _try_ways(network, columns, broadcast)
        reason = network.ways[form].reason
        if reason:
            title = network.title
            notice(f"examples:{title}:{reason}", f"{title} makes the gradient of every example: {reason}")
    return network.ways.get(form, ExampleWay(None))


def _try_ways(network: FunctionalModule, columns: Mapping[str, Tensor], broadcast: Tree) -> ExampleWay:
    count = len(columns["y"])
    rows = torch.arange(_ROWS, device=columns["y"].device) % count
    some = {name: column[rows] for name, column in columns.items()}
    params = {n: p.detach() for n, p in network.training.named_parameters() if p.requires_grad}
    frozen = {name: value.clone() for name, value in network.frozen.items()}
    seed = torch.zeros(2, dtype=torch.int64, device=columns["y"].device)
    examples = Examples(network, frozen, some, None, broadcast, seed)
    clipping = Clipping(1.0)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            axes = _axes(examples, params)
            made, _ = by_norms(examples, params, clipping, axes)
        except (UntapedError, NotImplementedError, RuntimeError) as error:
            return ExampleWay(None, not _vectorised(examples, params), str(error).splitlines()[0])
        if network.drops() or {"rng", "keys"} & set(network.loss.signature.names):
            return ExampleWay(axes)  # random numbers differ between an example alone and in a mini-batch
        wanted, _ = sum_gradients(examples, params, clipping, gradients_of(examples, params, loops=True))
        off = max(float((made[name] - wanted[name]).abs().max()) for name in params)
        wrong = off > _CLOSE * max(float(value.abs().max()) for value in wanted.values()) + 1e-12
        alone = wrong and not _vectorised(examples, params)
    if wrong:
        return ExampleWay(None, alone, "an example in a mini-batch and alone have different gradients")
    return ExampleWay(axes)


def _vectorised(examples: Examples, params: dict[str, Tensor]) -> bool:
    try:
        with refuse_loops():  # those loop over the rows anyway, slowly
            one_by_one(examples, params, Clipping(1.0))
    except Exception:
        return False
    return True


def _axes(examples: Examples, params: dict[str, Tensor]) -> tuple[int, ...]:
    """Return the axis of the examples of each use.

    Raises:
        UntapedError: no axis, or a merged one, changes its length with the number of examples.
    """
    shapes = [_shapes(examples, params, rows) for rows in (2, 3)]
    if len(shapes[0]) != len(shapes[1]):
        raise UntapedError("another number of layers for another number of examples")
    found: list[int] = []
    for two, three in zip(*shapes, strict=True):
        changed = [axis for axis, (a, b) in enumerate(zip(two, three, strict=True)) if a != b]
        if len(changed) != 1 or (two[changed[0]], three[changed[0]]) != (2, 3):
            raise UntapedError(f"a layer's input of shape {tuple(three)} has no axis of its own for the examples")
        found.append(changed[0])
    return tuple(found)


def _shapes(examples: Examples, params: dict[str, Tensor], rows: int) -> list[torch.Size]:
    columns = {name: column[:rows] for name, column in examples.columns.items()}
    mode = Bounded(examples.seed, strict=True)
    tape = Tape(params, mode, lambda tensor: tensor, 0)
    with mode, tape:
        examples.network.example_losses(params, examples.frozen, columns, examples.broadcast, mode)
    return [use.given.shape for use in tape.uses]
