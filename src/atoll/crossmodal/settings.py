"""The settings of a `Crossmodal`, and what follows from them: noise, events, and what has been spent."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from atoll.core.errors import ConfigError
from atoll.core.event import Event, Gaussian, NonPrivate
from atoll.core.rooms import Named
from atoll.core.validation import Checked, require_parts
from atoll.learn.local.examples import ExampleSteps
from atoll.privacy.accountant import epsilon_of
from atoll.privacy.calculator import smallest_noise

from .networks import BiGRU, FrameCNN, OwnNetwork, VectorMLP
from .table import TablePlan, count_gaussian

__all__ = ["CrossmodalSettings"]

_TABLE_SHARE = 0.2
"""Of an epsilon, what the table alone may cost."""
_SIZE_SHARE = 0.1
"""Of an epsilon, what the number of rows alone may cost."""


@dataclass(frozen=True, kw_only=True)
class CrossmodalSettings(Checked):
    """How parties of two modalities train.

    Attributes:
        speech: the own network of speech sides.
        text: the own network of text sides.
        vector: the own network of sides with a vector an utterance.
        rounds: exchanges.
        iterations: steps of a round.
        batch: mini-batch; with an epsilon, its expected size.
        lr: step size of what stays.
        shared_lr: step size of what is shared.
        optimizer: for what stays.
        pretrain: steps in which speech sides train their own network first.
        width: numbers of a phone's trained vector.
        hidden: units of the phone classifier.
        span: phones that a unit sees at a time.
        epsilon: the promise for each example of a party, over the whole job; ``None`` is no noise and no bound.
        delta: its delta.
        clip: largest norm of an example's gradient.
        shared_loss: ``"phones"`` or ``"fused"``; ``"auto"`` is ``"phones"`` with an epsilon and ``"fused"`` without.
        share_fusion: whether ``f_m`` is shared too (the paper's Algorithm 3 shares it, its Algorithms 4 and 5 do not).
        table: ``"exact"`` or ``"private"``; ``"auto"`` is private with an epsilon and exact without. A private table may cost a fifth of epsilon alone.
        least: utterances that a phone must be in to have a vector in an exact table.
        table_clip: the largest norm of an utterance's vector that counts in a private one.
        weights: ``"rows"``: copies count by rows, which peers learn, as they learn how many utterances have a phone; ``"noisy"``: by rows with noise, of which a tenth of epsilon alone pays; ``"equal"``: they count alike, and peers learn
            no count. ``"auto"`` is noisy where steps have a promise, and by rows elsewhere.
        bits: bits of a number of a copy: 32 sends it as it is, 16 and 8 round it to the nearest multiple of a step, one a matrix. With 8 bits, changes below half a 127th of a matrix's largest number are lost in the rounding.
        test: share of each class that a party holds out, to measure.
        valid: share of each class of the rest by which a party chooses the round whose networks it keeps; 0 keeps the last.
        classes: the classes, where they are agreed; by default parties tell those that they have.
        label: the name of what stays at the parties; empty for nothing.
    """

    speech: Annotated[OwnNetwork, Named("own network")] = field(default_factory=FrameCNN)
    text: Annotated[OwnNetwork, Named("own network")] = field(default_factory=BiGRU)
    vector: Annotated[OwnNetwork, Named("own network")] = field(default_factory=VectorMLP)
    rounds: int = 10
    iterations: int = 50
    batch: int = 32
    lr: float = 0.003
    shared_lr: float = 0.3
    optimizer: Literal["adam", "sgd"] = "adam"
    pretrain: int = 100
    width: int = 16
    hidden: int = 32
    span: int = 5
    epsilon: float | None = None
    delta: float = 1e-5
    clip: float = 1.0
    shared_loss: Literal["auto", "phones", "fused"] = "auto"
    share_fusion: bool = False
    table: Literal["auto", "exact", "private"] = "auto"
    least: int = 5
    table_clip: float = 4.0
    weights: Literal["auto", "rows", "noisy", "equal"] = "auto"
    bits: Literal[32, 16, 8] = 32
    test: float = 0.25
    valid: float = 0.15
    classes: Sequence[str] = ()
    label: str = "crossmodal"

    def __post_init__(self) -> None:
        require_parts(self, {"speech": (OwnNetwork, "atoll.crossmodal.FrameCNN()"), "text": (OwnNetwork, "atoll.crossmodal.BiGRU()"), "vector": (OwnNetwork, "atoll.crossmodal.VectorMLP()")})  # fmt: skip
        for side, example in (("speech", "FrameCNN"), ("vector", "VectorMLP")):
            if not getattr(self, side).reads_words:
                raise ConfigError(f"{side}={type(getattr(self, side)).__name__}(...)", where="Crossmodal", remedy=f"use it as text=..., and a network that reads numbers as {side}={example}()")  # fmt: skip
        for name in ("rounds", "iterations", "batch", "width", "hidden", "span", "least"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}", where="Crossmodal", remedy="use a whole number of at least 1")  # fmt: skip
        for name in ("lr", "shared_lr", "clip", "table_clip"):
            if not (getattr(self, name) > 0 and math.isfinite(getattr(self, name))):
                raise ConfigError(f"{name}={getattr(self, name)}", where="Crossmodal", remedy="use a positive, finite number")  # fmt: skip
        if self.pretrain < 0 or not 0 <= self.test < 1 or not 0 <= self.valid < 1:
            raise ConfigError(f"pretrain={self.pretrain}, test={self.test}, valid={self.valid}", where="Crossmodal", remedy="use steps of at least 0, and shares below 1")  # fmt: skip
        if isinstance(self.classes, str):
            raise ConfigError(f"classes={self.classes!r}", where="Crossmodal", remedy="give a list of names")
        self._require_privacy()

    def _require_privacy(self) -> None:
        """Refuse settings of a promise that do not fit together."""
        if self.epsilon is not None and not (self.epsilon > 0 and math.isfinite(self.epsilon)):
            raise ConfigError(f"epsilon={self.epsilon}", where="Crossmodal", remedy="use a finite number > 0, or None for no noise")  # fmt: skip
        if not 0 < self.delta < 1:
            raise ConfigError(f"delta={self.delta}", where="Crossmodal", remedy="use a number in (0, 1), such as 1e-5")
        if self.table == "private" and self.epsilon is None:
            raise ConfigError("a private table without an epsilon", where="Crossmodal.table", remedy="set epsilon=..., of which it takes a fifth")  # fmt: skip
        if self.weights == "noisy" and not self.hides_size:
            raise ConfigError("noisy weights without noise in steps", where="Crossmodal.weights", remedy="set epsilon=... and shared_loss='phones', or weights='equal', which tells no size")  # fmt: skip
        if self.share_fusion and self.epsilon is not None and not self.fused:
            raise ConfigError("a shared fusion with an epsilon", where="Crossmodal.share_fusion", remedy="leave f_m at the parties: its gradients depend on networks that were trained without noise. shared_loss='fused' shares it and claims no epsilon")  # fmt: skip

    # ------------------------------------------------------------------ what follows from the settings

    @property
    def fused(self) -> bool:
        """Whether the shared part is trained on the fused decision."""
        return self.shared_loss == "fused" or (self.shared_loss == "auto" and self.epsilon is None)

    @property
    def promised(self) -> bool:
        """Whether an epsilon is claimed for all that a party sends."""
        return self.epsilon is not None and not self.fused and self.table != "exact"

    @property
    def hides_size(self) -> bool:
        """Whether a party plans its steps by its number of rows with noise: by the exact one, the noise of its copies would tell it."""
        return self.epsilon is not None and not self.fused

    @property
    def weighing(self) -> Literal["rows", "noisy", "equal"]:
        """How copies count."""
        if self.weights != "auto":
            return self.weights
        return "noisy" if self.hides_size else "rows"

    @property
    def size_event(self) -> Gaussian | None:
        """What the number of rows with noise releases, on which the rest is planned; ``None`` where it is exact."""
        return count_gaussian(_size_noise(self.epsilon, self.delta)) if self.epsilon and self.hides_size else None

    @property
    def table_plan(self) -> TablePlan:
        """How speech sides build the table."""
        private = self.epsilon is not None and self.table != "exact"
        noise = _table_noise(self.epsilon or 1.0, self.delta) if private else 0.0
        return TablePlan(self.least, self.table_clip, noise, hidden=self.weighing != "rows")

    def noise_multiplier(self, rows: int) -> float:
        """The noise of a party's steps, over ``clip``: the least with which all that the party may send costs ``epsilon``. Text sides have the same as speech sides, which pay for the table too.

        Args:
            rows: the number of rows that the party plans by.
        """
        if self.epsilon is None:
            return 0.0
        size = self.size_event.noise_multiplier if self.size_event else 0.0
        return _step_noise(
            self.epsilon, self.delta, self.rate_of(rows), self.rounds * self.iterations, (self.table_plan.noise, size)
        )

    def rate_of(self, rows: int) -> float:
        """The chance of an example to be in a mini-batch of a party that plans by so many rows."""
        return ExampleSteps(self.batch).rate_of(rows)

    def step_event(self, rows: int) -> Event:
        """What the steps of one round release: Poisson-sampled Gaussians whose draw the party keeps to itself; without a promise, a copy without noise."""
        noise = self.noise_multiplier(rows)
        if not noise or self.fused:
            return NonPrivate(unit="example", what="a copy of the shared network")
        return _step_gaussian(noise, self.iterations, self.rate_of(rows))

    def spent(self, rows: int, modality: str, rounds: int) -> float:
        """Return the epsilon of all that a party has sent in so many rounds; infinite without a promise."""
        if not self.promised:
            return math.inf
        once: list[Event] = [self.size_event] if self.size_event else []
        if modality == "speech":
            once.append(self.table_plan.event)
        return epsilon_of((*((one, 1) for one in once), (self.step_event(rows), rounds)), self.delta, "rdp")


def _step_gaussian(noise: float, steps: int, rate: float) -> Gaussian:
    return Gaussian(unit="example", noise_multiplier=noise, count=steps, sampling=rate, drawn_by="party", between="add-remove")  # fmt: skip


@functools.lru_cache(maxsize=256)
def _table_noise(epsilon: float, delta: float) -> float:
    """The noise with which the table alone costs its part of epsilon."""
    return smallest_noise(lambda z: epsilon_of(((count_gaussian(z), 1),), delta, "rdp"), _TABLE_SHARE * epsilon)


@functools.lru_cache(maxsize=256)
def _size_noise(epsilon: float, delta: float) -> float:
    """The noise with which the number of rows alone costs its part of epsilon."""
    return smallest_noise(lambda z: epsilon_of(((count_gaussian(z), 1),), delta, "rdp"), _SIZE_SHARE * epsilon)


@functools.lru_cache(maxsize=256)
def _step_noise(epsilon: float, delta: float, rate: float, steps: int, once: tuple[float, ...]) -> float:
    """The noise with which all steps, and what is told once with these multipliers, cost epsilon."""
    first = [(count_gaussian(noise), 1) for noise in once if noise]

    def cost(z: float) -> float:
        return epsilon_of((*first, (_step_gaussian(z, steps, rate), 1)), delta, "rdp")

    return smallest_noise(cost, epsilon)
