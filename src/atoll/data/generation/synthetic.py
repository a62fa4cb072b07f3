"""Synthetic(alpha, beta) of Li et al. (2020, FedProx), with the settings of Upcycled-FL."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra.rng import Rng
from atoll.core.calls import checked_call
from atoll.core.errors import DataError

from ..about import About
from ..dataset import Dataset, root
from ..islands import Islands

_CITATION = (
    "Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated optimization in heterogeneous networks, MLSys 2020; "
    "after Shamir, Srebro, Zhang 2014"
)
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class _Make:
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
    return _population(f"Syn({alpha:g},{beta:g})", parties, dims, classes, stds, False, sizes, root(seed))


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
    return _population("Syn(iid)", parties, dims, classes, (0.0, 0.0), True, sizes, root(seed))


def _population(
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
    make = _Make(np.asarray(sizes), dims, classes, stds[0], stds[1], shared, about)
    return Islands.generate(parties, make, sizes=np.asarray(sizes), seed=rng, name=name, about=about)
