"""Which clients take part (Figures 5.11 and 5.12), and what FedProf uses: how far a client's profile is from the server's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.learn.profiles import divergence
from atoll.reproduce import Claim, TrainedRun
from atoll.rounds.participation import participation

from . import tasks
from .lab import FedProfProtocol
from .setting import IMAGES, FedProfSetting

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["divergences", "judge_divergences", "judge_participation", "taken_part"]


def taken_part(protocol: FedProfProtocol, trained: Sequence[TrainedRun]) -> dict[str, float]:
    """Return the mean number of rounds with a client of each quality, over clients and seeds; ``""`` is good data.

    FedProf's survey of all clients before its first round does not count.

    Args:
        protocol: of the trainings.
        trained: the trainings of a cell, one for each seed.
    """
    means: dict[str, list[float]] = {}
    for seed, run in enumerate(trained):
        made = tasks.islands(protocol.task, seed, protocol.rows, protocol.clients, protocol.tests)
        tags = [made.tags[i] for i in range(len(made))]
        for tag, found in participation(run.rows, len(made)).by_group(tags).items():
            means.setdefault(tag, []).append(found["replied"])
    return {tag: float(np.mean(found)) for tag, found in sorted(means.items())}


def judge_participation(setting: FedProfSetting, counts: Mapping[str, float], rounds: int) -> list[Claim]:
    """Judge Figures 5.11 and 5.12: how often clients of each data quality were selected.

    Args:
        setting: the task.
        counts: kind of data (``""`` for good) -> mean number of selections of such a client.
        rounds: of the run; the figures' are 100 for the S-Task.
    """
    good = counts[""]
    shown = ", ".join(f"{kind or 'good'} {count:.1f}" for kind, count in counts.items())
    if setting.name == "gasturbine":
        scale = rounds / 100
        bad = max(counts[kind] for kind in ("fake", "noise"))
        return [
            Claim(
                "gasturbine, C=0.2: clients with useless or noisy data are selected less than 10 times in 100 rounds",
                "< 10",
                shown,
                bad < 10 * scale and bad < good,
                f"mean selections of a client in {rounds} rounds",
            )
        ]
    excluded = max(counts[kind] for kind in ("irrelevant", "blur"))
    return [
        Claim(
            f"{setting.name}: irrelevant and blurred clients are practically excluded",
            None,
            shown,
            excluded < 0.1 * good,
            f"mean selections in {rounds} rounds; excluded: less than a tenth of a good client's",
        ),
        Claim(
            f"{setting.name}: clients with salt and pepper are selected less often than good ones, and more often than the others",
            None,
            shown,
            excluded < counts["salt_and_pepper"] < good,
            f"mean selections in {rounds} rounds",
        ),
    ]


def divergences(
    protocol: FedProfProtocol, draw: int, params: Mapping[str, NDArray[Any]] | None = None
) -> dict[str, float]:
    """Return the median divergence from the server's profile, by quality of the data; ``""`` is good data.

    Args:
        protocol: the protocol of the clients, which hold images.
        draw: seed of the partition and, without ``params``, of the model.
        params: of a trained model; by default of the model before training.
    """
    import torch

    from atoll.torch import FunctionalModule, params_of, profile
    from atoll.torch.learner import seeded

    made = tasks.islands(protocol.task, draw, protocol.rows, protocol.clients, protocol.tests)
    module = seeded(tasks.lenet(**tasks.model(protocol.task)[1]), draw)
    network = FunctionalModule(module, "cross_entropy", torch.device("cpu"), torch.float32)
    seen = params_of(module) if params is None else params
    own = profile(network, seen, made.test)
    found: dict[str, list[float]] = {}
    for client in range(len(made)):
        found.setdefault(made.tags[client], []).append(divergence(profile(network, seen, made.shard(client)), own))
    return {tag: float(np.median(each)) for tag, each in sorted(found.items())}


def judge_divergences(found: Sequence[Mapping[str, float]], model: str, setting: FedProfSetting = IMAGES) -> Claim:
    """Judge whether profiles place clients with salt and pepper between good ones and all others, as Figure 5.12 does with selections.

    Args:
        found: the results of `divergences`, one for each seed.
        model: the model that made the profiles, in words.
        setting: the task.
    """
    middle = {tag: float(np.median([each[tag] for each in found])) for tag in found[0]}
    odds = np.exp(-setting.alpha * (middle["salt_and_pepper"] - middle[""]))
    others = [min(each["irrelevant"], each["blur"]) for each in found]
    between = sum(each[""] < each["salt_and_pepper"] < other for each, other in zip(found, others, strict=True))
    return Claim(
        f"{setting.name}: seen by {model}, clients with salt and pepper are nearer to the server's data than irrelevant and blurred ones, and farther than good ones",
        None,
        ", ".join(f"{tag or 'good'} {value:.2f}" for tag, value in middle.items()),
        2 * between > len(found),
        f"median divergences, medians of {len(found)} seeds; so in {between} of them. One with salt and pepper is drawn {odds:.1g} times as often as a good one",
    )
