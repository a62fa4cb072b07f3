"""The L-Task's setting with colour images: a part of CIFAR-10, which the thesis does not train.

Shares and kinds of bad data, a dominant class of 60 %, epochs, rate and ``C`` are the L-Task's, with the batches of the
digits. Other settings were fixed before any method was trained. Rounds: twelve, as with the digits, the most that a
quarter of an hour of one processor core allows for five methods and three seeds. Target: the accuracy of a single
client, see `lone_settings`, as the median of the seeds, rounded down to a multiple of 0.05.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.reproduce import Lab, TrainedRun

from .lab import FedProfProtocol, kept, settings
from .setting import IMAGES
from .tasks import coloured

if TYPE_CHECKING:
    from atoll.data import Islands

__all__ = ["COLOUR", "SETTING", "lone", "lone_settings", "target_of", "yardstick"]

COLOUR = FedProfProtocol("cifar10", rows=10_000, clients=100, seeds=3, shares=(0.1,), lengths={"partial": 12})
"""A hundred clients with 100 images each, ten of them per round."""

SETTING = replace(IMAGES, name="cifar10")
"""Table 5.2's L-Task under the name in claims."""

_STEP = 0.05


@functools.lru_cache(maxsize=4)
def lone(draw: int, rows: int) -> Islands:
    """One client with clean training images, tested on the 1,000 held-out images, which nothing else uses.

    Args:
        draw: seed that selects the images.
        rows: how many.

    Raises:
        DataError: no data folder, or files missing from it.
    """
    from atoll.data import iid

    data = coloured(holdout=True)
    chosen = np.sort(np.random.default_rng(draw).permutation(len(data))[:rows])
    return iid(data.take(chosen).with_test(data.test), parties=1, seed=draw)


def lone_settings(protocol: FedProfProtocol, seed: int) -> dict[str, Any]:
    """Return the settings of a single client, with as many clean images as a round uses, and as many local steps as a client that takes part in every round.

    One of its rounds is an epoch, and it is tested after each.
    """
    share = protocol.shares[0]
    made = settings(protocol, "partial", "FedAvg-RP", share, seed)
    cohort = protocol.cohort(share)
    rows = cohort * (protocol.rows // protocol.population())
    epochs = max(1, protocol.length("partial") * SETTING.epochs // cohort)
    del made["devices"]
    return {
        **made,
        "name": f"{protocol.task}-lone",
        "data": {"source": {"name": "atoll.reproduce.fedprof.colour:lone", "draw": seed, "rows": rows}},
        "selection": {"name": "Uniform", "count": 1},
        "algorithm": {**made["algorithm"], "epochs": 1},
        "rounds": epochs,
        "checkpoint_every": epochs,
    }


def yardstick(lab: Lab, protocol: FedProfProtocol) -> list[TrainedRun]:
    """Train the single client, once per seed."""
    return kept(lab, (lone_settings(protocol, seed) for seed in range(protocol.seeds)))


def target_of(lone: Sequence[TrainedRun]) -> float:
    """Return the median of the best accuracies, rounded down to a multiple of 0.05."""
    reached = float(np.median([run.best() for run in lone]))
    # Half a held-out image in 1,000 keeps 0.3, for example, from being rounded to 0.25.
    return round(math.floor((reached + 0.0005) / _STEP) * _STEP, 2)
