"""Releases under privacy: the ledger first, then noise from the island's secret; and what of a reply leaves the client.

A mechanism of privacy clips and adds noise to named values. So it must know every one of them: the algorithm's own (updates, control variates, further models), the model's buffers
that training changes, and measurements. What is not here must not be in a reply.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra.aggregate import Aggregate, Mean, Parts, Sum
from atoll.core.algebra.rng import Rng
from atoll.core.capability import PROTECTION
from atoll.core.errors import CompositionError
from atoll.core.facets import changes, facet

from ..algorithm import STEP_HOOKS, Private
from ..wrapped import Wrapped, dry_reply, overrides
from .examples import SecretStream

if TYPE_CHECKING:
    from atoll.core.algebra.tree import Tree
    from atoll.core.requests.chain import Chain
    from atoll.core.requests.island import Island

    from ..aggregation.base import Aggregation
    from ..algorithm import Algorithm

__all__ = [
    "BUFFERS",
    "COUNTERS",
    "arrays_leaving",
    "begin_release",
    "buffer_replies",
    "counters_in",
    "is_private",
    "promises_privacy",
    "refuse_reports",
    "require_mechanism_outside",
]


def is_private(algorithm: Algorithm) -> bool:
    """Return whether an algorithm promises privacy: whether it, or an algorithm inside it, has events."""
    return overrides(algorithm, "events")


def begin_release(algorithm: Algorithm, island: Island) -> Rng | None:
    """Prepare a local update: admit the data, record the release, and return the secret stream; ``None`` without privacy.

    Raises:
        DataError: the client's data break an assumption of the privacy guarantee.
    """
    if not is_private(algorithm):
        return None
    data = island.data
    facet(algorithm, Private).admit(data)
    for event in facet(algorithm, Private).events(len(data)):
        island.spend(event)
    return SecretStream(island.secret)


def refuse_reports(algorithm: Algorithm, reports: Mapping[str, Any]) -> None:
    """Refuse reports with a mechanism: they come from the raw data.

    Raises:
        CompositionError: the algorithm is private and there are reports.
    """
    if reports and is_private(algorithm):
        raise CompositionError(
            f"reports ({', '.join(map(repr, reports))}) would leave the clients without noise",
            where=type(algorithm).__name__,
            remedy="use a selection rule without reports, or the same algorithm without privacy",
        )


def require_mechanism_outside(algorithm: Algorithm) -> None:
    """Refuse a wrapper around a privacy mechanism with its own replies or steps.

    Raises:
        CompositionError: names the wrapper.
    """
    outer = algorithm
    while isinstance(outer, Wrapped) and not changes(type(outer), Wrapped, "events"):
        if PROTECTION in outer.base.offers and changes(type(outer), Wrapped, *STEP_HOOKS, "start", "finish"):
            raise CompositionError(
                f"{type(outer).__name__} changes what clients do around a privacy mechanism",
                where="Training.algorithm",
                remedy=f"put the mechanism outside: OutputPerturbation(base={type(outer).__name__}(...))",
            )
        outer = outer.base


# ---------------------------------------------------------------- what leaves a client in a training


BUFFERS = "buffers"
"""The name under which a model's buffers travel in a broadcast, and their averages in a reply."""
COUNTERS = "counters"
"""The name under which a reply tells how far each of the model's counters has moved."""


def counters_in(buffers: Tree) -> tuple[str, ...]:
    """Return the names of the buffers that count: whole numbers and flags, which no average may change."""
    return tuple(name for name, value in buffers.items() if np.asarray(value).dtype.kind in "iub")


def buffer_replies(before: Tree, after: Tree, examples: float, *, singly: bool = True) -> dict[str, Aggregate]:
    """Return what a client replies of the buffers that training changed: statistics as a mean, and how far each counter has moved.

    Args:
        before: the buffers that it received.
        after: the same ones after training.
        examples: its number of examples, the weight of the statistics.
        singly: whether the server sees single replies, and so the largest move; else the moves are added up, also under masks.
    """
    counters = counters_in(after)
    statistics = {name: value for name, value in after.items() if name not in counters}
    reply: dict[str, Aggregate] = {}
    if statistics:
        reply[BUFFERS] = Mean(statistics, examples=examples, role="buffer")
    if counters:
        moved = {n: np.asarray(after[n]).astype(np.int64) - np.asarray(before[n]).astype(np.int64) for n in counters}
        reply[COUNTERS] = Parts(moved, examples=examples, role="counter") if singly else Sum(moved, role="counter")
    return reply


def arrays_leaving(
    algorithm: Algorithm,
    params: Tree,
    buffers: Tree = None,
    phase: str | None = None,
    examples: float = 1.0,
    *,
    steps: float = 1.0,
    uplink: Chain | None = None,
    singly: bool = True,
) -> dict[str, Aggregate]:
    """Return every array that a client sends in a phase, by name, as it would be of a contact without a step: the algorithm's values and counts, and the model's buffers.

    Metrics of the learner and reports are beside it (`metrics_of`); no noise protects them, so that a protected training sends none.

    Args:
        algorithm: what clients run.
        params: a model; only its form matters.
        buffers: those that travel, as ``Learner.buffers`` says.
        phase: of a round; the last one if it is ``None``.
        examples: of the made-up client.
        steps: that it has made.
        uplink: stages of the phase: measurements stay at the client if they guard the reply.
        singly: whether the server sees single replies; see `buffer_replies`.
    """
    reply = dry_reply(algorithm, params, phase, examples, steps)
    if buffers:
        reply |= buffer_replies(buffers, buffers, examples, singly=singly)
    return reply if uplink is None else dict(uplink.leaving(reply))


def promises_privacy(algorithm: Algorithm, uplink: Callable[[str], Chain], aggregation: Aggregation) -> bool:
    """Return whether the algorithm or the uplink stages make replies private, or the server their sum: then nothing may leave that they do not protect."""
    staged = any(uplink(phase).events for phase in algorithm.phases)
    return is_private(algorithm) or staged or aggregation.event is not None
