"""Fitted round parameters of uplink stages, in a server's state: made from the last sum, or from a mock client on public rows.

The state's ``"fitted"`` maps a phase to ``[[version of the model, parameters], ...]``, oldest first: clients that work on an older model encode under the
parameters that went out with it, and their sum is decoded under these.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import numpy as np

from atoll.core.requests.chain import Inputs, Told, due, fitted, inputs_of
from atoll.core.requests.island import Island
from atoll.core.requests.party import Party
from atoll.data.islands import Islands

if TYPE_CHECKING:
    from atoll.core.algebra.rng import Rng
    from atoll.core.algebra.tree import Tree
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.chain import Chain
    from atoll.core.requests.results import Combined
    from atoll.data.dataset import Dataset
    from atoll.data.shard import Shard

    from ..context import Context

__all__ = ["fitted_to_mock", "fitted_to_sum"]


async def fitted_to_mock(
    fed: Federation, context: Context, state: Tree, phase: str, message: Tree, version: int = 0
) -> Tree:
    """Return the state with parameters fitted to the reply of a mock client on the public rows, if there are such rows and a fit is due.

    The mock client runs at the server the task that clients run, on the message that they get. It draws as many public rows as a client has on average, so that
    its reply has a client's weight.
    """
    chain, rows = context.chain(state, phase), context.public
    told = state.get("stage_counts", {}).get(phase)
    if not chain.fits or rows is None or not due(chain, chain.fitted, state["contacts"], told):
        return state
    stream = fed.rng.child("mock", state["contacts"], phase)
    shard = _drawn(context, rows, stream.child("rows"))
    island = Island(Party("mock", "mock client", 0), lambda: shard, stream.key, secret_seed=stream.child("secret").key)
    task = context.learner.train
    reply = task.run(island, message, **task.args)
    reply = await reply if inspect.isawaitable(reply) else reply
    inputs = inputs_of(chain, chain.leaving(reply), stream)
    return _refitted(fed, chain, state, phase, inputs, version, version, told)


def _drawn(context: Context, rows: Dataset, rng: Rng) -> Shard:
    """As many of the rows as a client has on average, or all if that is not known."""
    sizes = context.clients.sizes
    count = len(rows) if sizes is None else min(len(rows), max(1, round(float(np.mean(sizes)))))
    some = rows.take(np.sort(rng.generator().permutation(len(rows))[:count]))
    return Islands.from_datasets({"mock": some}).shard(0)


def fitted_to_sum(
    fed: Federation,
    context: Context,
    state: Tree,
    phase: str,
    combined: Combined,
    version: int = 0,
    oldest: int | None = None,
) -> Tree:
    """Return the state with parameters fitted to a sum, which is public once it is folded, if a fit is due and no mock client makes them.

    What the stages counted in the sum stays in the state, for the mock client's fit before the next.

    Args:
        fed: the federation.
        context: the training's context.
        state: the server's state.
        phase: the phase of the replies.
        combined: their sum.
        version: the version of the model that goes out with the parameters.
        oldest: the oldest version on which a client still works; earlier parameters are forgotten.
    """
    chain, told = context.chain(state, phase), combined.told
    if not chain.fits or not combined.n:
        return state
    if context.public is not None:
        adapts = told and chain.stages[-1].adapts
        return {**state, "stage_counts": {**state.get("stage_counts", {}), phase: told}} if adapts else state
    if not due(chain, chain.fitted, state["contacts"], told):
        return state
    oldest = version if oldest is None else oldest
    return _refitted(fed, chain, state, phase, combined.inputs, version, oldest, told)


def _refitted(
    fed: Federation,
    chain: Chain,
    state: Tree,
    phase: str,
    inputs: Inputs,
    version: int,
    oldest: int,
    told: Told | None,
) -> Tree:
    stream = fed.rng.child("fit", state["contacts"], phase)
    made = fitted(chain, chain.fitted, inputs, stream, state["contacts"], told)
    rows = [row for row in state.get("fitted", {}).get(phase, []) if row[0] < version]
    needed = max((i for i, row in enumerate(rows) if row[0] <= oldest), default=0)
    kept = rows[needed:] if oldest < version else []
    return {**state, "fitted": {**state.get("fitted", {}), phase: [*kept, [version, made]]}}
