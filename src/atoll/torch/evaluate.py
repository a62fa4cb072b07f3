"""Evaluation: sums of metrics over a data set, or over each of many clients' data at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from atoll.core.errors import ConfigError, DataError, nearest
from atoll.learn.local.own_loss import LABELLED

from .blocks.pool import Pool, columns_of, pool_of
from .blocks.source import RowSource
from .losses import means_of_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .network import FunctionalModule

__all__ = [
    "LINKS",
    "doubts_of_scale",
    "elements",
    "evaluate",
    "evaluate_many",
    "layer_of",
    "profile",
    "profile_many",
    "pullback",
    "run_over",
    "scale_of_outputs",
    "score",
]

Tensor = torch.Tensor
_ROWS = 2048
_CLIENTS = 512


def evaluate(network: FunctionalModule, params: Mapping[str, NDArray[Any]], data: Any) -> dict[str, float]:
    """Evaluate in evaluation mode (no dropout, running statistics).

    Args:
        network: model and loss.
        params: parameters, and travelling buffers, by name.
        data: columns ``x`` and ``y``, and further columns that the loss asks for.

    Returns:
        Sums over the examples: ``n``, ``loss_sum``; for classes and signs ``correct``; for values ``squared_error`` and
        ``absolute_error`` (each averaged over the entries of a target). A mean over the examples is ``sum / n``. If
        labels are missing (a column ``labelled``), an example counts as the share of its labels that exist, and its
        values are means over those. A loss that needs what exists only in training is replaced by the plain loss of the
        data's task.
    """
    pool = RowSource([data], 1).pool(np.zeros(1, np.int64), network, network.measured)
    return {name: float(values[0]) for name, values in _segments(network, params, pool).items()}


def evaluate_many(
    network: FunctionalModule, params: Mapping[str, NDArray[Any]], shards: Any, count: int
) -> dict[str, NDArray[np.float64]]:
    """Evaluate one model on many clients' data, in large batches across clients.

    Args:
        network: model and loss.
        params: as in `evaluate`.
        shards: one for each client, or `atoll.torch.blocks.source.Rows`.
        count: clients.

    Returns:
        The sums of `evaluate` for each client, each ``(clients,)``.
    """
    source = RowSource(shards, count)
    parts: list[dict[str, NDArray[np.float64]]] = []
    for begin in range(0, count, _CLIENTS):
        positions = np.arange(begin, min(begin + _CLIENTS, count))
        parts.append(_segments(network, params, source.pool(positions, network, network.measured)))
        if len(positions) > 1 and network.measured_changes:  # what a pass leaves would reach the next client
            parts[-1:] = [
                _segments(network, params, source.pool(np.array([i]), network, network.measured)) for i in positions
            ]
    names = max(parts, key=len, default={"n": np.zeros(0)})
    return {
        name: np.concatenate([part.get(name, np.zeros(len(part["n"]))) for part in parts] or [np.zeros(0)])
        for name in names
    }


def score(network: FunctionalModule, params: Mapping[str, NDArray[Any]], x: NDArray[Any]) -> NDArray[Any]:
    """Return the model's outputs in evaluation mode, one row for each input."""
    pool = _inputs_alone(network, x)
    with torch.no_grad(), network.measuring():
        made = [outputs.cpu() for _, outputs in run_over(network, params, pool)]
    return np.asarray(torch.cat(made).numpy()) if made else np.zeros((0,))


LINKS = {
    "cross_entropy": "softmax", "CrossEntropyLoss": "softmax", "bce": "softmax", "binary_cross_entropy_with_logits": "softmax", "BCEWithLogitsLoss": "softmax",
    "nll": "log", "nll_loss": "log", "NLLLoss": "log", "mse": "value", "mse_loss": "value", "MSELoss": "value", "l1": "value", "l1_loss": "value",
    "L1Loss": "value", "multiclass_hinge": "",
}  # fmt: skip
"""Losses, by Atoll's and PyTorch's names -> what scores are."""
_LOG_ODDS = ("binary_cross_entropy_with_logits", "BCEWithLogitsLoss")


_DRAWS = (1.0, -3.0, 5.0, -1.0)
_FEW = 8  # rows
_NOISE = 1 << 20  # entries of a parameter that gets noise, besides


