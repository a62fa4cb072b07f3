"""Labels at the server: a party of their own trains the model on them in phases that ask no client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.core.facets import facet
from atoll.learn.algorithm import Algorithm, Helped, Phased, RoundInfo

from ..views.base import View
from .base import Method, local_sgd
from .supervised import Supervised

__all__ = ["LABELS", "LabelledParty"]

LABELS = "labels"
"""Name and role of the party with labels."""


@dataclass(frozen=True, kw_only=True)
class LabelledParty(Method, Helped):
    """Base class of methods whose labels may lie at the server.

    The first round begins with ``warm_up`` steps on labels, every later one with ``label_steps``; then clients train. The labels are the rows of a helper party, ``"labels"``: in
    a simulation those of ``islands.others``, between organisations its site's.

    Attributes:
        weak: the view of labelled rows.
        labels_at: ``"server"``: labels lie at the helper party; ``"clients"``: at clients, and no helper is asked.
        warm_up: steps on labels before the first round.
        label_steps: steps on labels before every later round.
        label_batch: labelled rows in a mini-batch of these steps.
    """

    weak: View | None = None
    labels_at: str = "server"
    warm_up: int = 250
    label_steps: int = 12
    label_batch: int = 48
    label_phases: ClassVar[tuple[str, ...]] = ("warm", "labels")

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        if self.labels_at not in ("server", "clients"):
            raise ConfigError(f"labels_at={self.labels_at!r}", where=name, remedy="use 'server' or 'clients'")
        for count in ("warm_up", "label_steps", "label_batch"):
            if getattr(self, count) < 1:
                raise ConfigError(f"{count}={getattr(self, count)}", where=name, remedy="use 1 or more")
        if self.labels_at == "server":
            object.__setattr__(self, "phases", (*self.label_phases, *self.base.phases))

    @property
    def helpers(self) -> Mapping[str, str]:
        """The party with labels, if it is not the clients."""
        return {**facet(self.base, Helped).helpers, **({LABELS: LABELS} if self.labels_at == "server" else {})}

    @property
    def label_holders(self) -> tuple[str, ...]:
        """The party with labels, or the clients."""
        return (LABELS,) if self.labels_at == "server" else super().label_holders

    def asks(self, phase: str) -> tuple[str, ...]:
        """Ask the party with labels in its phases."""
        return (LABELS,) if phase in self.label_phases else facet(self.base, Helped).asks(phase)

    def plan(self, state: Tree) -> tuple[str, ...]:
        """Train on labels, then at clients."""
        if self.labels_at == "clients":
            return self.base.plan(state)
        return (self.label_phases[0 if state["turn"] == 0 else 1], *self.base.plan(state))

    def contacts(self, rounds: int) -> int | None:
        """Return the base's number of rounds with contacts."""
        return facet(self.base, Phased).contacts(rounds)

    def passes(self, phase: str) -> tuple[Algorithm, ...]:
        """Run SGD on labelled rows at the party with labels, and the method at clients."""
        if phase not in self.label_phases:
            return super().passes(phase)
        steps = self.warm_up if phase == self.label_phases[0] else self.label_steps
        return (Supervised(base=local_sgd(self.base.lr, steps, self.label_batch), view=self.weak),)

    def broadcast(self, state: Tree, phase: str) -> Tree:
        """Send the model and the rate to the party with labels, and the method's broadcast to clients."""
        if phase not in self.label_phases:
            return super().broadcast(state, phase)
        return {"params": state["params"], "lr": float(self.base.lr) * self.rate(state["turn"])}

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Take over the model that was trained on labels; fold clients' replies as the base does."""
        return (
            self.taught(state, sums["update"]) if phase in self.label_phases else super().fold(state, sums, info, phase)
        )

    def taught(self, state: Tree, update: Tree) -> Tree:
        """Return the state after the party with labels has changed the model."""
        return {**state, "params": T.add(state["params"], update)}
