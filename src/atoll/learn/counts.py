"""The number of examples: known beforehand in a simulation, otherwise the server asks the clients once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from atoll.core.algebra.aggregate import Aggregate, Sum
from atoll.core.algebra.tree import Tree
from atoll.core.errors import QuorumError
from atoll.core.requests.task import task

from .selection.base import places_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island

    from .context import Clients, Context

__all__ = ["client_examples", "count_examples", "own_examples", "population_examples", "weigh_population"]


async def population_examples(fed: Federation, clients: Clients) -> float:
    """Return the examples of the population: known beforehand in a simulation, otherwise the server asks every client once."""
    sizes = clients.sizes
    if sizes is not None:
        return float(np.sum(sizes))
    return float((await fed.sum(fed.parties, count_examples, at="count"))["examples"])


async def weigh_population(fed: Federation, context: Context, state: Tree) -> Tree:
    """Return a server's state, with the examples of the population as ``"weight"`` if the aggregation operator weights by them."""
    if not context.aggregation.weighs_population or state["weight"] is not None:
        return state
    return {**state, "weight": await population_examples(fed, context.clients)}


async def client_examples(fed: Federation, clients: Clients) -> NDArray[np.float64]:
    """Return the examples of every client: known beforehand in a simulation, otherwise the server asks each once. A client that does not answer counts as 0.

    Raises:
        QuorumError: no client has examples.
    """
    sizes = clients.sizes
    if sizes is not None:
        return np.asarray(sizes, dtype=np.float64)
    told = await fed.ask_all(fed.parties, own_examples, at="examples", quorum=0)
    found = np.zeros(len(fed.parties))
    found[places_of(fed.parties.positions, told.senders.positions)] = told.values
    if not found.sum() > 0:
        raise QuorumError(
            "no client reported any examples", where="the count of examples", remedy="check the islands' data"
        )
    return found


@task
def own_examples(island: Island, message: Tree) -> float:
    """Return how many examples a client has."""
    del message
    return float(len(island.data))


@task
def count_examples(island: Island, message: Tree) -> dict[str, Aggregate]:
    """Return how many examples a client has."""
    del message
    return {"examples": Sum(np.float64(len(island.data)), role="metric")}
