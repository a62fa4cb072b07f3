"""Ensembles of small models on segments that the entry makes; one-shot learning and sub-models on the digits that come with Atoll.

Sources: Hejazinia et al. 2022 (FEL: segments, where each cluster needs a model of its own, stand for its private data), Guha, Talwalkar, Smith 2019 and Gong et al. 2022 (one shot), Lin et al. 2020
(FedDF), Diao et al. 2021, Horvath et al. 2021, Caldas et al. 2018 (sub-models). The numbers beside ours for digits are those of an earlier sketch, means of three seeds; a line holds within four
points of it.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import atoll
from atoll.data import Dataset, Islands
from atoll.ensemble import (
    AttributeClusters,
    DeviceWidths,
    Distillation,
    FedDF,
    Federated,
    FederatedDropout,
    FjORD,
    HeteroFL,
    IndividualClusters,
    RandomClusters,
    average_models,
    distil,
)
from atoll.models import mlp
from atoll.reproduce import Claim, Entry, keeping_nothing
from atoll.study import EnsembleArms, compare_ensemble

__all__ = ["ONE_SHOT_ENTRY", "SEGMENTS_ENTRY", "SUB_MODELS_ENTRY", "digits_of", "hold_out_quarter", "segments_of"]

_WITHIN = 4.0
_SEGMENTS, _RANDOM = "Clusters are the segments", "Clusters are random"


def segments_of(
    seed: int,
    users: int = 240,
    segments: int = 4,
    inputs: int = 8,
    rows: int = 40,
    apart: float = 0.7,
    differ: float = 1.0,
) -> Islands:
    """Return users of segments, of whose rows a quarter is for tests: ``x = apart mu_s + noise``, and ``logit = 1.5 (x - apart mu_s) w_s``.

    Args:
        seed: of the draw.
        users: how many.
        segments: how many.
        inputs: features of a row.
        rows: of each user.
        apart: how far the segments' rows lie apart.
        differ: how far their slopes differ: ``w_s = differ w'_s + sqrt(1 - differ^2) w``, with ``w`` of all segments.
    """
    draw = np.random.default_rng(seed)
    means, slopes = draw.normal(size=(segments, inputs)), draw.normal(size=(segments, inputs))
    if differ < 1:
        slopes = differ * slopes + np.sqrt(1 - differ**2) * np.random.default_rng([seed, 1]).normal(size=inputs)
    made = []
    for user in range(users):
        s = user % segments
        own = draw.normal(size=(rows, inputs))
        chance = 1 / (1 + np.exp(-1.5 * own @ slopes[s]))
        x, y = (apart * means[s] + own).astype(np.float32), (draw.random(rows) < chance).astype(np.int64)
        made.append({"x": x, "y": y, "segment": np.full(rows, s)})
    columns = {name: np.concatenate([one[name] for one in made]) for name in made[0]}
    return hold_out_quarter(np.repeat(np.arange(users), rows), columns)


def hold_out_quarter(users: np.ndarray[Any, Any], columns: Mapping[str, Any], seed: int | None = None) -> Islands:
    """Return each user's rows, of which a quarter is for tests, with a column ``user``.

    Args:
        users: the user of each row, a whole number.
        columns: ``x``, ``y`` and public columns.
        seed: of the draw of test rows; ``None`` for each user's first ones.
    """
    parts, tests = {}, []
    order = np.argsort(users, kind="stable")
    known, begins = np.unique(users[order], return_index=True)
    for user, own in zip(known, np.split(order, begins[1:]), strict=True):
        name = f"user-{int(user)}"
        mine = own if seed is None else np.random.default_rng([seed, int(user)]).permutation(own)
        held = len(mine) // 4
        rows = {key: value[mine] for key, value in columns.items()} | {"user": np.full(len(mine), name)}
        parts[name] = Dataset({key: value[held:] for key, value in rows.items()}, task="classification")
        tests.append({key: value[:held] for key, value in rows.items()})
    rest = {key: np.concatenate([one[key] for one in tests]) for key in tests[0]}
    return Islands.from_datasets(parts, test=Dataset(rest, task="classification"))


def _ensemble(rule: Any, rounds: int) -> Federated:
    leaf = atoll.Training(model=mlp(8, 2, (4,)), algorithm=atoll.FedAvg(lr=0.3, batch_size=10), rounds=rounds)
    return Federated(clusters=rule, leaf=leaf, opt_in=0.1)


def _arms(rule: Any, quick: bool) -> EnsembleArms:
    users, rounds = (60, 8) if quick else (240, 30)
    job = _ensemble(rule, rounds)
    return compare_ensemble(
        job, lambda seed: segments_of(seed, users), mlp(8, 2, (16,)), seeds=2 if quick else 4, parallel=1, tell=lambda line: None
    )  # fmt: skip


def _aucs(found: EnsembleArms) -> dict[str, float]:
    return {arm: each["auc"] for arm, each in found.scores.items()}


@keeping_nothing("fel-segments")
def _run_segments(quick: bool) -> list[Claim]:
    made = []
    for part, rule in ((_SEGMENTS, AttributeClusters("segment")), (_RANDOM, RandomClusters(4))):
        found = _arms(rule, quick)
        auc = _aucs(found)
        spread = {arm: list(each["auc"].values()) for arm, each in found.values.items()}
        told = ", ".join(f"{arm} {value:.3f}" for arm, value in auc.items())
        seeds = len(spread["baseline"])
        made.append(Claim.figure("AUC of each arm", told, f"means of {seeds} seeds; one model has {found.parameters['baseline']} numbers, the ensemble {found.parameters['ensemble']}", part))  # fmt: skip
        if part == _SEGMENTS:
            gains = [gate - base for gate, base in zip(spread["gate"], spread["baseline"], strict=True)]
            losses = [own - gate for gate, own in zip(spread["gate"], spread["own_leaf"], strict=True)]
            made += [
                Claim("an ensemble with a gate is better than one model of all", "over-arch: +0.66 to +2.31 %", f"{statistics.fmean(gains):+.3f}", min(gains) >= 0.05, "AUC, at least .05 with every seed; the paper's data are not public, and its gate is an over-arch", part),
                Claim("the gate is not worse than the user's own leaf", None, f"{-max(losses):+.3f}", max(losses) <= 0.01, "the least favourable seed, at most .01 worse", part),
                Claim("the over-arch is better than the mean of leaves (Table 8)", "0.5544 > 0.5522", f"{auc['over_arch']:.3f}, {auc['mean']:.3f}", auc["over_arch"] >= auc["mean"], "Taobao's AUC beside ours on segments", part),
                Claim("the mean of leaves is not worse than one model (Table 8)", "0.5522 > 0.5418", f"{auc['mean']:.3f}, {auc['baseline']:.3f}", auc["mean"] >= auc["baseline"] - 0.005, "", part),
            ]  # fmt: skip
        else:
            made.append(Claim("clusters that know nothing of users gain little", None, f"{auc['gate'] - auc['baseline']:+.3f}", auc["gate"] - auc["baseline"] < 0.05, "the gate against one model, below .05", part))  # fmt: skip
    return made


# ---------------------------------------------------------------- digits


def digits_of(seed: int) -> tuple[Islands, np.ndarray[Any, Any]]:
    """Return ten clients of a Dirichlet partition (.3) of the digits, and 400 rows without labels, which no client has."""
    digits = atoll.data.digits()
    order = np.random.default_rng(seed).permutation(len(digits))
    rows = np.asarray(digits.x)[order[:400]]
    return atoll.data.dirichlet(digits.take(np.sort(order[400:])), parties=10, alpha=0.3, seed=seed), rows


def _right(model: Any, islands: Islands) -> float:
    """Return the accuracy of a model of the digits on test rows, in %."""
    import torch

    test = islands.test
    with torch.no_grad():
        return 100 * float((model(torch.tensor(test.x)).argmax(-1).numpy() == np.asarray(test.y)).mean())  # type: ignore[union-attr]


def _beside(found: Sequence[Mapping[str, float]], beside: Mapping[str, float], part: str) -> list[Claim]:
    made = []
    for name in found[0]:
        values = [one[name] for one in found]
        mean, said = statistics.fmean(values), ", ".join(f"{value:.0f}" for value in values)
        if name in beside:
            near = abs(mean - beside[name]) <= _WITHIN
            made.append(Claim(f"{name}: accuracy in %", beside[name], f"{mean:.1f}", near, f"within {_WITHIN:g}; by seed {said}", part))  # fmt: skip
        else:
            made.append(Claim.figure(f"{name}: accuracy in %", f"{mean:.1f}", f"by seed {said}", part))
    return made


ONE_SHOT = {"alone": 54.0, "mean of weights": 73.0, "mean of logits": 84.0, "mean of probabilities": 92.0, "distilled": 83.0}  # fmt: skip
"""Per cent after one round of 40 epochs, in an earlier sketch."""
ROUNDS = {"FedAvg, 1 round": 67.0, "FedAvg, 8 rounds": 92.0, "FedDF, 1 round": 78.0, "FedDF, 8 rounds": 94.0}
SUB_MODELS = {"HeteroFL": 85.0, "strong half alone": 84.0, "all narrow": 61.0, "all wide": 89.0}


def _digits_training(epochs: int, lr: float, rounds: int, width: int = 32, algorithm: Any = None, **more: Any) -> Any:
    base = atoll.FedAvg(lr=lr, batch_size=10, epochs=epochs)
    return atoll.Training(
        model=mlp(64, 10, (width,)),
        algorithm=base if algorithm is None else algorithm(base),
        rounds=rounds,
        selection=atoll.selection.Everyone(),
        **more,
    )


def _once(seed: int, epochs: int) -> dict[str, float]:
    islands, rows = digits_of(seed)
    leaf = _digits_training(epochs, 0.2, 1, evaluation=atoll.Evaluation(server=False))
    job = Federated(clusters=IndividualClusters(), leaf=leaf, aggregate="logits", smallest=1)
    made = atoll.simulate(job, islands, seed=seed, progress=False).outcome
    student = distil(made.using("mean").model, rows, mlp(64, 10, (32,)), Distillation(steps=600, seed=seed))
    return {
        "alone": statistics.fmean(_right(one, islands) for one in made.leaves),
        "mean of weights": _right(average_models(made.leaves, [float(n) for n in islands.sizes]), islands),
        "mean of logits": 100 * made.scores["logits"]["accuracy"],
        "mean of probabilities": 100 * made.scores["mean"]["accuracy"],
        "distilled": _right(student, islands),
    }


def _rounds(seed: int, epochs: int, rounds: int) -> dict[str, float]:
    islands, rows = digits_of(seed)
    job = _digits_training(epochs, 0.2, rounds)
    plain = atoll.simulate(job, islands, seed=seed, progress=False).metrics.column("test/accuracy")
    fused = atoll.simulate(job.replace(topology=FedDF(rows=rows)), islands, seed=seed, progress=False)
    scores = fused.metrics.column("test/accuracy")
    last = f"{rounds} round{'s' if rounds > 1 else ''}"
    ends = {"1 round": 0, last: rounds - 1}
    return {f"{name}, {end}": 100 * found[at] for name, found in (("FedAvg", plain), ("FedDF", scores)) for end, at in ends.items()}  # fmt: skip


@keeping_nothing("one-shot")
def _run_one_shot(quick: bool) -> list[Claim]:
    seeds = range(1 if quick else 3)
    once = [_once(seed, 4 if quick else 40) for seed in seeds]
    several = [_rounds(seed, 1 if quick else 10, 1 if quick else 8) for seed in seeds]
    beside: tuple[Mapping[str, float], Mapping[str, float]] = ({}, {}) if quick else (ONE_SHOT, ROUNDS)
    best = statistics.fmean(one["mean of probabilities"] - one["mean of weights"] for one in once)
    return [
        *_beside(once, beside[0], "Once"),
        Claim("an ensemble of models trained alone is better than the mean of their weights", None, f"{best:+.1f}", best > 0, "points, mean of probabilities against mean of weights", "Once"),
        *_beside(several, beside[1], "In rounds"),
    ]  # fmt: skip


def _widths(seed: int, rounds: int) -> dict[str, float]:
    islands, _ = digits_of(seed)
    names = [str(name) for name in islands.names]
    weak = DeviceWidths(dict.fromkeys(names[1::2], 0.125))

    def right(among: Islands, width: int = 32, **more: Any) -> float:
        job = _digits_training(2, 0.05, rounds, width, evaluation=atoll.Evaluation(every=rounds), **more)
        return 100 * float(atoll.simulate(job, among, seed=seed, progress=False).metrics.last("test/accuracy"))

    def part(kind: Any) -> float:
        return right(islands, algorithm=lambda base: kind(base, widths=(0.125, 1.0)), topology=weak)

    return {
        "HeteroFL": part(HeteroFL),
        "FjORD": part(FjORD),
        "federated dropout": part(FederatedDropout),
        "strong half alone": right(islands.subset(range(0, len(names), 2))),
        "all narrow": right(islands, width=4),
        "all wide": right(islands),
    }


@keeping_nothing("sub-models")
def _run_sub_models(quick: bool) -> list[Claim]:
    found = [_widths(seed, 4 if quick else 20) for seed in range(1 if quick else 3)]
    mean = {name: statistics.fmean(one[name] for one in found) for name in found[0]}
    part = "Half of ten clients at an eighth of the width"
    return [
        *_beside(found, {} if quick else SUB_MODELS, part),
        Claim("weak clients with a part of the model are better than all with the narrow one", None, f"{mean['HeteroFL']:.1f}, {mean['all narrow']:.1f}", mean["HeteroFL"] > mean["all narrow"], "HeteroFL against width 4 everywhere", part),
        Claim("the whole model everywhere is better still", None, f"{mean['all wide']:.1f}, {mean['HeteroFL']:.1f}", mean["all wide"] > mean["HeteroFL"], "", part),
    ]  # fmt: skip


_FEL = (
    "Hejazinia et al. 2022, FEL: High Capacity Learning for Recommendation and Ranking via Federated Ensemble Learning"
)
SEGMENTS_ENTRY = Entry(
    name="fel-segments",
    title="Federated ensembles on users of segments: every way to join leaves, against one model",
    source=_FEL,
    run=_run_segments,
)
ONE_SHOT_ENTRY = Entry(
    name="one-shot",
    title="One round of ensembles, distillation and FedDF on digits",
    source="Guha, Talwalkar, Smith 2019; Gong et al. 2022; Lin et al. 2020",
    run=_run_one_shot,
)
SUB_MODELS_ENTRY = Entry(
    name="sub-models",
    title="Weak clients that train a part of the model, on digits",
    source="Diao et al. 2021; Horvath et al. 2021; Caldas et al. 2018",
    run=_run_sub_models,
)
