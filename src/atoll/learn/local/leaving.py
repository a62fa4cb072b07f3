"""What leaves a client in a training, and whether something promises that it is private: the one place that says both.

A mechanism of privacy clips and adds noise to named values. So it must know every one of them: the algorithm's own (updates, control variates, further models), the model's buffers
that training changes, and measurements. What is not here must not be in a reply.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from atoll.core.algebra.aggregate import Aggregate, Mean

from ..wrapped import dry_reply
from .release import is_private

if TYPE_CHECKING:
    from atoll.core.algebra.tree import Tree
    from atoll.core.requests.chain import Chain

    from ..aggregation.base import Aggregation
    from ..algorithm import Algorithm

__all__ = ["BUFFERS", "arrays_leaving", "promises_privacy"]

BUFFERS = "buffers"
"""The name under which a model's buffers travel, in a broadcast and in a reply."""


def arrays_leaving(
    algorithm: Algorithm,
    params: Tree,
    buffers: Tree = None,
    phase: str | None = None,
    examples: float = 1.0,
    *,
    steps: float = 1.0,
    uplink: Chain | None = None,
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
    """
    reply = dry_reply(algorithm, params, phase, examples, steps)
    if buffers:
        reply[BUFFERS] = Mean(buffers, examples=examples, role="buffer")
    return reply if uplink is None else dict(uplink.leaving(reply))


def promises_privacy(algorithm: Algorithm, uplink: Callable[[str], Chain], aggregation: Aggregation) -> bool:
    """Return whether the algorithm or the uplink stages make replies private, or the server their sum: then nothing may leave that they do not protect."""
    staged = any(uplink(phase).events for phase in algorithm.phases)
    return is_private(algorithm) or staged or aggregation.event is not None
