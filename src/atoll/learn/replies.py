"""What clients of an algorithm reply, as capabilities: found by a contact without a step, only when needed."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Mean
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.capability import DROPPABLE, UNMEASURED, Capability
from atoll.core.errors import AtollError
from atoll.core.facets import facet

from .algorithm import Movable, Phased, RoundInfo, Stateful
from .capabilities import (
    AFFINE_FOLD,
    BY_EXAMPLES,
    DELTA,
    EQUAL_REPLIES,
    MEAN_UPDATE,
    SELF_FOLDING,
    SOLE_UPDATE,
    STATELESS,
    SUMMED,
    Placed,
    lack_of,
)
from .local.reports import arrays_leaving
from .wrapped import dry_reply, innermost, shown_name

if TYPE_CHECKING:
    from atoll.core.requests.chain import Chain

    from .algorithm import Algorithm
    from .learner import Learner

__all__ = ["DryReplies", "placed_replies", "values_of"]


class Replying(Protocol):
    """The members of a training that say what its clients reply."""

    @property
    def algorithm(self) -> Algorithm: ...
    @property
    def local_algorithm(self) -> Algorithm: ...

    def up(self, phase: str) -> Chain:
        """Return the uplink stages of a phase."""
        ...


_EXAMPLES = 3.0
"""Examples of a made-up client: a mean weighted by examples has this weight, an equal mean has weight 1."""


def placed_replies(algorithm: Algorithm, local: Algorithm, begin: Callable[[], Tree]) -> Placed:
    """Return the replies of an algorithm, in their own slot; see `DryReplies`."""
    dry = DryReplies(algorithm, local, begin)
    return Placed("replies", shown_name(algorithm), (), dry.lack, "algorithm")


class DryReplies:
    """Contacts without a step, one for each question asked: a question that no part asks costs nothing.

    Args:
        algorithm: the training's algorithm.
        local: what clients run: the algorithm, with the replies that the other parts require.
        begin: gives a model; only its form matters.
    """

    def __init__(self, algorithm: Algorithm, local: Algorithm, begin: Callable[[], Tree]) -> None:
        self.algorithm, self.local, self._begin = algorithm, local, begin
        self._asked = {
            MEAN_UPDATE: self._mean_update,
            BY_EXAMPLES: self._by_examples,
            SOLE_UPDATE: self._sole_update,
            SUMMED: self._explain_not_summed,
            EQUAL_REPLIES: self._equal,
            DELTA: self._delta,
            SELF_FOLDING: self._self_folding,
            AFFINE_FOLD: self._affine_fold,
            DROPPABLE: self._droppable,
            UNMEASURED: self._find_unmeasured,
            STATELESS: self._stateless,
        }

    def lack(self, capability: Capability) -> str:
        """Return why replies do not have a capability; empty if they do. For a capability unknown here, the algorithm decides."""
        if capability in self._asked:
            return self._asked[capability]()
        return lack_of(self.algorithm.offers)(capability)

    @cached_property
    def params(self) -> Tree:
        """The model parameters."""
        return self._begin()

    def _reply(self, phase: str | None = None) -> dict[str, Aggregate]:
        return dry_reply(self.algorithm, self.params, phase, _EXAMPLES)

    def _mean_update(self) -> str:
        return "" if isinstance(self._reply().get("update"), Mean) else MEAN_UPDATE.lack

    def _by_examples(self) -> str:
        for phase in self.algorithm.phases:
            for name, a in self._reply(phase).items():
                if isinstance(a, Mean) and float(a.examples) != _EXAMPLES:
                    return f"does not weight its mean {name!r} by examples"
        return ""

    def _explain_not_summed(self) -> str:
        for phase in self.algorithm.phases:
            for name, a in dry_reply(self.local, self.params, phase).items():
                if a.staged and a.kind not in ("mean", "sum"):
                    return f"combines {name!r} as {a.kind}"
        return ""

    def _equal(self) -> str:
        for phase in self.algorithm.phases:
            for name, a in dry_reply(self.local, self.params, phase, _EXAMPLES).items():
                if a.staged and a.kind != "sum" and float(a.weight) != 1.0:
                    return f"weights {name!r} by what a client holds"
        return ""

    def _sole_update(self) -> str:
        reply = dry_reply(self.local, self.params, self.algorithm.phases[0], _EXAMPLES)
        mean = reply.get("update")
        sole = len(reply) == 1 and isinstance(mean, Mean) and float(mean.examples) == _EXAMPLES
        return "" if sole else f"replies with {', '.join(reply) or 'nothing'}"

    def _delta(self) -> str:
        reply = self._reply(self.algorithm.phases[0])
        if not isinstance(reply.get("update"), Mean):
            return MEAN_UPDATE.lack
        more = [key for key, a in reply.items() if key != "update" and a.staged and a.kind != "sum"]
        if more:
            return f"also replies with {', '.join(more)}, which a mixture of stale models cannot combine"
        if self._stateful() and _entangled(innermost(self.algorithm), self.params, reply):
            return "keeps the same sums of updates at its clients and its server, and a weight would change only one of them"
        return ""

    def _stateful(self) -> bool:
        return facet(self.algorithm, Stateful).client_init(self.params) is not None

    def _stateless(self) -> str:
        return STATELESS.lack if self._stateful() else ""

    def _droppable(self) -> str:
        return DROPPABLE.lack if self._stateful() else ""

    def _find_unmeasured(self) -> str:
        measured = {
            name
            for phase in self.algorithm.phases
            for name, a in dry_reply(self.local, self.params, phase).items()
            if not a.staged
        }
        return f"sends measurements ({', '.join(sorted(measured))}) that no stage acts on" if measured else ""

    def _self_folding(self) -> str:
        algorithm, info = self.algorithm, RoundInfo(1, 1, 1, 1, 1.0)
        state = algorithm.init(self.params)
        try:
            for phase in algorithm.plan(state):
                sums = {key: a.total().result() for key, a in dry_reply(algorithm, self.params, phase).items()}
                state = algorithm.fold(state, sums, info, phase)
            facet(algorithm, Phased).advance(state, info)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            return f"{SELF_FOLDING.lack}: a single reply does not fold ({type(error).__name__}: {error})"
        return ""

    def _affine_fold(self) -> str:
        """Try the folds of made-up replies: of two, of their mean, and of one among a population of five."""
        algorithm, rng = self.algorithm, np.random.default_rng(0)
        server = algorithm.init(self.params)

        def fold_draws(draws: list[Tree], population: int) -> Tree:
            state, info = server, RoundInfo(1, 1, 1, population, 1.0)
            for phase, sums in zip(phases, draws, strict=True):
                state = algorithm.fold(state, sums, info, phase)
            return facet(algorithm, Phased).advance(state, info)

        phases = algorithm.plan(server)
        forms = [dry_reply(algorithm, self.params, phase) for phase in phases]
        if any(a.kind != "mean" for form in forms for a in form.values() if a.staged or a.role == "side"):
            return f"{AFFINE_FOLD.lack}: it folds more than means"
        one, other = ([{key: _like(a.value, rng) for key, a in form.items()} for form in forms] for _ in range(2))
        mean = [T.map(lambda a, b: (a + b) / 2, x, y) for x, y in zip(one, other, strict=True)]
        try:
            apart = T.map(lambda a, b: (a + b) / 2, _floats(fold_draws(one, 1)), _floats(fold_draws(other, 1)))
            pairs = [(apart, _floats(fold_draws(mean, 1))), (_floats(fold_draws(one, 1)), _floats(fold_draws(one, 5)))]
        except (KeyError, TypeError, ValueError, AttributeError, AtollError) as error:
            return f"{AFFINE_FOLD.lack}: a single reply does not fold ({type(error).__name__}: {error})"
        close = (np.allclose(a[path], b[path], rtol=1e-4, atol=1e-5) for a, b in pairs for path in a)
        return "" if all(close) else AFFINE_FOLD.lack


def values_of(job: Replying, learner: Learner) -> tuple[int, int]:
    """Return the number of named values of a client's replies in a round, over all phases, on which uplink stages act (at least 1), and the entries of the largest."""
    params = learner.init(Rng(0))
    phases = job.algorithm.phases
    buffers = learner.buffers()
    replies = [arrays_leaving(job.local_algorithm, params, buffers, phase, uplink=job.up(phase)) for phase in phases]
    staged = [a.value for reply in replies for a in reply.values() if a.staged]
    sizes = [sum(math.prod(np.shape(leaf)) for leaf in T.leaves(value)) for value in staged]
    return max(1, len(staged)), max(sizes, default=0)


