"""Transfer between parties that share few rows: SFTL and SFHTL over the overlap, and FedHealth with 25 users.

Source: the survey "Federated learning without full labels", sections 5.1 and 5.2 (equations 102 and 103), which describes the methods and prints no numbers; Liu et al. 2020, "A Secure Federated
Transfer Learning Framework", Feng et al. 2022, "Semi-Supervised Federated Heterogeneous Transfer Learning", and Chen et al. 2020, "FedHealth". Their data are not public as they were cut, so the
people are drawn, and scikit-learn's table of breast cancers is cut in two. What holds is our own measure.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import atoll
from atoll.core.persistence.named_results import NamedResults
from atoll.data import Dataset, Islands
from atoll.labels import DomainNetwork, UserAdaptation
from atoll.labels.methods.user_adaptation import PERSONAL
from atoll.reducers import Encrypted
from atoll.reproduce import Claim, Entry, keeping_nothing
from atoll.secure.encrypted import Paillier
from atoll.trees.tree import score
from atoll.vertical import SFHTL, SFTL, Vertical, VerticalModel, VerticalResult
from atoll.vertical.model import GuestRows
from atoll.vertical.tables import PartyTable, read_labels

__all__ = ["ENTRY"]

_OVER, _WEARABLE = "", "FedHealth: 25 users"
_USERS, _CLASSES, _SENSORS = 25, 5, 12


@keeping_nothing("vertical-transfer")
def _run(quick: bool) -> list[Claim]:
    made = _people_over_overlap(quick)
    if not quick:
        made += _breast_cancer()
    return [*made, *_protocols(quick), *_fedhealth(quick)]


# Little overlap.


def _draw_people(seed: int, rows: int) -> Dataset:
    """Four hidden traits, 20 columns that are noisy mixtures of them, and labels with log-odds 1.5 times another mixture."""
    rng = np.random.default_rng(seed)
    traits, mixture, wish = rng.normal(size=(rows, 4)), rng.normal(size=(4, 20)) / 2, rng.normal(size=4)
    x = traits @ mixture + rng.normal(size=(rows, 20))
    y = (rng.random(rows) < 1 / (1 + np.exp(-1.5 * traits @ wish / np.linalg.norm(wish)))).astype(np.int64)
    return Dataset(
        {"x": x, "y": y, "id": np.arange(rows)}, task="classification", features=[f"c{i}" for i in range(20)]
    )


def _transferred(data: Dataset, overlap: float, seed: int) -> dict[str, float]:
    """The measure of rows that the target has alone: by each method, by the target alone with labels of the shared rows, and with labels of all its rows."""
    names = list(data.about.features)
    owners = {"source": names[: len(names) // 2], "target": names[len(names) // 2 :]}
    tables = atoll.data.transfer(data, parties=owners, overlap=overlap, seed=seed)
    place = {one: i for i, one in enumerate(data["id"].tolist())}
    truth = np.asarray(data.y)[[place[one] for one in tables["target"]["id"].tolist()]]
    shared = np.isin(tables["target"]["id"], tables["source"]["id"])
    found: dict[str, float] = {}
    models: Sequence[VerticalModel] = (SFTL(security="none"), SFHTL())
    for model in models:
        result: Any = atoll.simulate(Vertical(model=model, test=0.0), tables, engine="inline", progress=False)
        found[type(model).__name__] = _measure(
            result, truth[~shared], result.predict_own("target", tables["target"])[~shared]
        )
    table = PartyTable.of(tables["target"], "target", key="id", precision=np.float64)
    objective = read_labels(PartyTable.of(tables["source"], "source", label="y"), "y").objective
    for name, rows in (("alone", shared), ("all labels", np.ones(len(truth), bool))):
        learner = SFHTL(pseudo=0.0)  # with one party: a representation of its columns, and a classifier
        part = learner.train_pooled(GuestRows(table.x[rows], truth[rows].astype(np.float64), objective))
        made = objective.predict(learner.margins(part, table.x[~shared], []))
        found[name] = score(objective, truth[~shared], made)[1]
    return found


def _measure(result: VerticalResult, truth: Any, predicted: Any) -> float:
    made = predicted[:, None] if predicted.ndim == 1 else predicted
    return float(score(result.objective, truth, made)[1])


def _mean(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: round(float(np.mean([row[name] for row in rows])), 3) for name in rows[0]}


def _people_over_overlap(quick: bool) -> list[Claim]:
    overlaps, seeds, rows = ((0.03, 0.5), 3, 600) if quick else ((0.01, 0.03, 0.1, 0.25, 0.5), 5, 1000)
    by = {share: [_transferred(_draw_people(seed, rows), share, seed) for seed in range(seeds)] for share in overlaps}
    where = f"{rows:,} drawn people, {seeds} seeds, means; AUC of the rows that the target has alone"
    made = [
        Claim.figure(f"{share:.0%} shared: {name}", value, where, _OVER)
        for share, found in by.items()
        for name, value in _mean(found).items()
    ]
    few, many = by[overlaps[0]], by[overlaps[-1]]
    for name in ("SFTL", "SFHTL"):
        gains = [np.array([one[name] - one["alone"] for one in rows_]) for rows_ in (few, many)]
        mean, doubt = float(gains[0].mean()), 2 * float(gains[0].std(ddof=1)) / np.sqrt(len(gains[0]))
        made.append(
            Claim(f"{name} teaches the target more than the labels of the few shared rows do", "more than 0", round(mean, 3), None if abs(mean) <= doubt else mean > 0,
                  f"gain of AUC at {overlaps[0]:.0%} shared rows; two standard errors are {doubt:.3f}, within which nothing is decided", _OVER)
        )  # fmt: skip
        where = f"at {overlaps[-1]:.0%}: labels of many shared rows need no transfer"
        made.append(
            Claim.figure(
                f"gain of {name} where half of the rows are shared", round(float(gains[1].mean()), 3), where, _OVER
            )
        )
    return made


def _breast_cancer() -> list[Claim]:
    """Scikit-learn's table, cut in two."""
    data = atoll.data.breast_cancer()
    x = np.asarray(data.x, np.float64).reshape(len(data), -1)
    columns = {"x": x, "y": np.asarray(data.y), "id": np.arange(len(x))}
    table = Dataset(columns, task="classification", classes=2, features=[f"c{i}" for i in range(x.shape[1])])
    made = []
    for share in (0.03, 0.1):
        found = _mean([_transferred(table, share, seed) for seed in range(3)])
        where = "first half of the columns at the source; AUC of the rows that the target has alone, 3 seeds, means"
        made += [
            Claim.figure(f"breast cancer, {share:.0%} shared: {one}", value, where, _OVER)
            for one, value in found.items()
        ]
    return made


