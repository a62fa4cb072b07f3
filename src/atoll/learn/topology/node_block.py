"""Nodes in blocks: the local updates of all nodes of a round at once, with each node's own server around them.

Nodes differ in everything, including the model, so a learner trains them through ``apart()``, with a separate broadcast for each client. The server's
functions run node by node, as in `Node.round`: they are cheap, and counters keep their types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra.aggregate import Aggregate, Mean, stacked
from atoll.core.algebra.form import kinds_of_block
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.persistence.state_table import StateBlock
from atoll.core.requests.cohort import Cohort
from atoll.core.requests.task import Batch

from ..offered import SupportsApart
from .node import Node, Round

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["NodeBlock", "blocks_of"]

Begun = Callable[[Tree, Tree], Tree]


def blocks_of(node: Node, begun: Begun) -> NodeBlock | None:
    """Return a node's rounds in blocks, if its learner supports them; ``begun(state, message)`` returns a node's state, or the initial one."""
    made = node.learner.apart() if isinstance(node.learner, SupportsApart) else None
    return None if made is None else NodeBlock(node, made, begun)


class NodeBlock:
    """A round of an algorithm at many nodes: a task's ``many`` and its tuning.

    Args:
        node: a round at one node.
        apart: the learner's trainer, see `atoll.learn.offered.SupportsApart`.
        begun: returns a node's state, or the initial one.
    """

    def __init__(self, node: Node, apart: Any, begun: Begun) -> None:
        self.node, self.apart, self.begun = node, apart, begun

    def many(self, cohort: Cohort, message: Tree) -> Iterator[Batch]:
        """Run one round at every node of a cohort; return metrics of the last reply, and the nodes' next states."""
        turns = [self._begin(cohort, i, message) for i in range(len(cohort))]
        made = _Made()
        for at in range(max((len(turn.plan) for turn in turns), default=0)):
            asked: dict[str, list[int]] = {}
            for i, turn in enumerate(turns):
                phase = None if i in made.errors else turn.phase(at)
                if phase is not None:
                    asked.setdefault(phase, []).append(i)
            for phase, places in asked.items():
                self._phase(cohort, turns, (phase, at), np.array(places), made)
        for i, (turn, name) in enumerate(zip(turns, cohort.parties.names, strict=True)):
            made.attempt(i, partial(made.end, i, turn, name))
        yield from made.batches()

    def _begin(self, cohort: Cohort, i: int, message: Tree) -> Round:
        state = self.begun(cohort.state(i), message)
        examples = float(len(cohort.shard(i)))
        return Round(self.node, state, int(message["round"]), examples, Rng(int(cohort.keys[i])))

    def _phase(
        self, cohort: Cohort, turns: list[Round], what: tuple[str, int], places: NDArray[np.int64], made: _Made
    ) -> None:
        """Run the updates of some nodes, and fold each."""
        phase, at = what
        keys = np.array([turns[i].rng.child("phase", at).key for i in places], dtype=np.uint64)
        some = Cohort(cohort.parties[places], keys, cohort.population)
        sent, clients = [turns[i].sent(phase) for i in places], [turns[i].state["client"] for i in places]
        for batch in self.apart.train(some, phase, sent, clients):
            made.errors.update({int(places[place]): error for place, error in batch.errors.items()})
            states = dict(enumerate(clients)) if batch.states is None else _rows(batch)
            for row, place in enumerate(batch.positions.tolist()):
                reply = {name: aggregate.row(row) for name, aggregate in batch.reply.items()}
                turn, state = turns[places[place]], states[place]
                made.attempt(int(places[place]), partial(turn.take, phase, reply, state))

    @property
    def choices(self) -> dict[str, Any]:
        """How blocks run."""
        return dict(self.apart.choices)

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds spent on tracing and compiling so far."""
        return dict(self.apart.seconds)

    def recall(self, choices: dict[str, Any]) -> None:
        """Repeat an earlier decision."""
        self.apart.recall(choices)

    def prepare(self, cohort: Cohort, message: Tree, cores: int = 1) -> float:
        """Decide and compile on these nodes; return the expected seconds of their round on one core, whatever their number."""
        del cores
        for _ in self.many(cohort, message):
            pass
        return float(self.apart.expected_seconds(len(cohort)))


class _Made:
    """Results of the nodes of a cohort."""

    def __init__(self) -> None:
        self.errors: dict[int, Exception] = {}
        self.states: dict[int, Tree] = {}
        self.replies: dict[int, dict[str, Aggregate]] = {}

    def attempt(self, place: int, work: Callable[[], None]) -> None:
        """Run ``work`` for one node, unless it failed before; an error affects only that node."""
        if place not in self.errors:
            try:
                work()
            except Exception as error:
                self.errors[place] = error

    def end(self, place: int, turn: Round, name: str) -> None:
        """End a node's round."""
        self.states[place] = turn.end(name)
        self.replies[place] = {**turn.metrics, "updated": Mean(np.float64(1.0), role="side")}

    def batches(self) -> Iterator[Batch]:
        """Return stacked replies, one batch per set of names: idle nodes have fewer metrics."""
        alike: dict[tuple[str, ...], list[int]] = {}
        for place, reply in self.replies.items():
            alike.setdefault(tuple(reply), []).append(place)
        errors = self.errors
        for names, places in alike.items() or [((), [])]:
            reply = {name: stacked([self.replies[place][name] for place in places]) for name in names}
            singles = {place: self.states[place] for place in places}
            yield Batch(np.array(places, dtype=np.int64), reply, singles=singles, errors=errors)
            errors = {}


def _rows(batch: Batch) -> dict[int, Tree]:
    block = StateBlock(batch.positions, batch.states, kinds_of_block(batch.states))
    return dict(block.rows())
