"""The base class of local randomisers: a stage that bounds a client's value itself, and makes it private against everybody."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.core.requests.context import StageContext
from atoll.core.requests.stage import Guarding, Stage

from ..remembering import one_of
from ..rows import lay_out, put_back

__all__ = ["Randomiser", "Rows", "require_positive"]

Rows = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Randomiser(Stage, Guarding):
    """Base class of local randomisers: ``randomise`` turns each client's vector into one that is private by itself.

    Neighbours replace one client's value by any other: the bound is the stage's own, and nothing needs to come before it. Its encodings are plain
    numbers of the value's form, so they add up in a secure sum, which then also shuffles them.
    """

    linear: ClassVar[bool] = False
    unbiased: ClassVar[bool] = False
    secret: ClassVar[bool] = True

    def randomise(self, rows: Rows, draws: list[np.random.Generator]) -> Rows:
        """Return what each client releases, ``(clients, entries)``.

        Args:
            rows: the clients' vectors, ``(clients, entries)``.
            draws: a generator from each client's own secret.
        """
        raise NotImplementedError

    def encode(self, value: Tree, context: StageContext) -> Tree:
        """Encode a block of one."""
        return T.map(lambda leaf: leaf[0], self.encode_block(one_of(value), context))

    def encode_block(self, block: Tree, context: StageContext) -> Tree:
        """Randomise each client's value with its own secret."""
        rows, like = lay_out(block)
        draws = [secret.generator() for secret in context.secrets()]
        return put_back(self.randomise(np.asarray(rows, np.float64), draws), like)


def require_positive(stage: Any, *names: str) -> None:
    """Refuse settings that are not finite numbers above 0.

    Raises:
        ConfigError: names the first.
    """
    for name in names:
        value = getattr(stage, name)
        if not (math.isfinite(value) and value > 0):
            raise ConfigError(f"{name}={value}", where=type(stage).__name__, remedy="use a finite number > 0")
