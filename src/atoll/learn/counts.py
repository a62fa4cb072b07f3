"""How many examples there are: known beforehand in a simulation, else clients are asked once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.aggregate import Aggregate, Sum
from atoll.core.errors import QuorumError
from atoll.core.task import task
from atoll.core.tree import Tree

from .selection.members import places_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.federation import Federation
    from atoll.core.island import Island

    from .training import Training

__all__ = ["client_examples", "count_examples", "own_examples", "population_examples", "weighed"]


async def population_examples(fed: Federation, data: Any) -> float:
    """Examples of the population: known beforehand in a simulation, else every client is asked once."""
    sizes = getattr(data, "sizes", None)
    if sizes is not None:
        return float(np.sum(sizes))
    return float((await fed.sum(fed.parties, count_examples, at="count"))["examples"])


async def weighed(fed: Federation, job: Training, data: Any, state: Tree) -> Tree:
    """A server's state, with the examples of the population, ``"weight"``, where the aggregation operator weighs by them."""
    if not job.aggregation.weighs_population or state["weight"] is not None:
        return state
    return {**state, "weight": await population_examples(fed, data)}


async def client_examples(fed: Federation, data: Any) -> NDArray[np.float64]:
    """Examples of every client: known beforehand in a simulation, else each is asked once. A client that does not answer has none.

    Raises:
        QuorumError: nobody has any.
    """
    sizes = getattr(data, "sizes", None)
    if sizes is not None:
        return np.asarray(sizes, dtype=np.float64)
    told = await fed.ask_all(fed.parties, own_examples, at="examples", quorum=0)
    found = np.zeros(len(fed.parties))
    found[places_of(fed.parties.positions, told.senders.positions)] = told.values
    if not found.sum() > 0:
        raise QuorumError(
            "no client told that it has examples", where="the count of examples", remedy="look at the islands' data"
        )
    return found


@task
def own_examples(island: Island, message: Tree) -> float:
    """How many examples a client has."""
    del message
    return float(len(island.data))


@task
def count_examples(island: Island, message: Tree) -> dict[str, Aggregate]:
    """How many examples a client has."""
    del message
    return {"examples": Sum(np.float64(len(island.data)), metric=True)}
