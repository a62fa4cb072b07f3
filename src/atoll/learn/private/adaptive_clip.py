"""Adaptive clipping: the norm that a share of the updates stays below, estimated under privacy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Mean
from atoll.core.algebra.tree import Tree
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.validation import Checked

from ..algorithm import LocalWork, Private, RoundInfo
from ..wrapped import Wrapped, dry_reply
from .clipped import clipped, replies_as

__all__ = ["BITS", "AdaptiveClip", "ClippedInside"]

BITS = "below"
"""Name of the value that tells whether updates were below their norms."""
_STATE = "clips"


@dataclass(frozen=True, kw_only=True)
class AdaptiveClip(Checked):
    """Move the clip towards a quantile of the clients' norms: ``C <- C exp(-rate (b - quantile))`` after every round.

    ``b`` is the share of clients whose update was below ``C``: each sends a bit, the server adds noise to their sum. So the clip follows the norms
    without a release that is not counted. The bits take ``share`` of the privacy of a round (of ``1/z^2``), which costs the update
    ``1/sqrt(1 - share)`` more noise. Andrew, Thakkar, McMahan, Ramaswamy 2021, "Differentially Private Learning with Adaptive Clipping", Algorithm 1.
    We deviate in one thing: an algorithm that sends several values has a clip for each.

    Attributes:
        quantile: the share of clients whose updates are not clipped.
        rate: how fast the clip moves.
        share: part of a round's privacy that the bits take, in (0, 1). The noise on ``b`` has standard deviation ``z / (2 m sqrt(share))``, for ``m`` expected clients.
    """

    quantile: float = 0.5
    rate: float = 0.2
    share: float = 0.01

    def __post_init__(self) -> None:
        if not 0 < self.quantile < 1:
            raise ConfigError(f"quantile={self.quantile}", remedy="use a share in (0, 1)")
        if not (self.rate > 0 and math.isfinite(self.rate)):
            raise ConfigError(f"rate={self.rate}", remedy="use a finite number above 0")
        if not 0 < self.share < 1:
            raise ConfigError(f"share={self.share}", remedy="use a share in (0, 1), such as 0.01")

    def moved(self, clip: float, below: float) -> float:
        """Return the clip of the next round, from the share of clients below this one's."""
        return clip * math.exp(-self.rate * (below - self.quantile))


@dataclass(frozen=True, kw_only=True)
class ClippedInside(Wrapped, Private):
    """The base, whose clients send ``value min(1/C, 1/||value||)`` and bits, with norms that the server sends along.

    What leaves has norm at most 1 whatever ``C`` is, so noise relative to 1 is enough in every round; the server multiplies by ``C`` again.
    ``n`` bits have the values ``(b - 1/2) 2/sqrt(n)``: their norm is 1 too.

    Attributes:
        base: the algorithm inside; it must run one update of its own kind in its only phase.
        begin: the norms of the first round.
        adapt: how they move.
    """

    installed: ClassVar[bool] = True
    alone: ClassVar[bool] = True
    begin: float = 1.0
    adapt: AdaptiveClip = field(default_factory=AdaptiveClip)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.base.phases) != 1 or not replies_as(self.base):
            raise CompositionError(
                f"{type(self.base).__name__} has several phases, or replies with a pass of another kind",
                where="AdaptiveClip",
                remedy="use a base with one update in a round, such as FedAvg, or a fixed clip",
            )

    def broadcast(self, state: Tree, phase: str) -> Tree:
        """Send the base's broadcast, and the norms."""
        return {**self.base.broadcast(state, phase), _STATE: state[_STATE]}

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with the base's local state."""
        return self.base.start(_own(broadcast), client)

    def init(self, params: Tree) -> Tree:
        """Start with the base's state, and a norm for every value that clients send."""
        reply = dry_reply(self.base, params)
        names = sorted(name for name, a in reply.items() if a.staged)
        return {**self.base.init(params), _STATE: {name: np.float64(self.begin) for name in names}}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Reply as the base does, with values scaled into the unit ball, and the bits."""
        reply, state = self.base.finish(local, _own(broadcast), client, work)
        clips, bits = broadcast[_STATE], []
        for name in sorted(clips):
            inside = T.norm(reply[name].value) <= clips[name]
            bits.append((inside * 2.0 - 1.0) / math.sqrt(len(clips)))
            reply[name] = clipped(reply[name], clips[name], clips[name])
        return {**reply, BITS: Mean(T.stack(bits), examples=work.examples)}, state

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Fold as the base does, with values of their own size, and move the norms."""
        clips, bits = state[_STATE], sums[BITS]
        whole = {name: T.scale(value, float(clips[name])) if name in clips else value for name, value in sums.items()}
        whole.pop(BITS)
        made = self.base.fold(state, whole, info, phase)
        below = {
            name: 0.5 + float(bit) * math.sqrt(len(clips)) / 2 for name, bit in zip(sorted(clips), bits, strict=True)
        }
        return {
            **made,
            _STATE: {name: np.float64(self.adapt.moved(float(c), below[name])) for name, c in clips.items()},
        }


def _own(broadcast: Tree) -> Tree:
    """Return what the base sends."""
    return {name: value for name, value in broadcast.items() if name != _STATE}
