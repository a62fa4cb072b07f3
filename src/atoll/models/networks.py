"""PyTorch networks, built on request."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from atoll.core.algebra.rng import name_order
from atoll.core.calls import checked_call
from atoll.core.errors import ConfigError, MissingExtraError
from atoll.learn.checks import require_count

if TYPE_CHECKING:
    from torch import nn

__all__ = ["cnn", "logistic", "mlp"]


def _nn() -> Any:
    try:
        from torch import nn
    except ImportError as error:
        raise MissingExtraError(
            "this model needs PyTorch, which is not installed",
            where="atoll.models",
            remedy='pip install "atoll[torch]", or use atoll.models.linear, which needs NumPy only',
        ) from error
    return nn


def _describe_factory(make: Callable[[], Any], **settings: Any) -> Callable[[], Any]:
    """Let a factory say how a configuration makes it, so that a run from Python says so too."""
    make.__dict__["settings"] = settings
    return make


def _by_columns(make: Callable[[], Any]) -> Callable[[], Any]:
    """Let a factory make the network for named columns: ``make.for_columns(names)`` is a factory whose network has its first weights by name.

    The first layer's weights are drawn in the order of the names, and put where the columns stand. So a table whose columns stand in another order gives the same
    network, and a training the same result.
    """

    def for_columns(names: Sequence[str]) -> Callable[[], Any]:
        def placed() -> Any:
            nn, made, order = _nn(), make(), name_order(names)
            first = next(layer for layer in made.modules() if isinstance(layer, nn.Linear))
            if len(names) == first.in_features:
                weight = first.weight.detach()
                weight[:, order] = weight.clone()
            return made

        return placed

    make.__dict__["for_columns"] = for_columns
    return make


@checked_call
def logistic(features: int, classes: int) -> Callable[[], nn.Module]:
    """Return multinomial logistic regression in PyTorch, ``softmax(x W + b)``."""
    require_count("logistic", features=features, classes=classes)

    def make() -> nn.Module:
        nn = _nn()
        return nn.Sequential(nn.Flatten(), nn.Linear(features, classes))  # type: ignore[no-any-return]

    return _by_columns(_describe_factory(make, name="logistic", features=features, classes=classes))


@checked_call
def mlp(features: int, outputs: int, hidden: Sequence[int] = (64,)) -> Callable[[], nn.Module]:
    """Return a multilayer perceptron with ReLU.

    Args:
        features: inputs per example, after flattening.
        outputs: classes or targets.
        hidden: width of each hidden layer.
    """
    require_count("mlp", features=features, outputs=outputs, **{f"hidden[{i}]": n for i, n in enumerate(hidden)})

    def make() -> nn.Module:
        nn = _nn()
        widths = [features, *hidden]
        layers: list[Any] = [nn.Flatten()]
        for before, after in itertools.pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(widths[-1], outputs))  # type: ignore[no-any-return]

    return _by_columns(_describe_factory(make, name="mlp", features=features, outputs=outputs, hidden=list(hidden)))


@checked_call
def cnn(
    shape: tuple[int, int, int], outputs: int, channels: Sequence[int] = (32, 64), dense: int = 128
) -> Callable[[], nn.Module]:
    """Return two 3x3 convolutions, a 2x2 max-pool and a dense layer.

    Args:
        shape: ``(channels, height, width)`` of an image.
        outputs: classes.
        channels: output channels of each convolution.
        dense: width of the dense layer.
    """
    require_count("cnn", outputs=outputs, dense=dense, **{f"channels[{i}]": n for i, n in enumerate(channels)})
    if min(shape[1:]) < 2 * len(channels) + 2:
        raise ConfigError(
            f"shape={shape}: the images are too small for {len(channels)} convolutions and a pool",
            where="cnn",
            remedy=f"use images of at least {2 * len(channels) + 2} by {2 * len(channels) + 2}, or fewer channels",
        )

    def make() -> nn.Module:
        nn = _nn()
        depth, height, width = shape
        layers: list[Any] = []
        for out in channels:
            layers += [nn.Conv2d(depth, out, 3), nn.ReLU()]
            depth, height, width = out, height - 2, width - 2
        layers += [nn.MaxPool2d(2), nn.Flatten(), nn.Linear(depth * (height // 2) * (width // 2), dense), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(dense, outputs))  # type: ignore[no-any-return]

    return _describe_factory(make, name="cnn", shape=list(shape), outputs=outputs, channels=list(channels), dense=dense)
