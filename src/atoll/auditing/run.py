"""Audit a training: plant canaries, train, and compare what they prove with what the ledger claims."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.core.algebra.tree import Tree
from atoll.core.calls import checked_call
from atoll.core.errors import ConfigError
from atoll.core.event import Ledger
from atoll.core.persistence.files import as_json, write_bytes
from atoll.privacy import LossTally
from atoll.privacy.canaries import Audit

from .canaries import Canaries, Planted

if TYPE_CHECKING:
    from atoll.learn.training import Training

__all__ = ["audit", "claimed_epsilon"]


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
