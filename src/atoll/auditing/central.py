"""The training that ``atoll privacy audit`` audits: federated averaging under `CentralDP`, with noise that a saboteur may have weakened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atoll.learn.private import Mechanism
    from atoll.learn.training import Training

    from .canaries import Planted

__all__ = ["averaging", "central"]


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
