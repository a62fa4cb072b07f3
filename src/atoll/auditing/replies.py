"""Audit of local randomisers: the server sees each reply, and guesses which of two values the client had."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra.aggregate import Parts
from atoll.core.algebra.tree import Tree
from atoll.core.calls import checked_call
from atoll.core.requests.island import Secret
from atoll.core.requests.stage import Stage
from atoll.core.requests.task import task
from atoll.privacy.canaries import Audit, Tradeoff, guessed, lower_bound

from .run import claimed_epsilon

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation

__all__ = ["audit_replies", "own_value"]


@task
def own_value(island: Any, message: Tree) -> Mapping[str, Parts]:
    """Reply with the party's own vector."""
    del message
    return {"value": Parts(np.asarray(island.data, np.float64))}


@checked_call
def audit_replies(
    stage: Stage,
    *,
    canaries: int = 1000,
    guesses: int | None = None,
    entries: int = 4,
    apart: bool = False,
    delta: float = 0.0,
    confidence: float = 0.95,
    tradeoff: Tradeoff = "approximate",
    seed: int | None = None,
) -> Audit:
    """Ask canaries for their vectors through a randomiser, and bound its epsilon from below.

    Each canary's coin decides which of two vectors it has, both far beyond any bound: ``+e_1`` or ``-e_1`` times a million; or ``+e_1`` or ``-e_2`` if ``apart``, which also
    tells where the large entry is. The score is the difference of what came back in these places.

    Args:
        stage: the randomiser, as an uplink stage with events.
        canaries: clients, a coin each.
        guesses: how many coins are guessed; by default half of them.
        entries: length of a vector, at least 2.
        apart: whether the two vectors have their large entry in different places.
        delta: of the claim and the bound; 0 for pure randomisers.
        confidence: of the bound.
        tradeoff: what is claimed: one ``(epsilon, delta)``, or Gaussian noise; see `atoll.privacy.lower_bound`.
        seed: draws the coins; ``None`` from the operating system.

    Returns:
        The claim of the ledger and the lower bound, for a user whose value is replaced, against the server.
    """
    from atoll.simulation import simulate

    coins = Secret(seed).generator().random(canaries) < 0.5
    one, other = np.zeros(entries), np.zeros(entries)
    one[0], other[1 if apart else 0] = 1e6, -1e6
    clients = {f"canary-{i}": one if coin else other for i, coin in enumerate(coins)}

    async def program(fed: Federation) -> list[NDArray[np.float64]]:
        done = await fed.sum(fed.parties, own_value, uplink=[stage], quorum=len(fed.parties))
        return [np.asarray(part.value) for part in done["value"]]

    with tempfile.TemporaryDirectory(prefix="atoll-audit-") as place:
        where = Path(place) / "run"
        seen = np.array(simulate(program, clients, engine="inline", folder=where, tasks=[own_value], progress=False))
        claimed = claimed_epsilon(where, delta, "pld" if delta else "exact", "server", "replace-one") or 0.0
    many = canaries // 2 if guesses is None else guesses
    right = guessed(seen[:, 0] + (seen[:, 1] if apart else 0.0), coins, many)
    return Audit(
        claimed=claimed, lower=lower_bound(right, many, confidence, delta, canaries, tradeoff), confidence=confidence, delta=delta, right=right,
        guesses=many, canaries=canaries, unit="user", neighbours="replace-one", adversary="server", tradeoff=tradeoff,
    )  # fmt: skip
