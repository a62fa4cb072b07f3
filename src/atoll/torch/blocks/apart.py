"""Clients that each got their own broadcast, trained in blocks: the nodes of a round of gossip."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra.form import kinds_of_block
from atoll.core.algebra.tree import Tree
from atoll.core.persistence.state_table import StateBlock
from atoll.core.requests.task import Batch
from atoll.learn.local.update import pass_key
from atoll.learn.wrapped import PerClientBroadcast

from .private import Privates

if TYPE_CHECKING:
    from atoll.core.requests.cohort import Cohort
    from atoll.learn.algorithm import Algorithm

    from ..local import LocalTraining

__all__ = ["Apart"]


class Apart:
    """The local updates of an algorithm at clients whose broadcasts differ, equal to training one by one, as `LocalTraining.many` is.

    Args:
        make: gives the training of one pass.
        algorithm: the algorithm.
        rows: how to fetch a cohort's rows, as `LocalTraining.many` takes them.
    """

    def __init__(
        self, make: Callable[[Algorithm], LocalTraining], algorithm: Algorithm, rows: Callable[[Cohort], Any]
    ) -> None:
        self._make = make
        self._rows = rows
        self._given = PerClientBroadcast.of(algorithm)
        self._plans: dict[str, list[tuple[PerClientBroadcast, LocalTraining]]] = {}

    def train(self, cohort: Cohort, phase: str, sent: Sequence[Tree], clients: Sequence[Tree]) -> Iterator[Batch]:
        """Train a cohort in blocks.

        Args:
            cohort: the clients, with the keys of this phase; its private states are not used.
            phase: of the algorithm.
            sent: one broadcast for each client, all of one form.
            clients: the algorithm's private states, ``None`` before a client's first.

        Yields:
            Replies and new private states, with a leading client axis. Non-finite replies are included, and may belong
            to clients whose error was in an earlier batch.
        """
        plan = self._plan(phase)
        template = {"params": sent[0]["params"]}
        states, rows = list(clients), self._rows(cohort)
        for at, (given, training) in enumerate(plan):
            own = np.array([pass_key(int(key), at, len(plan)) for key in cohort.keys], dtype=np.uint64)
            pairs = zip(sent, states, own.tolist(), strict=True)
            handed = Privates([given.handed(*pair) for pair in pairs], len(states))
            for batch in training.many(rows, template, handed, own):
                if at == len(plan) - 1:
                    yield batch
                    continue
                if batch.errors:
                    yield Batch(np.zeros(0, np.int64), {}, errors=batch.errors)
                if batch.states is not None:
                    block = StateBlock(batch.positions, batch.states, kinds_of_block(batch.states))
                    for place, state in block.rows():
                        states[place] = state

    @property
    def choices(self) -> dict[str, Any]:
        """Return how blocks run, by phase: the decisions as plain data."""
        return {phase: [training.choices for _, training in plan] for phase, plan in self._plans.items()}

    def recall(self, choices: dict[str, Any]) -> None:
        """Repeat an earlier decision."""
        for phase, records in choices.items():
            for (_, training), record in zip(self._plan(phase), records, strict=True):
                training.choices = record

    @property
    def seconds(self) -> dict[str, float]:
        """Return the seconds spent on tracing and compiling so far."""
        made = [training.seconds for plan in self._plans.values() for _, training in plan]
        return {what: sum(m[what] for m in made) for what in ("trace", "compile")}

    def expected_seconds(self, clients: int) -> float:
        """Return the seconds of one core for a round of ``clients`` clients, by arithmetic alone."""
        return sum(training.expected_seconds(clients) for plan in self._plans.values() for _, training in plan)

    def _plan(self, phase: str) -> list[tuple[PerClientBroadcast, LocalTraining]]:
        if phase not in self._plans:
            passes = [part for part in self._given.passes(phase) if isinstance(part, PerClientBroadcast)]
            self._plans[phase] = [(part, self._make(part)) for part in passes]
        return self._plans[phase]
