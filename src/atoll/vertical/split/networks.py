"""Segments: the parts of a network that lie at one party each, with their optimiser. PyTorch is loaded when one is built."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra.rng import Rng
from atoll.core.errors import ConfigError
from atoll.core.extras import need, one_thread
from atoll.trees.objectives import LOGISTIC, SQUARED, TreeLoss

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Batches", "Layers", "Segment", "SegmentOptimizer", "apply_layers", "few_threads", "load_torch", "loss_of"]

_ROWS = 4096
"""Rows that pass a trained segment at once."""
_MOST_ALONE = 2e7
"""Multiplications of a step that one thread does."""


def load_torch() -> Any:
    """PyTorch.

    Raises:
        MissingExtraError: it is not installed.
    """
    return need("torch", "torch", "a split network", where="atoll.vertical.split")


@dataclass(frozen=True)
class Layers:
    """The layers of a segment: convolutions if its input is an image, then dense layers, with ReLU between any two.

    Attributes:
        inputs: numbers a row.
        widths: outputs of each dense layer.
        image: ``(channels, height, width)`` of the input; empty for columns.
        channels: output channels of each 3x3 convolution, which a 2x2 maximum follows; only for images.
        activated: whether the segment ends with ReLU, as one before a cut does.
    """

    inputs: int
    widths: tuple[int, ...]
    image: tuple[int, ...] = ()
    channels: tuple[int, ...] = ()
    activated: bool = False

    def require_image(self) -> Layers:
        """These layers, if their input is an image of this shape.

        Raises:
            ConfigError: it is not.
        """
        if math.prod(self.image) != self.inputs:
            raise ConfigError(
                f"image={list(self.image)} of {math.prod(self.image)} numbers, and a host with {self.inputs} columns",
                where="SplitNet",
                remedy="give channels, height and width of the hosts' images",
            )
        return self

    @property
    def multiplications(self) -> int:
        """How many a row takes, forwards and backwards."""
        dense = sum(a * b for a, b in itertools.pairwise((self.flat, *self.widths)))
        pixels, found = math.prod(self.image[1:]), 0
        for before, after in itertools.pairwise((*self.image[:1], *self.channels)):
            found, pixels = found + 9 * before * after * pixels, pixels // 4
        return 3 * (dense + found)

    @property
    def flat(self) -> int:
        """Inputs of the first dense layer."""
        if not self.image:
            return self.inputs
        shrunk = [size >> len(self.channels) for size in self.image[1:]]
        return math.prod(shrunk) * (self.channels[-1] if self.channels else self.image[0])

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the weights and biases, in turn."""
        made: list[tuple[int, ...]] = []
        for before, after in itertools.pairwise((*self.image[:1], *self.channels)):
            made += [(after, before, 3, 3), (after,)]
        for before, after in itertools.pairwise((self.flat, *self.widths)):
            made += [(after, before), (after,)]
        return made

    def run(self, weights: Sequence[Any], x: Any) -> Any:
        """What the layers make of rows.

        Args:
            weights: tensors of ``shapes``.
            x: ``(rows, inputs)``.
        """
        functional, pairs = load_torch().nn.functional, list(zip(weights[::2], weights[1::2], strict=True))
        if self.image:
            x = x.view(-1, *self.image)
            for weight, bias in pairs[: len(self.channels)]:
                x = functional.max_pool2d(functional.relu(functional.conv2d(x, weight, bias, padding=1)), 2)
            x = x.flatten(1)
        for k, (weight, bias) in enumerate(pairs[len(self.channels) :]):
            x = functional.linear(functional.relu(x) if k else x, weight, bias)
        return functional.relu(x) if self.activated else x

    def packed(self) -> dict[str, Any]:
        """The layers as a message."""
        sizes = {name: list(getattr(self, name)) for name in ("widths", "image", "channels")}
        return {"inputs": self.inputs, "activated": self.activated, **sizes}

    @classmethod
    def unpacked(cls, message: Mapping[str, Any]) -> Layers:
        """The inverse of `packed`."""
        sizes = {name: tuple(int(one) for one in message[name]) for name in ("widths", "image", "channels")}
        return cls(int(message["inputs"]), activated=bool(message["activated"]), **sizes)


