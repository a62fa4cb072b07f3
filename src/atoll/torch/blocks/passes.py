"""What clients keep between the passes of a round: only their new private states are needed, not their replies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree

from .private import Privates

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..local import LocalTraining

__all__ = ["PassError", "states_after"]


class PassError(Exception):
    """Some clients raised in a pass before the last.

    Attributes:
        errors: place in the cohort -> exception.
    """

    def __init__(self, errors: dict[int, Exception]) -> None:
        super().__init__(f"{len(errors)} clients raised in a pass")
        self.errors = errors


def states_after(
    training: LocalTraining,
    shards: Any,
    broadcast: Tree,
    clients: Sequence[Tree] | Privates | None,
    keys: NDArray[np.uint64],
    epochs: int | None = None,
) -> Privates:
    """Train a cohort for its new private states alone: with its sums, which run in native code if possible.

    Args:
        training: the pass.
        shards: the clients' rows; see `LocalTraining.many`, as for the others.
        broadcast: what the server sent.
        clients: the private states at the start of the pass.
        keys: one for each client.
        epochs: epochs (or steps) in place of the algorithm's own.

    Raises:
        PassError: some clients raised.
    """
    try:
        parts = training.many_sum(shards, broadcast, clients, keys, epochs).states
    except Exception:  # replies that cannot be added up; or an error, and this shows whose
        batches = list(training.many(shards, broadcast, clients, keys, epochs))
        errors = {place: error for batch in batches for place, error in batch.errors.items()}
        if errors:
            raise PassError(errors) from None
        parts = [(batch.positions, batch.states) for batch in batches]
    return _joined([part for part in parts if part[1] is not None], len(keys))


def _joined(parts: list[tuple[NDArray[np.int64], Tree]], count: int) -> Privates:
    """Return stacked states of parts of a cohort, ``(positions, states)`` each, in its order; none if there is no part."""
    if not parts:
        return Privates(None, count)
    order = np.argsort(np.concatenate([positions for positions, _ in parts]), kind="stable")

    def join(*leaves: Any) -> Any:
        return None if leaves[0] is None else np.concatenate(leaves)[order]

    return Privates(None, count, T.map(join, *[states for _, states in parts]))