def _protocols(quick: bool) -> list[Claim]:
    """The same training under each protocol."""
    rows, steps, bits = (60, 3, 512) if quick else (150, 3, 2048)
    tables = atoll.data.transfer(
        _draw_people(0, rows), parties={"source": range(10), "target": range(10, 20)}, overlap=0.2
    )
    nets, costs = {}, {}
    ciphers = {"paillier": {"cipher": Paillier(key_bits=bits, insecure=quick)}, "shared": {}, "none": {}}
    for security, more in ciphers.items():
        model = SFTL(security=security, steps=steps, **more)  # type: ignore[arg-type]
        result: Any = atoll.simulate(Vertical(model=model, test=0.0), tables, engine="inline", progress=False)
        halves = [result.replies[name]["half"]["part"]["net"]["encode"] for name in result.parties]
        nets[security], costs[security] = np.concatenate(halves), result.cost["bytes"]
    same, gap = np.array_equal(nets["paillier"], nets["shared"]), float(np.abs(nets["paillier"] - nets["none"]).max())
    where = f"{steps} steps over {round(0.2 * rows)} shared rows, keys of {bits} bits; bytes: " + ", ".join(
        f"{name} {value:,.0f}" for name, value in costs.items()
    )
    return [
        Claim("SFTL by Paillier and by shares is one model", "equal", "equal" if same else "different", same, f"all weights of both parties, to the last bit; {where}", _OVER),
        Claim("SFTL by either protocol is plain SFTL", "at most 1e-5", float(f"{gap:.1g}"), gap <= 1e-5, f"the largest difference of a weight; {where}", _OVER),
    ]  # fmt: skip


# FedHealth.


def _draw_users(seed: int) -> tuple[Dataset, list[Dataset], list[Dataset]]:
    """Public rows, and 25 users' training and test rows. Each user's sensors are mixed and shifted in a way of its own."""
    rng = np.random.default_rng(seed)
    centres = 1.2 * rng.normal(size=(_CLASSES, _SENSORS))

    def rows(count: int, mixing: Any, shift: Any) -> Dataset:
        y = rng.integers(0, _CLASSES, count)
        x = (centres[y] + rng.normal(size=(count, _SENSORS))) @ mixing + shift
        return Dataset({"x": x.astype(np.float32), "y": y}, task="classification", classes=_CLASSES)

    public = rows(400, np.eye(_SENSORS), 0.0)
    users = []
    for _ in range(_USERS):
        own = np.eye(_SENSORS) + 0.35 * rng.normal(size=(_SENSORS, _SENSORS)), 0.5 * rng.normal(size=_SENSORS)
        users.append((rows(30, *own), rows(100, *own)))
    return public, [one[0] for one in users], [one[1] for one in users]


