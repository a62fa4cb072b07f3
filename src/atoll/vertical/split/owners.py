"""The sides of a split network in training: an owner of columns with its bottom, and the party with the labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np

from atoll.trees.objectives import LOGISTIC, SQUARED, TreeLoss

from ..model import ColumnScales, GuestRows, Part
from .networks import Batches, Layers, Segment, apply_layers, load_torch, loss_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.execution.session import PeerChannel
    from atoll.core.requests.island import Secret

    from .cut import Cut


__all__ = ["ColumnSide", "LabelSide", "SplitPlan", "apply_head", "embed"]


class SplitPlan(Protocol):
    """What the sides know of a split network: its segments, steps and settings, as `SplitNet` has them."""

    precision: ClassVar[type[np.floating[Any]]]

    @property
    def width(self) -> int:
        """Numbers of an embedding."""
        ...

    @property
    def top(self) -> Sequence[int]:
        """Widths of the top's hidden layers."""
        ...

    @property
    def batch(self) -> int:
        """Rows of a step."""
        ...

    @property
    def correction(self) -> float:
        """How much a sender corrects what stages lost."""
        ...

    @property
    def audit(self) -> Sequence[str]:
        """Attacks that a party runs on what it gives away."""
        ...

    def bottom(self, columns: int, number: int = 0) -> Layers:
        """The bottom of a party."""
        ...

    def tops(self, parties: int, outputs: int) -> tuple[Layers, Layers]:
        """The trunk and the head."""
        ...

    def segment(self, layers: Layers, *name: str | int) -> Segment:
        """A segment with its initial weights."""
        ...

    def batches(self, rows: int) -> Batches:
        """The steps of a training."""
        ...

    def is_checkpoint(self, batches: Batches, done: int) -> bool:
        """Whether parties keep their states after so many steps."""
        ...

    def cut(self, peers: PeerChannel) -> Cut:
        """A party's end of the cut."""
        ...

    def hide_labels(self, gradients: Any, secret: Secret) -> Any:
        """What a host gets instead of gradients."""
        ...


@dataclass
class ColumnSide:
    """A party's columns, and the bottom that reads them."""

    x: Any
    scales: ColumnScales
    bottom: Segment

    @classmethod
    def of(cls, model: SplitPlan, x: NDArray[Any], number: int, state: Any = None) -> ColumnSide:
        """Read the training rows of party ``number``, the guest being 0; go on from a checkpoint's ``state``."""
        scales = ColumnScales.of(x)
        scaled = load_torch().from_numpy(scales.apply(x).astype(model.precision))
        bottom = model.segment(model.bottom(x.shape[1], number), "bottom", number)
        if state is not None:
            bottom.restore(state)
        return cls(scaled, scales, bottom)

    def packed(self) -> dict[str, Any]:
        """The party's part of the model."""
        return {"bottom": self.bottom.packed(), "scales": self.scales.packed()}


class _Scaled(NamedTuple):
    """Labels as the network fits them: of a regression, deviations from the mean in units of the spread."""

    targets: Any
    centre: float
    spread: float

    @classmethod
    def of(cls, rows: GuestRows, precision: type[Any]) -> _Scaled:
        torch = load_torch()
        if rows.objective.name != SQUARED:
            kind = np.int64 if rows.objective.name != LOGISTIC else precision
            return cls(torch.from_numpy(rows.targets.astype(kind)), 0.0, 1.0)
        centre, spread = float(rows.targets.mean()), float(rows.targets.std()) or 1.0
        return cls(torch.from_numpy(((rows.targets - centre) / spread).astype(precision)), centre, spread)


@dataclass
class LabelSide(ColumnSide):
    """The party with the labels: its columns and bottom, and the segments behind the cut; ``trunk`` is ``None`` if a host has it."""

    trunk: Segment | None
    head: Segment
    labels: _Scaled
    objective: TreeLoss

    @classmethod
    def of(  # type: ignore[override]
        cls, model: SplitPlan, rows: GuestRows, parties: int, state: Any = None, *, with_trunk: bool = True
    ) -> LabelSide:
        """Read the training rows; go on from a checkpoint's ``state``."""
        own = ColumnSide.of(model, rows.x, 0, state and state["bottom"])
        layers = model.tops(parties, rows.objective.outputs)
        trunk = model.segment(layers[0], "trunk") if with_trunk else None
        head = model.segment(layers[1], "head")
        if state is not None:
            head.restore(state["head"])
            if trunk is not None:
                trunk.restore(state["trunk"])
        labels = _Scaled.of(rows, model.precision)
        return cls(own.x, own.scales, own.bottom, trunk, head, labels, rows.objective)

    @property
    def _segments(self) -> dict[str, Segment]:
        made = {"bottom": self.bottom, "head": self.head}
        return made if self.trunk is None else {**made, "trunk": self.trunk}

    def loss(self, embeddings: Sequence[Any], at: NDArray[np.int64]) -> Any:
        """The loss of a batch, from all embeddings; or from what the trunk has made of them, if a host has it."""
        joined = load_torch().cat(list(embeddings), 1)
        found = joined if self.trunk is None else self.trunk(joined)
        return loss_of(self.objective, self.head(found), self.labels.targets[at])

    def step(self) -> None:
        """Move all weights."""
        for one in self._segments.values():
            one.step()

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {name: one.state() for name, one in self._segments.items()}

    def packed(self) -> dict[str, Any]:
        """The guest's part of the model."""
        more = {name: one.packed() for name, one in self._segments.items()}
        return {**super().packed(), **more, "centre": self.labels.centre, "spread": self.labels.spread}


def embed(part: Part, x: NDArray[Any]) -> NDArray[Any]:
    """What a party's trained bottom makes of rows."""
    return apply_layers(part["bottom"], ColumnScales.unpacked(part["scales"]).apply(x))


def apply_head(part: Part, found: NDArray[Any]) -> NDArray[Any]:
    """The margins of rows, from what the trunk has made of them."""
    made = apply_layers(part["head"], found)
    return np.asarray(made * made.dtype.type(part["spread"]) + made.dtype.type(part["centre"]))