def scale_of_outputs(network: FunctionalModule, x: NDArray[Any]) -> str:
    """Return what a model's outputs are with any weights, found with a few: what its last layer makes of them.

    Args:
        network: the model.
        x: rows, of which a few are taken.

    Returns:
        ``"probabilities"``: from 0 to 1, and of several classes with the sum 1; ``"fractions"``: from 0 to 1, with other sums; ``"log"``: logarithms of
        probabilities of several classes; ``"numbers"``: anything else; ``""``: not known.
    """
    rows = _inputs_alone(network, np.asarray(x)[:_FEW]).x
    generator, made = torch.Generator().manual_seed(0), list[Tensor]()
    if not len(rows):
        return ""
    try:
        with torch.no_grad(), network.measuring():
            own = dict(network.evaluation.named_parameters())
            for scale in _DRAWS:
                moved = {
                    name: p * scale + (torch.randn(p.shape, generator=generator).to(p) if p.numel() <= _NOISE else 0.0)
                    for name, p in own.items()
                    if name in network.names
                }
                rest = {**own, **dict(network.evaluation.named_buffers())}
                outputs = network.outputs(moved, rest, rows, training=False)
                made.append(outputs.reshape(len(rows), -1).double())
    except Exception:  # the user's own code, with weights that it may not have been made for
        return ""
    found = torch.cat(made)
    found = found[found.isfinite().all(1)]
    several = found.shape[1] > 1
    if not len(found) or not found.any():
        return ""
    if bool(((found >= 0) & (found <= 1)).all()):
        return "probabilities" if not several or _adds_up(found) else "fractions"
    return "log" if several and bool((found <= 0).all()) and _adds_up(found.exp()) else "numbers"


def doubts_of_scale(network: FunctionalModule, scale: str) -> list[str]:
    """Return what the result says of outputs that the loss takes for something else.

    Args:
        network: model and loss.
        scale: the result of `scale_of_outputs`.

    Raises:
        DataError: the loss takes log-odds or margins, and gets probabilities: every one of them would mean the second class.
    """
    loss, bounded, found = network.measured, scale in ("probabilities", "fractions"), list[str]()
    if bounded and (loss.task == "signs" or loss.name in _LOG_ODDS):
        raise DataError(
            f"the outputs of {network.title} are between 0 and 1, whatever its weights, and the loss {loss.name!r} takes log-odds or margins, which are below 0 for the first class",
            where="Training.model",
            remedy="leave out the model's last sigmoid or softmax, or give a loss of probabilities, such as lambda output, target: F.binary_cross_entropy(output.reshape(target.shape), target.float())",
        )
    if bounded and LINKS.get(loss.name) == "softmax":
        found.append(
            f"The outputs of {network.title} are between 0 and 1, whatever its weights, and the loss {loss.name!r} takes the softmax of them: no class ever gets a "
            "probability near 1. Leave out the model's last softmax or sigmoid."
        )
    if scale not in ("log", "") and LINKS.get(loss.name) == "log":
        found.append(
            f"The outputs of {network.title} are no log-probabilities, which the loss {loss.name!r} takes: it has no least value, and the model no probabilities. "
            "End the model with nn.LogSoftmax(1), or use loss='cross_entropy'."
        )
    return found


def _adds_up(shares: Tensor) -> bool:
    return bool((shares.sum(1) - 1).abs().max() < 1e-3)


def pullback(
    network: FunctionalModule, params: Mapping[str, NDArray[Any]], x: NDArray[Any], slope: NDArray[Any]
) -> dict[str, NDArray[Any]]:
    """Return the gradient of ``sum(slope * scores)`` by the parameters, in evaluation mode; ``slope`` has one row for each input."""
    pool = _inputs_alone(network, x)
    given = network.tensors(params)
    leaves = {name: value.requires_grad_() for name, value in given.items() if value.is_floating_point()}
    with network.measuring():
        outputs = network.outputs(leaves, _freeze_rest(network, given), pool.x, training=False)
    weight = torch.as_tensor(np.asarray(slope)).to(outputs)
    found = torch.autograd.grad((outputs * weight).sum(), list(leaves.values()), allow_unused=True)
    pairs = zip(leaves.items(), found, strict=True)
    return {
        name: np.asarray((torch.zeros_like(leaf) if grad is None else grad).detach().cpu().numpy())
        for (name, leaf), grad in pairs
    }


