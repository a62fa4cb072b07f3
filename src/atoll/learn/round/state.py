"""The state of a server between rounds, and the model on its way down: what a client receives, whole or as a compressed change.

The server keeps ``x_hat``, the model of all clients of the last round. It sends ``C(x - x_hat)`` and moves to ``x_hat + C(x - x_hat)``, the model that every
client works with. What compression left out stays in ``x - x_hat`` and is sent later. This is error feedback at the server, ``p = update + e``,
``e = p - C(p)``. Zheng, Huang, Kwok 2019, "Communication-Efficient Distributed Blockwise Momentum SGD with Error-Feedback", algorithm 1; Sattler et al.
2019, algorithm 2.

A client with the last version is charged the packed difference, any other client the whole ``x_hat``. Use a contraction (``TopK``, ``Sign``, ``STC``, or a
quantiser with ``omega < 1``): with a larger error, ``x_hat`` diverges from ``x``. A training returns the server's ``x``.

The number of examples, where the server weights by it, is known beforehand in a simulation; otherwise the server asks the clients once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core import message as M
from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Sum
from atoll.core.algebra.tree import Tree
from atoll.core.capability import SERVER, Need
from atoll.core.errors import CompositionError, QuorumError
from atoll.core.facets import facet
from atoll.core.requests.stage import Fitting, Stage, StageContext, WithMemory
from atoll.core.requests.task import task

from ..capabilities import ONE_MODEL
from ..learner import wants_round
from ..local.reports import BUFFERS, COUNTERS, counters_in
from ..selection.base import places_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island
    from atoll.core.requests.party import Parties

    from ..context import Clients, Context

__all__ = [
    "DOWNLINK_NEEDS",
    "averaged_model",
    "broadcast_extras",
    "check_downlink",
    "client_examples",
    "compressed_broadcast",
    "count_examples",
    "counter_moves",
    "global_model",
    "held_by",
    "initial",
    "moved_buffers",
    "own_examples",
    "population_examples",
    "weigh_population",
]


def initial(fed: Federation, context: Context) -> Tree:
    """Return the state of a training before its first round."""
    params = context.learner.init(fed.rng.child("init"))
    context.aggregation.check(context.algorithm, params)
    return {
        "server": context.algorithm.init(params),
        "aggregation": context.aggregation.init(params),
        "weight": None,
        "selection": context.selection.init(fed.parties),
        "contacts": 0,
        "buffers": context.learner.buffers(),
        "down": {},
        "fitted": {},
    }


def global_model(state: Tree) -> Tree:
    """Return the global model: its parameters, and the running statistics that clients average."""
    params = state["server"]["params"]
    return {**params, **state["buffers"]} if state["buffers"] else params


def averaged_model(state: Tree) -> Tree:
    """Return what of the global model is averaged: its parameters and statistics, without counters."""
    counters = counters_in(state["buffers"])
    return {name: value for name, value in global_model(state).items() if name not in counters}


def moved_buffers(held: Tree, values: Mapping[str, Any], replies: int) -> Tree:
    """Return the model's buffers after some replies.

    Statistics are those that were averaged. A counter is the server's own: it moves on by the largest number of the replies, or, where only their sum is
    seen, by their mean, rounded up. So a server of one client counts what the client counts, and a late reply never turns a counter back.

    Args:
        held: the buffers that the server has.
        values: combined values of the replies by name; see `atoll.learn.local.reports.buffer_replies`.
        replies: their number.
    """
    made = {**held, **values.get(BUFFERS, {})}
    for name, by in counter_moves(values, replies).items():
        old = np.asarray(held.get(name, 0))
        made[name] = np.asarray(old + np.asarray(by).astype(np.int64)).astype(old.dtype)
    return made


def counter_moves(values: Mapping[str, Any], replies: int) -> Tree:
    """Return how far each counter moved in some replies: the largest number of the replies, or their mean, rounded up, where only the sum is seen."""
    told = values.get(COUNTERS)
    if not told or not replies:
        return {}
    if isinstance(told, list):
        return T.map(lambda *each: np.max(np.stack(each), axis=0), *(part.value for part in told))
    return T.map(lambda whole: -(-np.asarray(whole) // replies), told)


def broadcast_extras(state: Tree, learner: Any, number: int) -> Tree:
    """Return broadcast entries besides the algorithm's: the model's buffers, if any travel, and the contact's number if the loss needs it.

    Args:
        state: a state with ``"buffers"``.
        learner: its ``wants_round`` says whether the loss needs the number.
        number: the contact's number.
    """
    statistics = {"buffers": state["buffers"]} if state["buffers"] else {}
    return {**statistics, "round": number} if wants_round(learner) else statistics


# ---------------------------------------------------------------- compression on the way down


DOWNLINK_NEEDS = (
    Need(SERVER, "compresses what a server sends", "no downlink"),
    Need(ONE_MODEL, "is a difference to the one model that all clients have", "no downlink"),
)
"""The needs of a downlink compressor, whatever it needs on the way up."""


def check_downlink(stage: Stage | None) -> None:
    """Refuse a stage that cannot compress the way down.

    Raises:
        CompositionError: the stage acts on summands, is fitted to sums, or keeps memory: the server already keeps what it left out.
    """
    if stage is not None and (stage.on != "value" or facet(stage, WithMemory).remembers or facet(stage, Fitting).fits):
        raise CompositionError(
            f"{type(stage).__name__} cannot compress what the server sends",
            where="Training.downlink",
            remedy="use a stage without memory or fitted parameters that acts on values, such as Sign() or TopK(0.01); the server keeps the error itself",
        )


def compressed_broadcast(
    fed: Federation,
    stage: Stage | None,
    state: Tree,
    broadcast: Tree,
    rest: Tree,
    parties: Parties,
    at: tuple[int, str],
) -> tuple[Tree, Tree, NDArray[np.int64] | None]:
    """Return what the clients of a cohort work with, and the cost of sending it.

    Args:
        fed: the federation, for randomness and the number of parties.
        stage: the compressor; ``None`` sends everything unchanged.
        state: what the clients have: entry -> held, target, version, and the version of every party.
        broadcast: the algorithm's broadcast. Entries that are trees of float arrays are compressed; the others are sent unchanged.
        rest: further entries, sent unchanged.
        parties: the cohort.
        at: the contact and phase.

    Returns:
        The broadcast with ``x_hat`` instead of ``x``, the new state, and bytes per party (``None`` without compression).
    """
    if stage is None:
        return broadcast, state, None
    given, packed, fresh, holds = dict(broadcast), dict[str, Tree](), dict(state), dict[str, Any]()
    for name, value in broadcast.items():
        if not _is_dense(value):
            continue
        entry = state.get(name)
        if entry is None or not _alike(entry["held"], value):
            fresh[name] = {
                "held": value,
                "target": value,
                "version": 1,
                "of": np.zeros(len(fed.world.roster), np.int32),
            }
            holds[name] = np.zeros(len(parties), dtype=bool)
        else:
            holds[name] = entry["of"][parties.positions] == entry["version"]
            if not M.equal(entry["target"], value):
                rng = fed.rng.child("down", *at, name)
                public = stage.public(rng.child("public"))
                packed[name] = stage.encode(T.sub(value, entry["held"]), StageContext.of(rng, public))
                moved = T.add(entry["held"], stage.decode(packed[name], public, 1))
                fresh[name] = {**entry, "held": moved, "target": value, "version": entry["version"] + 1}
        given[name] = fresh[name]["held"]
    return given, fresh, _sizes(given, packed, rest, holds, at[1], len(parties))


def _sizes(
    given: Tree, packed: dict[str, Tree], rest: Tree, holds: dict[str, Any], phase: str, count: int
) -> NDArray[np.int64]:
    """Return the encoded size of each client's message: clients with the same entries receive the same."""
    names = list(holds)
    kind = np.zeros(count, dtype=np.int64)
    for i, name in enumerate(names):
        kind |= holds[name].astype(np.int64) << i
    sizes = np.zeros(count, dtype=np.int64)
    for found in np.unique(kind).tolist():
        known = {name for i, name in enumerate(names) if found >> i & 1}
        message = {
            name: packed[name] if name in known else tree
            for name, tree in given.items()
            if name not in known or name in packed
        }
        sizes[kind == found] = M.nbytes({"broadcast": {**message, **rest}, "phase": phase})
    return sizes


def held_by(state: Tree, positions: NDArray[np.int64]) -> Tree:
    """Return the state in which these clients have the last message: they have answered it."""

    def note_version(entry: Tree) -> Tree:
        of = entry["of"].copy()
        of[positions] = entry["version"]
        return {**entry, "of": of}

    return {name: note_version(entry) for name, entry in state.items()}


def _is_dense(value: Tree) -> bool:
    leaves = T.leaves(value)
    arrays = [leaf for leaf in leaves if isinstance(leaf, np.ndarray) and leaf.dtype.kind == "f"]
    return bool(arrays) and len(arrays) == len(leaves) and any(leaf.ndim for leaf in arrays)


def _alike(one: Tree, other: Tree) -> bool:
    rows = [[(path, leaf.shape, leaf.dtype) for path, leaf in T.items(tree)] for tree in (one, other)]
    return bool(rows[0] == rows[1])


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
