"""The end of a local update: an algorithm's ``finish``, with an answer for what it must not return."""

from __future__ import annotations

from typing import Any

from atoll.core.algebra.aggregate import Aggregate
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError

from ..algorithm import Algorithm, LocalWork

__all__ = ["finished"]


def finished(
    algorithm: Algorithm, local: Tree, broadcast: Tree, client: Tree, work: LocalWork
) -> tuple[dict[str, Aggregate], Tree]:
    """Return ``algorithm.finish(...)``: the reply and the client's new private state.

    Raises:
        ConfigError: it returns something else.
    """
    made: Any = algorithm.finish(local, broadcast, client, work)
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], dict):
        return made
    shown = f"a tuple of {len(made)}" if isinstance(made, tuple) else f"a {type(made).__name__}"
    raise ConfigError(
        f"finish returns {shown}, not the reply and the client's private state",
        where=f"{type(algorithm).__name__}.finish",
        remedy='end it with: return {"update": atoll.Mean(update, examples=work.examples)}, client',
    )
