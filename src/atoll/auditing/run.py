"""Audits: of a training, by canaries and what its ledger claims; and of a randomiser, by the replies that a server sees."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra.aggregate import Parts
from atoll.core.algebra.tree import Tree
from atoll.core.calls import checked_call
from atoll.core.errors import ConfigError
from atoll.core.event import Ledger
from atoll.core.persistence.files import as_json, write_bytes
from atoll.core.requests.island import Secret
from atoll.core.requests.stage import Stage
from atoll.core.requests.task import task
from atoll.privacy import LossTally
from atoll.privacy.canaries import Audit, Tradeoff, guessed, lower_bound

from .canaries import Canaries, Planted

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation
    from atoll.learn.private.base import Mechanism
    from atoll.learn.training import Training

__all__ = ["audit", "audit_replies", "averaging", "central", "claimed_epsilon", "own_value"]

# Audit a training: plant canaries, train, and compare what they prove with what the ledger claims.


@checked_call
def audit(
    job: Training | Callable[[Planted], Training],
    islands: Any,
    canaries: Canaries | None = None,
    *,
    delta: float = 1e-5,
    accountant: str = "pld",
    adversary: str = "model",
    claimed: float | None = None,
    known: Callable[[Planted], Tree] | None = None,
    seed: int = 0,
    engine: Any = "batched",
    folder: str | Path | None = None,
) -> Audit:
    """Train once with canaries, and bound from below the epsilon that the run really had.

    The model becomes `atoll.models.linear` with a feature more for each canary; every other part of the job is as given. So the audit is one of
    the mechanism as it is installed in this job, against somebody who sees the final model and knows everything but the coins.

    Args:
        job: the training, or a function that makes it for the planted data.
        islands: the clients that are there anyway.
        canaries: by default 1,000 users.
        delta: delta of the claim.
        accountant: how the ledger is counted; see `atoll.privacy.epsilon_of`.
        adversary: whom the claim is about: ``"server"``, ``"clients"`` or ``"model"``.
        claimed: the claimed epsilon; by default that of the ledger.
        known: a part of the released model that the auditor knows, and subtracts.
        seed: seed of the run; coins and noise do not follow from it.
        engine: the engine.
        folder: a run folder; it then also has ``audit.json``, which the report shows.

    Returns:
        The claim and the lower bound.

    Raises:
        ConfigError: the training releases nothing under privacy, so that there is no claim.
    """
    from atoll.models import linear
    from atoll.simulation import simulate

    planted = (canaries or Canaries()).plant(islands)
    whole = job(planted) if not hasattr(job, "replace") else job
    whole = whole.replace(model=linear(planted.features, planted.classes))
    with tempfile.TemporaryDirectory(prefix="atoll-audit-") as place:
        where = Path(folder) if folder is not None else Path(place) / "run"
        result = simulate(whole, planted.islands, engine=engine, seed=seed, folder=where, progress=False)
        said = claimed_epsilon(where, delta, accountant, adversary, planted.canaries.neighbours)
        if claimed is None and said is None:
            raise ConfigError(
                "the training claims no epsilon: its ledger is empty",
                where="audit",
                remedy="give the training a privacy mechanism, or pass claimed=",
            )
        scores = planted.scores(result.params, None if known is None else known(planted))
        found = planted.audit(scores, claimed if claimed is not None else said or 0.0, delta, adversary)
        if folder is not None:
            write_bytes(where / "audit.json", as_json(found.plain(), indent=1).encode())
    return found


def claimed_epsilon(
    folder: Path, delta: float, accountant: str = "pld", adversary: str = "model", neighbours: str = "add-remove"
) -> float | None:
    """The largest epsilon of a party in the ledger of a run folder; ``None`` if it has no entry."""
    path = folder / "checkpoints" / "ledger.jsonl"
    if not path.exists():
        return None
    tally = LossTally(Ledger(path)).update()
    return tally.most(delta, accountant, adversary, neighbours) if tally.losses else None


# The training that ``atoll privacy audit`` audits: federated averaging under `CentralDP`, with noise that a saboteur may have weakened.


def averaging(planted: Planted, privacy: Mechanism | None, rounds: int, **parts: Any) -> Training:
    """Return federated averaging of everybody on planted data, with a mechanism.

    Args:
        planted: the clients, with canaries.
        privacy: the mechanism.
        rounds: number of rounds.
        parts: further parts of the training.
    """
    import atoll

    fixed: dict[str, Any] = {
        "algorithm": atoll.FedAvg(lr=0.5),
        "selection": atoll.Everyone(),
        "pacing": atoll.Synchronous(quorum=1.0),
        "rounds": rounds,
        "evaluation": atoll.Evaluation(every=rounds),
        "checkpoint_every": rounds,
        "privacy": privacy,
    }
    return atoll.Training(model=atoll.models.linear(planted.features, planted.classes), **{**fixed, **parts})


def central(planted: Planted, epsilon: float, delta: float, rounds: int = 2, sabotage: float = 1.0) -> Training:
    """Return a training of everybody whose rounds cost ``epsilon`` together.

    Args:
        planted: the clients, with canaries.
        epsilon: what the run claims.
        delta: its delta.
        rounds: number of rounds.
        sabotage: factor on the noise; 1 is what the ledger says.
    """
    from .broken import WeakNoise

    return averaging(planted, WeakNoise(epsilon=epsilon, delta=delta, clip=1.0, factor=sabotage), rounds)


# Audit of local randomisers: the server sees each reply, and guesses which of two values the client had.


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
