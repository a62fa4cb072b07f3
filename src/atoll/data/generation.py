"""Generated populations: the clients' rows are made on access."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra.rng import Rng
from atoll.core.calls import checked_call
from atoll.core.errors import DataError

from .dataset import About, Dataset, root
from .islands import Islands

__all__ = ["linear", "synthetic", "synthetic_iid"]


# A cheap population of any size, for tests of scale.


@dataclass(frozen=True)
class _MakeLinear:
    weights: NDArray[np.float32]
    examples: int
    shift: float
    noise: float
    about: About

    def __call__(self, client: int, rng: np.random.Generator) -> Dataset:
        dims, classes = self.weights.shape
        x = rng.standard_normal((self.examples, dims), dtype=np.float32)
        if self.shift:
            x += np.float32(self.shift) * rng.standard_normal(dims, dtype=np.float32)
        logits = x @ self.weights
        if self.noise:
            logits += np.float32(self.noise) * rng.standard_normal((self.examples, classes), dtype=np.float32)
        return Dataset._of({"x": x, "y": logits.argmax(axis=1)}, None, self.examples, self.about)


@checked_call
def linear(
    parties: int,
    *,
    examples: int = 20,
    dims: int = 32,
    classes: int = 10,
    shift: float = 0.0,
    noise: float = 0.0,
    test: int = 1000,
    seed: int | Rng = 0,
) -> Islands:
    """Generate clients whose labels come from one linear model: ``y = argmax(x W + noise)``.

    ``W (dims, classes) ~ N(0, 1)`` is shared; ``x ~ N(s, I)`` with ``s ~ N(0, shift^2 I)`` per client. Nothing is
    stored per client, so a population of a million clients costs no more than the clients that you access.

    Args:
        parties: number of clients.
        examples: rows of each client.
        dims: number of features.
        classes: number of classes.
        shift: how far the clients' features are apart.
        noise: standard deviation of the noise on the logits.
        test: number of test rows at the server, drawn with ``shift = 0`` and no noise; 0 for none.
        seed: seed or random stream.

    Raises:
        DataError: a size is not positive.
    """
    if min(parties, examples, dims) < 1 or classes < 2 or test < 0:
        raise DataError(
            f"parties={parties}, examples={examples}, dims={dims}, classes={classes}, test={test}",
            where="linear",
            remedy="ask for at least 1 client, 1 row, 1 feature and 2 classes",
        )
    rng = root(seed).child("linear")
    weights = rng.child("model").generator().standard_normal((dims, classes), dtype=np.float32)
    about = About("linear", "classification", classes, "generated: one linear model shared by all clients")
    make = _MakeLinear(weights, examples, shift, noise, about)
    test_rows = _MakeLinear(weights, test, 0.0, 0.0, about)(0, rng.child("test").generator()) if test else None
    return Islands.generate(parties, make, sizes=examples, seed=rng, name="linear", about=about, test=test_rows)


# Synthetic(alpha, beta) of Li et al. (2020, FedProx), with the settings of Upcycled-FL.


_CITATION = (
    "Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated optimization in heterogeneous networks, MLSys 2020; "
    "after Shamir, Srebro, Zhang 2014"
)
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class _MakeSynthetic:
    """Draws one client. It is a class so that other processes can receive it."""

    sizes: NDArray[np.int64]
    dims: int
    classes: int
    model_std: float
    data_std: float
    shared: tuple[Floats, Floats] | None
    about: About

    def __call__(self, client: int, rng: np.random.Generator) -> Dataset:
        n = int(self.sizes[client])
        if self.shared is None:
            centre = rng.normal(0.0, self.model_std)
            weights = rng.normal(centre, 1.0, (self.dims, self.classes))
            bias = rng.normal(centre, 1.0, self.classes)
            mean = rng.normal(rng.normal(0.0, self.data_std), 1.0, self.dims)
        else:
            (weights, bias), mean = self.shared, np.zeros(self.dims)
        spread = np.arange(1, self.dims + 1) ** -0.6  # square root of the variance j^-1.2
        x = mean + spread * rng.standard_normal((n, self.dims))
        y = np.argmax(x @ weights + bias, axis=1)
        return Dataset._of({"x": x.astype(np.float32), "y": y}, None, n, self.about)


@checked_call
def synthetic(
    alpha: float = 0.0,
    beta: float = 0.0,
    *,
    parties: int = 30,
    dims: int = 20,
    classes: int = 2,
    spread: Literal["std", "variance"] = "std",
    sizes: NDArray[np.int64] | None = None,
    seed: int | Rng = 0,
) -> Islands:
    """Draw a population whose models (``alpha``) and features (``beta``) differ between clients.

    For client ``k``: ``u ~ N(0, alpha)``, the entries of ``W (dims, classes)`` and ``b`` are ``~ N(u, 1)``;
    ``B ~ N(0, beta)``, the entries of ``v (dims,)`` are ``~ N(B, 1)``; ``x ~ N(v, diag(j^-1.2))``, ``j = 1..dims``;
    ``y = argmax(x W + b)``. Sizes: ``floor(LogNormal(4, 2)) + 50``.

    Upcycled-FL's experiments have 30 clients, 20 features and 2 classes (the default) at (0, 0), (0.5, 0.5) and
    (1, 1); FedProx has 60 features and 10 classes. Both then hold out a tenth of each client: ``.holdout(0.1)``.

    Args:
        alpha: how much the clients' models differ.
        beta: how much their features differ.
        parties: number of clients.
        dims: number of features.
        classes: number of classes.
        spread: whether ``alpha`` and ``beta`` are standard deviations, as in FedProx's own code, or variances, as in
            the papers' text; both agree for 0 and 1.
        sizes: rows of each client, instead of the lognormal draw.
        seed: seed or random stream.

    Raises:
        DataError: ``alpha`` or ``beta`` is negative, or the sizes do not fit.
    """
    if spread not in ("std", "variance") or min(alpha, beta) < 0:
        raise DataError(
            f"alpha={alpha}, beta={beta}, spread={spread!r}",
            where="synthetic",
            remedy="give alpha and beta of 0 or more, and spread 'std' or 'variance'",
        )
    stds = (alpha, beta) if spread == "std" else (alpha**0.5, beta**0.5)
    return _make_population(f"Syn({alpha:g},{beta:g})", parties, dims, classes, stds, False, sizes, root(seed))


@checked_call
def synthetic_iid(
    *,
    parties: int = 30,
    dims: int = 20,
    classes: int = 2,
    sizes: NDArray[np.int64] | None = None,
    seed: int | Rng = 0,
) -> Islands:
    """Draw the population of `synthetic` with one model for all clients: ``W, b ~ N(0, 1)`` once, and ``v = 0``.

    Args:
        parties: number of clients.
        dims: number of features.
        classes: number of classes.
        sizes: rows of each client, instead of ``floor(LogNormal(4, 2)) + 50``.
        seed: seed or random stream.
    """
    return _make_population("Syn(iid)", parties, dims, classes, (0.0, 0.0), True, sizes, root(seed))


def _make_population(
    name: str,
    parties: int,
    dims: int,
    classes: int,
    stds: tuple[float, float],
    iid: bool,
    sizes: NDArray[np.int64] | None,
    seed: Rng,
) -> Islands:
    if parties < 1 or dims < 1 or classes < 2:
        raise DataError(
            f"parties={parties}, dims={dims}, classes={classes}",
            where=name,
            remedy="ask for at least 1 client, 1 feature and 2 classes",
        )
    rng = seed.child("synthetic")
    if sizes is None:
        sizes = np.floor(rng.child("sizes").generator().lognormal(4.0, 2.0, parties)).astype(np.int64) + 50
    shared = None
    if iid:
        model = rng.child("model").generator()
        shared = (model.standard_normal((dims, classes)), model.standard_normal(classes))
    about = About(name, "classification", classes, _CITATION)
    make: Callable[[int, np.random.Generator], Dataset]
    make = _MakeSynthetic(np.asarray(sizes), dims, classes, stds[0], stds[1], shared, about)
    return Islands.generate(parties, make, sizes=np.asarray(sizes), seed=rng, name=name, about=about)