def _inputs_alone(network: FunctionalModule, x: NDArray[Any]) -> Pool:
    x = np.asarray(x)
    columns = {"x": x, "y": np.zeros(len(x), np.int64)}
    return pool_of(columns, np.array([0, len(x)], np.int64), network.device, network.dtype)


def run_over(
    network: FunctionalModule, params: Mapping[str, NDArray[Any]], pool: Pool
) -> Iterator[tuple[slice, Tensor]]:
    """Run the model over a pool, some rows at a time."""
    given = network.tensors(params)
    fixed = _freeze_rest(network, given)
    for begin in range(0, len(pool.x), _ROWS):
        rows = slice(begin, begin + _ROWS)
        yield rows, network.outputs(given, fixed, pool.x[rows], training=False)


def _freeze_rest(network: FunctionalModule, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what is not given of a model that is evaluated: counters, other buffers (copies, which a pass may change), and parameters that are not trained."""
    buffers = {n: given[n] if n in given else b.clone() for n, b in network.evaluation.named_buffers()}
    return {**{n: p for n, p in network.evaluation.named_parameters() if not p.requires_grad}, **buffers}


def _segments(
    network: FunctionalModule, params: Mapping[str, NDArray[Any]], pool: Pool
) -> dict[str, NDArray[np.float64]]:
    """Return sums over each client's rows of a pool."""
    sums: dict[str, NDArray[np.float64]] = {
        "n": pool.sizes.astype(np.float64),
        "loss_sum": np.zeros(len(pool.sizes)),
    }
    owner = np.repeat(np.arange(len(pool.sizes)), pool.sizes)
    if len(owner):
        network.measured.check(network.settle(pool, "evaluation"), pool.labels, "evaluation")
        network.measured.check_holes(pool.columns, "evaluation")
    if LABELLED in pool.columns:
        sums["n"] = np.zeros(len(pool.sizes))
    with torch.no_grad(), network.measuring():
        for rows, outputs in run_over(network, params, pool):
            for name, values in _metrics(network, outputs, {n: c[rows] for n, c in pool.columns.items()}):
                total = sums.setdefault(name, np.zeros(len(pool.sizes)))
                total += np.bincount(owner[rows], values.double().cpu().numpy(), minlength=len(total))
    return sums


def _metrics(network: FunctionalModule, outputs: Tensor, columns: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield ``(name, one value for each example)``, each times the share of the example's labels that exist."""
    losses, share = network.row_losses(outputs, columns)
    there = columns[LABELLED] != 0 if share is not None else None

    def count_values(values: Tensor) -> Tensor:
        found = means_of_rows(values, there)
        return found if share is None else found * share

    yield "loss_sum", losses if share is None else losses * share
    if share is not None:
        yield "n", share
    for name, values in _hits(network.measured.task, outputs, columns["y"]):
        yield name, count_values(values)


def _hits(task: str, outputs: Tensor, targets: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield ``(name, a value for each entry of the targets)``."""
    if not task and _one_score(outputs, targets):
        return  # the score at which a callable's second class begins is unknown
    if task == "classes" or (not task and _looks_like_classes(outputs, targets)):
        yield "correct", (outputs.argmax(1) == targets).to(outputs.dtype)
    elif task == "signs":
        scores = outputs.reshape(targets.shape)
        yield "correct", ((scores > 0) == (targets > 0)).to(outputs.dtype)
    elif task == "values" or outputs.numel() == targets.numel():
        error = outputs.reshape(targets.shape) - targets.to(outputs.dtype)
        yield "squared_error", error**2
        yield "absolute_error", error.abs()


def _looks_like_classes(outputs: Tensor, targets: Tensor) -> bool:
    return not targets.is_floating_point() and outputs.dim() == targets.dim() + 1


def _one_score(outputs: Tensor, targets: Tensor) -> bool:
    return not targets.is_floating_point() and outputs.numel() == targets.numel()


# Representation profiles: mean and variance of a hidden layer's elements over a client's rows, by a forward hook on an ordinary module.
#
# W. Wu, "Towards Efficient Horizontal Federated Learning", 2021, section 5.3. What an element is depends on the layer:
#
# =====================================  ============================================================================
# ================ layer                                  element
#              ``q`` =====================================
#              ============================================================================  ================
# ``Linear``                             pre-activation of a neuron; over sequences, its sum over the positions
# neurons convolution                            sum of a channel over space
#     channels ``LSTM``, ``GRU``, ``RNN``             sum of a layer's final hidden state, over both directions if there
#     are two    layers
# any other, output of 2 dimensions      an entry of the output
# entries any other, 4 or more dimensions        sum of a channel over space (after a residual block: post-activation)
#     channels =====================================
#     ============================================================================  ================
#
# Sums of many elements tend to a Gaussian, so mean and variance describe them well (propositions 5.1 and 5.2). The model
# runs in evaluation mode: no dropout, running statistics. Means and variances (divided by ``n``) come from one pass in
# float64, chunks merged by the formula of Chan, Golub and LeVeque 1979, and travel as float32: ``8 q`` bytes.


Profile = dict[str, "NDArray[np.float32]"]
_CONVOLUTIONS = (nn.modules.conv._ConvNd,)
_RECURRENT = (nn.RNNBase,)
_WHERE = "report 'profile'"


def profile(network: FunctionalModule, params: Mapping[str, NDArray[Any]], data: Any, layer: str = "auto") -> Profile:
    """Profile a model on some rows.

    Args:
        network: the model.
        params: parameters, and travelling buffers, by name.
        data: columns ``x`` and ``y``.
        layer: name of a module as in ``named_modules()``; ``"auto"`` is the first fully connected one in that order.

    Returns:
        ``mean`` and ``var``, float32, ``(q,)``; zeros if there are no rows.

    Raises:
        ConfigError: no such layer, or its output has no elements in the sense above.
    """
    columns = columns_of(data)
    offsets = np.array([0, len(columns["x"])], dtype=np.int64)
    pool = pool_of(columns, offsets, network.device, network.dtype)
    return {name: values[0] for name, values in _moments(network, params, pool, layer).items()}


def profile_many(
    network: FunctionalModule, params: Mapping[str, NDArray[Any]], shards: Any, count: int, layer: str = "auto"
) -> tuple[Profile, NDArray[np.int64]]:
    """Profile one model on each of many clients' rows, in large batches across clients.

    Args:
        network: the model.
        params: as in `profile`.
        shards: one for each client, or `atoll.torch.blocks.source.Rows`.
        count: clients.
        layer: as in `profile`.

    Returns:
        ``mean`` and ``var``, float32, ``(clients, q)``, and the clients' numbers of rows.
    """
    source = RowSource(shards, count)
    made: list[Profile] = []
    sizes: list[NDArray[np.int64]] = []
    for begin in range(0, count, _CLIENTS):
        pool = source.pool(np.arange(begin, min(begin + _CLIENTS, count)), network, network.measured)
        made.append(_moments(network, params, pool, layer))
        if len(pool.sizes) > 1 and network.measured_changes:  # as above
            alone = (source.pool(np.array([begin + i]), network, network.measured) for i in range(len(pool.sizes)))
            made[-1:] = [_moments(network, params, one, layer) for one in alone]
        sizes.append(pool.sizes)
    return {name: np.concatenate([part[name] for part in made]) for name in ("mean", "var")}, np.concatenate(sizes)


def layer_of(module: nn.Module, layer: str) -> nn.Module:
    """Return the layer of a name.

    Raises:
        ConfigError: there is none.
    """
    named: dict[str, nn.Module] = dict(module.named_modules())
    if layer == "auto":
        found = next((part for part in named.values() if isinstance(part, nn.Linear)), None)
        if found is None:
            raise ConfigError(
                f"{type(module).__name__} has no fully connected layer",
                where=_WHERE,
                remedy=f"name a layer: one of {', '.join(name for name in named if name)}",
            )
        return found
    if not isinstance(layer, str) or not layer or layer not in named:
        raise ConfigError(
            f"{type(module).__name__} has no layer {layer!r}.{nearest(str(layer), named)}",
            where=_WHERE,
            remedy=f"use 'auto' or one of {', '.join(name for name in named if name)}",
        )
    return named[layer]


def elements(part: nn.Module, output: Any) -> Tensor:
    """Return a layer's output as elements, ``(rows, q)``; see the module's table.

    Raises:
        ConfigError: an output without such elements.
    """
    if isinstance(part, _RECURRENT):
        state = output[1][0] if isinstance(output[1], tuple) else output[1]
        ends: Tensor = state.reshape(part.num_layers, -1, *state.shape[1:]).sum(dim=(1, 3))
        return ends.transpose(0, 1)
    if isinstance(output, Tensor):
        if isinstance(part, nn.Linear) and output.dim() >= 2:
            return output.flatten(1, -2).sum(1) if output.dim() > 2 else output
        if output.dim() == 2:
            return output
        if output.dim() >= 4 or (output.dim() == 3 and isinstance(part, _CONVOLUTIONS)):
            return output.flatten(2).sum(2)
    shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
    raise ConfigError(
        f"a {type(part).__name__} with output {shape} has no elements to profile",
        where=_WHERE,
        remedy="name a fully connected, convolutional or recurrent layer, or a block of images",
    )


def _run_layer(
    network: FunctionalModule, params: Mapping[str, NDArray[Any]], pool: Pool, layer: str
) -> Iterator[tuple[slice, Any]]:
    """Run the model over a pool; yield ``(rows, elements as float64)``."""
    part = layer_of(network.evaluation, layer)
    with network.measuring():
        yield from _run_hooked(network, params, pool, layer, part)


def _run_hooked(
    network: FunctionalModule, params: Mapping[str, NDArray[Any]], pool: Pool, layer: str, part: nn.Module
) -> Iterator[tuple[slice, Any]]:
    outputs: list[Any] = []
    handle = part.register_forward_hook(lambda module, given, output: outputs.append(output))
    try:
        for rows, _ in run_over(network, params, pool):
            if len(outputs) != 1:
                raise ConfigError(
                    f"layer {layer!r} runs {len(outputs)} times in the model's forward pass",
                    where=_WHERE,
                    remedy="name a layer that runs once",
                )
            found = elements(part, outputs.pop())
            if len(found) != len(pool.x[rows]):
                raise ConfigError(
                    f"layer {layer!r} gives {len(found)} rows for {len(pool.x[rows])} examples",
                    where=_WHERE,
                    remedy="name a layer whose output has the examples first",
                )
            yield rows, found.double().cpu().numpy()
    finally:
        handle.remove()


@torch.no_grad()
def _moments(network: FunctionalModule, params: Mapping[str, NDArray[Any]], pool: Pool, layer: str) -> Profile:
    """Return mean and variance over each client's rows of a pool, ``(clients, q)``."""
    clients = len(pool.sizes)
    if not len(pool.x):
        blank = pool.x.new_zeros((1, *pool.x.shape[1:]))
        columns = {"x": blank, "y": pool.y.new_zeros((1, *pool.y.shape[1:]))}
        one = Pool(columns, np.zeros(1), np.array([0, 1]))
        (width,) = [found.shape[1] for _, found in _run_layer(network, params, one, layer)]
        return {name: np.zeros((clients, width), np.float32) for name in ("mean", "var")}
    owner = np.repeat(np.arange(clients), pool.sizes)
    count = np.zeros((clients, 1))
    mean = square = np.zeros((clients, 0))
    for rows, found in _run_layer(network, params, pool, layer):
        if not mean.size:
            mean, square = (np.zeros((clients, found.shape[1])) for _ in range(2))
        here, begins, sizes = np.unique(owner[rows], return_index=True, return_counts=True)
        more = sizes[:, None].astype(np.float64)
        own = np.add.reduceat(found, begins, axis=0) / more
        spread = np.add.reduceat((found - np.repeat(own, sizes, axis=0)) ** 2, begins, axis=0)
        apart, before = own - mean[here], count[here]
        count[here] = before + more
        mean[here] += apart * more / count[here]
        square[here] += spread + apart**2 * before * more / count[here]
    with np.errstate(over="ignore"):  # an overflow is not finite: it is rejected and named when replies are added up
        return {"mean": mean.astype(np.float32), "var": (square / np.maximum(count, 1.0)).astype(np.float32)}
