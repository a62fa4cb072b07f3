"""A cheap population of any size, for tests of scale."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra.rng import Rng
from atoll.core.calls import checked_call
from atoll.core.errors import DataError

from ..about import About
from ..dataset import Dataset, root
from ..islands import Islands

__all__ = ["linear"]


@dataclass(frozen=True)
class _Make:
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
    make = _Make(weights, examples, shift, noise, about)
    test_rows = _Make(weights, test, 0.0, 0.0, about)(0, rng.child("test").generator()) if test else None
    return Islands.generate(parties, make, sizes=examples, seed=rng, name="linear", about=about, test=test_rows)
