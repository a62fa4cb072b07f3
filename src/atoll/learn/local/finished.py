"""Both ends of a local update: an algorithm's ``start`` and ``finish``, with an answer for what they must not return."""

from __future__ import annotations

from typing import Any

from atoll.core.algebra.aggregate import Aggregate
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError

from ..algorithm import Algorithm, LocalWork

__all__ = ["finished", "started"]

_READS = ("direction", "step", "finish")
"""Methods of `Algorithm` that read ``local["params"]``."""


def started(algorithm: Algorithm, broadcast: Tree, client: Tree) -> Any:
    """Return ``algorithm.start(...)``: what the client works on.

    Raises:
        ConfigError: it is no dict, or lacks the ``params`` that the algorithm's other methods read.
    """
    made: Any = algorithm.start(broadcast, client)
    reads = [name for name in _READS if getattr(type(algorithm), name) is getattr(Algorithm, name)]
    if isinstance(made, dict) and ("params" in made or not reads):
        return made
    shown = f"{', '.join(made) or 'nothing'}, and no 'params'" if isinstance(made, dict) else f"a {type(made).__name__}"
    read = f", or override {', '.join(reads)} too" if isinstance(made, dict) else ""
    raise ConfigError(
        f"start returns {shown}",
        where=f"{type(algorithm).__name__}.start",
        remedy=f'return a dict with it, such as {{"params": broadcast["params"]}}{read}',
    )


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