def _network() -> Any:
    """A network whose first weights are drawn from a generator of its own: normal, with the deviation ``1 / sqrt(inputs)``."""
    import torch
    from torch import nn

    features = nn.Sequential(nn.Linear(_SENSORS, 24), nn.ReLU(), nn.Linear(24, 12))
    made, rng = DomainNetwork(features, nn.Sequential(nn.ReLU(), nn.Linear(12, _CLASSES))), np.random.default_rng(0)
    with torch.no_grad():
        for value in made.parameters():
            drawn = (
                rng.normal(size=tuple(value.shape)) / np.sqrt(value.shape[-1])
                if value.ndim > 1
                else np.zeros(value.shape)
            )
            value.copy_(torch.from_numpy(drawn))
    return made


def _fit(params: dict[str, Any], rows: Dataset, steps: int) -> dict[str, Any]:
    """Gradient descent on one party's rows: `UserAdaptation` without a distance."""
    rule = UserAdaptation(model=_network, params=params, public=rows, weight=0.0, steps=steps, lr=0.1)
    return _adapted(rule, [rows])[0]


def _adapted(rule: UserAdaptation, users: Sequence[Dataset]) -> list[dict[str, Any]]:
    named = {f"user-{i:02}": rows for i, rows in enumerate(users)}
    with tempfile.TemporaryDirectory() as folder:
        atoll.simulate(rule.program(), named, engine="inline", progress=False, results=folder)
        kept = NamedResults(Path(folder))
        return [{key: np.array(value) for key, value in kept.get(name, PERSONAL).items()} for name in named]


def _average(params: dict[str, Any], users: Sequence[Dataset], rounds: int, seed: int) -> dict[str, Any]:
    """Federated averaging from these parameters, under Paillier encryption."""
    import torch

    network = _network()
    network.load_state_dict({name: torch.from_numpy(value) for name, value in params.items()})
    job = atoll.Training(
        model=network.alone(), algorithm=atoll.FedAvg(lr=0.1, steps=5, batch_size=30), selection=atoll.Everyone(), rounds=rounds, compile="never",
        reducer=Encrypted(scheme="paillier"),
    )  # fmt: skip
    islands = Islands.from_datasets({f"user-{i:02}": one for i, one in enumerate(users)})
    result: Any = atoll.simulate(job, islands, engine="inline", progress=False, seed=seed)
    return {name: np.array(value) for name, value in result.params.items()}


def _right(params: dict[str, Any], rows: Dataset) -> float:
    import torch
    from torch.func import functional_call

    with torch.no_grad():
        given = {name: torch.from_numpy(np.array(value)) for name, value in params.items()}
        said = functional_call(_network().eval(), given, (torch.from_numpy(np.array(rows.x)),))
    return float((said.argmax(1).numpy() == np.asarray(rows.y)).mean())


def _fedhealth(quick: bool) -> list[Claim]:
    seeds, rounds = (1, 2) if quick else (2, 3)
    rows: list[dict[str, float]] = []
    for seed in range(seeds):
        public, train, test = _draw_users(seed)
        begin = {name: value.detach().numpy() for name, value in _network().named_parameters()}
        cloud = _fit(begin, public, 150)
        average = _average(cloud, train, rounds, seed)
        personal = _adapted(
            UserAdaptation(model=_network, params=average, public=public, frozen=("features.0",), steps=60, lr=0.1),
            train,
        )
        tuned = _adapted(
            UserAdaptation(model=_network, params=average, public=public, weight=0.0, steps=60, lr=0.1), train
        )
        alone = [_fit(begin, own, 150) for own in train]
        rows.append(
            {
                "the cloud's model of public rows": float(np.mean([_right(cloud, one) for one in test])),
                "a user's own model": float(np.mean([_right(own, one) for own, one in zip(alone, test, strict=True)])),
                "the homomorphic average": float(np.mean([_right(average, one) for one in test])),
                "FedHealth": float(np.mean([_right(own, one) for own, one in zip(personal, test, strict=True)])),
                "plain fine-tuning instead of CORAL": float(
                    np.mean([_right(own, one) for own, one in zip(tuned, test, strict=True)])
                ),
            }
        )
    found = _mean(rows)
    where = f"mean accuracy of {_USERS} users with 30 training rows each, {seeds} seed{'s' * (seeds > 1)}, {rounds} rounds under Paillier; drawn sensors, mixed by each user"
    gap = found["FedHealth"] - max(
        found["the homomorphic average"], found["the cloud's model of public rows"], found["a user's own model"]
    )
    return [
        *(Claim.figure(name, value, where, _WEARABLE) for name, value in found.items()),
Claim.figure("FedHealth less the best of the first three", round(gap, 3), f"{where}; no statement, since seeds are few", _WEARABLE),
    ]  # fmt: skip


ENTRY = Entry(
    name="vertical-transfer",
    title="Transfer between parties that share few rows: SFTL, SFHTL and FedHealth",
    source="Federated learning without full labels: a survey, sections 5.1 and 5.2 (equations 102, 103); Liu et al. 2020; Feng et al. 2022; Chen et al. 2020",
    run=_run,
)