@dataclass(frozen=True)
class SegmentOptimizer:
    """How weights move. Each weight moves by its own gradients alone, so that it does not matter at which party it lies.

    The steps are those of ``torch.optim.Adam`` (Kingma, Ba 2015, with rates .9 and .999 and ``eps`` 1e-8) and ``torch.optim.SGD``, whose modules take seconds to load.

    Attributes:
        name: ``"adam"`` or ``"sgd"``.
        rate: learning rate.
        momentum: of ``sgd``.
        decay: L2 penalty; ``decay w`` is added to the gradient of ``w``.
    """

    name: str
    rate: float
    momentum: float = 0.0
    decay: float = 0.0

    def move(self, weights: Any, gradient: Any, memory: dict[str, Any]) -> None:
        """Move ``weights`` in place; ``memory`` is that of the steps before, empty at first."""
        steps = memory["steps"] = int(memory.get("steps", 0)) + 1
        if self.decay:
            gradient = gradient.add(weights, alpha=self.decay)
        if self.name == "sgd":
            if self.momentum:
                gradient = memory["speed"] = (
                    memory["speed"].mul_(self.momentum).add_(gradient) if steps > 1 else gradient.clone()
                )
            weights.add_(gradient, alpha=-self.rate)
            return
        if steps == 1:
            memory["mean"], memory["square"] = gradient * 0, gradient * 0
        memory["mean"].lerp_(gradient, 1 - 0.9)
        memory["square"].mul_(0.999).addcmul_(gradient, gradient, value=1 - 0.999)
        scale = (memory["square"].sqrt() / math.sqrt(1 - 0.999**steps)).add_(1e-8)
        weights.addcdiv_(memory["mean"], scale, value=-self.rate / (1 - 0.9**steps))


class Segment:
    """A part of a network at one party, in training.

    Initial weights and biases are uniform in ``+-1/sqrt(fan_in)``, as PyTorch's own layers have them, drawn from ``rng`` in float64 whatever the precision.

    Args:
        layers: its layers.
        optimizer: how its weights move.
        rng: the stream of its initial weights.
        precision: of its weights.
        order: the positions of named columns in the order of their names: the first weights are drawn in it, so that they do not depend on how a table lists its columns.
    """

    def __init__(
        self,
        layers: Layers,
        optimizer: SegmentOptimizer,
        rng: Rng,
        precision: type[Any],
        order: NDArray[np.int64] | None = None,
    ) -> None:
        torch = load_torch()
        self.layers, self.optimizer, self._torch = layers, optimizer, torch
        self._memory: dict[str, Any] = {}
        sizes = [math.prod(shape) for shape in layers.shapes]
        # Weights lie in one vector, and so do gradients: a step is a few operations, however many layers there are.
        self._weights = torch.from_numpy(np.zeros(sum(sizes), precision))
        self._gradient = torch.zeros_like(self._weights)
        self.weights: list[Any] = []
        for k, (at, size, shape) in enumerate(
            zip(itertools.accumulate(sizes, initial=0), sizes, layers.shapes, strict=False)
        ):
            draw = rng.child(k).generator()
            bound = 1 / math.sqrt(max(1, math.prod(layers.shapes[k - k % 2][1:])))
            one = self._weights[at : at + size].view(shape)
            drawn = draw.uniform(-bound, bound, shape)
            if k == 0 and order is not None and not layers.image and len(order) == layers.inputs:
                drawn[:, order] = drawn.copy()
            one.copy_(torch.from_numpy(drawn))
            one.requires_grad_().grad = self._gradient[at : at + size].view(shape)
            self.weights.append(one)

    def __call__(self, x: Any) -> Any:
        """What the segment makes of rows, with what its gradient needs."""
        return self.layers.run(self.weights, x)

    def step(self) -> None:
        """Move the weights by the gradients since the last step, and forget these."""
        with self._torch.no_grad():
            self.optimizer.move(self._weights, self._gradient, self._memory)
            self._gradient.zero_()

    def packed(self) -> dict[str, Any]:
        """Layers and weights, as a trained model keeps them."""
        return {"layers": self.layers.packed(), "weights": [np.array(one.detach().numpy()) for one in self.weights]}

    def state(self) -> dict[str, Any]:
        """Weights and the optimiser's memory, for a checkpoint."""
        kept = {name: one if isinstance(one, int) else np.array(one.numpy()) for name, one in self._memory.items()}
        return {"weights": np.array(self._weights.numpy()), "memory": kept}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self._weights.copy_(self._torch.from_numpy(np.array(state["weights"])))
        self._memory = {
            name: one if isinstance(one, int) else self._torch.from_numpy(np.array(one))
            for name, one in state["memory"].items()
        }