def _like(value: Tree, rng: np.random.Generator) -> Tree:
    """A made-up reply of a form."""
    return T.map(
        lambda leaf: np.asarray(leaf) * 0 + rng.normal(size=np.shape(leaf)).astype(np.asarray(leaf).dtype), value
    )


def _floats(state: Tree) -> dict[str, Any]:
    """The floating-point leaves of a server's state."""
    leaves = {path: np.asarray(leaf) for path, leaf in T.items(state) if leaf is not None}
    return {path: leaf for path, leaf in leaves.items() if leaf.dtype.kind == "f"}


def _entangled(algorithm: Algorithm, params: Tree, reply: dict[str, Aggregate]) -> bool:
    """Return whether the update also moves server state that is tied to what clients keep (``extrapolates``)."""
    server, info = algorithm.init(params), RoundInfo(1, 1, 1, 1, 1.0)
    known = {key: a.total().result() for key, a in reply.items()}
    ones = T.map(lambda leaf: leaf * 0 + 1, params)

    def fold_update(update: Tree) -> Tree:
        return algorithm.fold(server, {**known, "update": update}, info, algorithm.phases[0])

    still, moved = fold_update(T.zeros_like(params)), fold_update(ones)
    pairs = [(still[key], moved[key]) for key in facet(algorithm, Movable).extrapolates if key != "params"]
    return any(
        abs(a - b).max() > 0 for one, other in pairs for a, b in zip(T.leaves(one), T.leaves(other), strict=True)
    )
