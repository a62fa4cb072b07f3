"""The base class of combinators: stages with memory around another stage."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.errors import CompositionError
from atoll.core.facets import facet
from atoll.core.requests.stage import Fitting, Guarding, Stage, WithMemory

from .remembering import Remembering
from .topk import TopK

if TYPE_CHECKING:
    pass

__all__ = ["Around"]


@dataclass(frozen=True)
class Around(Remembering):
    """Base class of combinators: a stage with memory that passes values to an inner stage. One client is a block of one.

    Attributes:
        stage: the inner stage, a value stage without memory.
    """

    stage: Stage = field(default_factory=TopK)

    def __post_init__(self) -> None:
        stage = self.stage
        if (
            not isinstance(stage, Stage)
            or stage.on != "value"
            or facet(stage, WithMemory).remembers
            or facet(stage, Guarding).secret
            or facet(stage, Fitting).fits
        ):
            raise CompositionError(
                f"{type(self).__name__} around {type(self.stage).__name__}",
                where="uplink",
                remedy="use an inner stage that acts on values and has no memory, secrets or fitted parameters of its own, such as TopK or Sign",
            )
        for name in ("summable", "packs"):
            object.__setattr__(self, name, getattr(self.stage, name))

    def public(self, rng: Rng) -> Tree:
        """Return the inner stage's public parameters."""
        return self.stage.public(rng)

    def wire_bits(self, value: Tree) -> int | None:
        """Return the inner stage's bits."""
        return self.stage.wire_bits(value)