def few_threads(multiplications: float) -> contextlib.AbstractContextManager[None]:
    """Run with one thread where a step has so few multiplications that threads cost more than they save."""
    torch = load_torch()
    return contextlib.nullcontext() if multiplications > _MOST_ALONE else one_thread(torch)


def apply_layers(packed: Mapping[str, Any], x: NDArray[Any]) -> NDArray[Any]:
    """What a trained segment makes of rows.

    Args:
        packed: of `Segment.packed`.
        x: ``(rows, inputs)``.
    """
    torch, layers = load_torch(), Layers.unpacked(packed["layers"])
    weights = [torch.from_numpy(np.array(one)) for one in packed["weights"]]
    dtype = weights[0].dtype if weights else torch.from_numpy(np.zeros(0, x.dtype)).dtype
    with torch.no_grad():
        rows = torch.from_numpy(np.array(x)).to(dtype)
        made = [layers.run(weights, rows[at : at + _ROWS]) for at in range(0, max(1, len(rows)), _ROWS)]
        return np.asarray(torch.cat(made).numpy())


@dataclass(frozen=True)
class Batches:
    """Which rows each step takes: the same at all parties, drawn anew for each epoch.

    Attributes:
        rows: training rows.
        size: rows of a step; the last one of an epoch may have fewer.
        epochs: passes over the rows.
        rng: a stream that all parties share.
    """

    rows: int
    size: int
    epochs: int
    rng: Rng

    @property
    def an_epoch(self) -> int:
        """Steps of an epoch."""
        return -(-self.rows // self.size)

    def from_step(self, done: int) -> Iterable[tuple[int, NDArray[np.int64]]]:
        """The number of each step that is left, and its rows."""
        for epoch in range(done // self.an_epoch, self.epochs):
            steps = enumerate(self.of_epoch(epoch), epoch * self.an_epoch)
            yield from itertools.islice(steps, max(0, done - epoch * self.an_epoch), None)

    def of_epoch(self, epoch: int) -> Iterable[NDArray[np.int64]]:
        """The rows of each step of an epoch."""
        order = self.rng.child("epoch", epoch).generator().permutation(self.rows)
        for k in range(self.an_epoch):
            yield order[k * self.size : (k + 1) * self.size]


def loss_of(objective: TreeLoss, margins: Any, targets: Any) -> Any:
    """The mean loss of a batch: cross-entropy of two or more classes, or half the squared error."""
    functional = load_torch().nn.functional
    if objective.name == SQUARED:
        return 0.5 * functional.mse_loss(margins[:, 0], targets)
    if objective.name == LOGISTIC:
        return functional.binary_cross_entropy_with_logits(margins[:, 0], targets)
    return functional.cross_entropy(margins, targets)
