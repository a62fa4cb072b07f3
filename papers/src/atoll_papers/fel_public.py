"""Federated ensembles on public data: films of MovieLens, and attributes of faces, in the form of FEL's Table 8.

Source: Hejazinia et al. 2022, FEL, Tables 7 and 8: production, Taobao and CelebA. Of these, CelebA's attributes are to be had, without the images; MovieLens 100K stands for a recommender with users
that are known. How ours differ:

* **celeba**: 39 attributes of an image tell whether the person smiles, where the paper has the images and a CNN, and asynchronous rounds. Clusters follow the attributes of a person's images, as in
  the paper, but never "smiling" itself, which is the label.
* **movielens**: whether a user gives a film four stars or more. A leaf reads the film's kinds and year, and a frozen embedding of films, which the server makes of opt-in users' ratings, as the paper does
  for Taobao. Clusters follow age and gender.

With ``--quick`` rows are drawn, in the same tables.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

import atoll
from atoll.core.errors import DataError
from atoll.data import Islands, celeba_attributes, movielens_100k
from atoll.data.folder import locate
from atoll.ensemble import AttributeClusters, CentroidClusters, Federated
from atoll.models import mlp
from atoll.reproduce import Claim, Entry, keeping_nothing
from atoll.study import EnsembleArms, compare_ensemble

from .ensembles import hold_out_quarter

__all__ = [
    "CELEBA_ENTRY",
    "MOVIELENS_ENTRY",
    "draw_faces",
    "draw_films",
    "embed_films",
    "faces_of",
    "films_of",
    "read_faces",
    "read_films",
]

Table = Mapping[str, NDArray[Any]]
_WIDTH = 8
"""Numbers of a film's embedding; the paper's have 32, of many more rows."""
_AGES = (18, 25, 35, 45, 56)
"""Where MovieLens' own groups of ages begin, the youngest two in one."""


# ---------------------------------------------------------------- films


def read_films() -> Table:
    """Read MovieLens 100K: for each rating ``user``, ``item`` and ``stars``; by user ``age`` and ``male``; by item ``kinds`` and ``year``, 0 if it is not known.

    Raises:
        DataError: a file is missing, or a line is none of its format.
    """
    rated = movielens_100k()
    users, items = (_lines(locate(None, "movielens_100k", name)) for name in ("u.user", "u.item"))
    try:
        dates = [row[2].rpartition("-")[2] for row in items]
        return {
            "user": np.asarray(rated["x"])[:, 0],
            "item": np.asarray(rated["x"])[:, 1],
            "stars": np.asarray(rated["y"]),
            "age": np.array([int(row[1]) for row in users]),
            "male": np.array([row[2] == "M" for row in users], np.int64),
            "kinds": np.array([[int(word) for word in row[5:24]] for row in items]),
            "year": np.array([int(word) if word else 0 for word in dates]),
        }
    except (ValueError, IndexError) as error:
        raise DataError(f"a line of users or items: {error}", where="movielens_100k", remedy="fetch the files again") from error  # fmt: skip


def _lines(path: Any) -> list[list[str]]:
    opened: Any = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="latin-1") as file:
        return [line.rstrip("\n").split("|") for line in file if line.strip()]


def draw_films(seed: int, users: int = 120, items: int = 200, each: int = 30) -> Table:
    """Draw ratings in the same tables: stars follow a user's taste in kinds, which depends on age and gender, and how good a film is."""
    draw = np.random.default_rng(seed)
    kinds = (draw.random((items, 19)) < 0.12).astype(np.int64)
    age, male = draw.integers(15, 70, users), draw.integers(0, 2, users)
    taste = draw.normal(size=(len(_AGES), 19))[np.digitize(age, _AGES[1:])] + draw.normal(size=(2, 19))[male]
    user = np.repeat(np.arange(users), each)
    item = np.concatenate([draw.choice(items, each, replace=False) for _ in range(users)])
    liking = (taste[user] * kinds[item]).sum(1) + draw.normal(size=items)[item] + 0.5 * draw.normal(size=len(user))
    return {
        "user": user,
        "item": item,
        "stars": np.clip(np.round(3.5 + liking), 1, 5),
        "age": age,
        "male": male,
        "kinds": kinds,
        "year": draw.integers(1950, 1999, items),
    }


def embed_films(table: Table, opt_in: NDArray[np.int64], items: int) -> NDArray[np.float64]:
    """Return a frozen embedding of films, ``(items, 8)``: the largest right singular vectors of opt-in users' stars, each user's less its mean; zeros for films that they have not rated."""
    own = np.isin(table["user"], opt_in)
    matrix = np.zeros((len(opt_in), items))
    place = np.searchsorted(opt_in, table["user"][own])
    seen = np.bincount(place, minlength=len(opt_in))
    mean = np.bincount(place, table["stars"][own], minlength=len(opt_in)) / np.maximum(seen, 1)
    matrix[place, table["item"][own]] = table["stars"][own] - mean[place]
    largest = np.linalg.svd(matrix, full_matrices=False)[2][:_WIDTH]
    made = np.zeros((items, _WIDTH))
    made[:, : len(largest)] = largest.T * np.sqrt(items)
    return made


def films_of(table: Table, job: Federated, seed: int) -> Islands:
    """Return each user's ratings, of which a quarter, drawn, is for tests, with public columns ``age`` (its group), ``years`` and ``male``."""
    users = np.arange(len(table["age"]))
    away = {str(name) for name in job.draw_opt_in([f"user-{user}" for user in users])}
    opt_in = np.array([user for user in users if f"user-{user}" in away], np.int64)
    films = embed_films(table, opt_in, len(table["year"]))
    year = np.where(table["year"] > 0, (table["year"] - 1985) / 10, 0.0)
    x = np.column_stack([table["kinds"], year, films])[table["item"]].astype(np.float32)
    owner = table["user"]
    columns = {
        "x": x,
        "y": (table["stars"] >= 4).astype(np.int64),
        "age": np.digitize(table["age"], _AGES[1:])[owner],
        "years": table["age"][owner],
        "male": table["male"][owner],
    }
    return hold_out_quarter(owner, columns, seed)


# ---------------------------------------------------------------- faces


def read_faces() -> Table:
    """Read CelebA's attributes: ``x``, 39 of each image without "smiling"; ``y``, whether the person smiles; ``user``, the person."""
    whole = celeba_attributes()
    parts = [whole, whole.test]
    return {name: np.concatenate([np.asarray(part[key]) for part in parts if part is not None]) for name, key in (("x", "x"), ("y", "y"), ("user", "identity"))}  # fmt: skip


def draw_faces(seed: int, users: int = 200, each: int = 16) -> Table:
    """Draw attributes in the same tables: people of three kinds, which smile with other attributes."""
    draw = np.random.default_rng(seed)
    kind = np.repeat(draw.integers(0, 3, users), each)
    user = np.repeat(np.arange(users), each)
    chance = draw.uniform(0.1, 0.6, (3, 39))[kind]
    x = (draw.random((len(user), 39)) < chance).astype(np.float32)
    score = ((x - chance) * (draw.normal(size=39) + draw.normal(size=(3, 39)))[kind]).sum(1)
    return {"x": x, "y": (draw.random(len(user)) < 1 / (1 + np.exp(-2 * score))).astype(np.int64), "user": user}


def faces_of(table: Table, people: int, seed: int) -> Islands:
    """Return some people's images, of which a quarter, drawn, is for tests, with public columns: each attribute, and the third of people by how many attributes their images have."""
    count = np.bincount(table["user"])
    able = np.flatnonzero(count >= 12)
    chosen = np.sort(np.random.default_rng(seed).permutation(able)[:people])
    rows = np.isin(table["user"], chosen)
    x, y, owner = table["x"][rows], table["y"][rows].astype(np.int64), table["user"][rows]
    place = np.searchsorted(chosen, owner)
    many = np.bincount(place, x.sum(1)) / np.bincount(place)
    third = np.digitize(many, np.quantile(many, [1 / 3, 2 / 3]))[place]
    columns = {"x": x, "y": np.maximum(y, 0), "third": third, **{f"a{k}": x[:, k] for k in range(x.shape[1])}}
    return hold_out_quarter(owner, columns, seed)


# ---------------------------------------------------------------- Table 8


def _job(rule: Any, inputs: int, rounds: int, lr: float, batch: int = 32) -> Federated:
    leaf = atoll.Training(
        model=mlp(inputs, 2, (4,)),
        algorithm=atoll.FedAvg(lr=lr, batch_size=batch),
        rounds=rounds,
        selection=atoll.selection.Uniform(0.1),
    )
    return Federated(clusters=rule, leaf=leaf, opt_in=0.1, smallest=2)


def _judge(found: EnsembleArms, measure: str, part: str, paper: Mapping[str, float]) -> list[Claim]:
    """Judge the order of Table 8, and say what each arm scores."""
    score = {arm: each[measure] for arm, each in found.scores.items()}
    base = score["baseline"]
    told = ", ".join(f"{arm} {value:.4f}" for arm, value in score.items())
    seeds = len(found.values["baseline"][measure])

    def gain(arm: str) -> str:
        return f"{100 * (score[arm] / base - 1):+.2f} %"

    return [
        Claim.figure(f"{measure} of each arm", told, f"means of {seeds} seeds; one model has {found.parameters['baseline']} numbers, the ensemble {found.parameters['ensemble']}", part),
        Claim("the mean of leaves gains over one model", f"{paper['mean']:+.2f} %", gain("mean"), score["mean"] > base, "", part),
        Claim("the over-arch gains over one model", f"{paper['over_arch']:+.2f} %", gain("over_arch"), score["over_arch"] > base, f"opt-in data alone: {gain('opt_in_alone')}", part),
        Claim("the over-arch is the best of mean, median, maximum and itself", "yes", max(("mean", "median", "max", "over_arch"), key=score.__getitem__), score["over_arch"] >= max(score[arm] for arm in ("mean", "median", "max")), "", part),
        Claim("the gate is not worse than a user's own leaf", None, f"{score['gate'] - score['own_leaf']:+.4f}", score["gate"] >= score["own_leaf"] - 0.01, "at most .01 worse", part),
    ]  # fmt: skip


_TAOBAO, _CELEBA = {"mean": 1.92, "over_arch": 2.31}, {"mean": 1.02, "over_arch": 1.55}


@keeping_nothing("fel-movielens")
def _run_films(quick: bool) -> list[Claim]:
    rules: dict[str, Any] = {"Clusters by age (5)": AttributeClusters("age")}
    if not quick:
        rules |= {"Clusters by gender (2)": AttributeClusters("male"), "Clusters by k-means of age and gender (4)": CentroidClusters(4, ["years", "male"])}  # fmt: skip
    table = None if quick else read_films()
    made = []
    for part, rule in rules.items():
        job = _job(rule, 20 + _WIDTH, 10 if quick else 60, 0.1)

        def load(seed: int, job: Federated = job) -> Islands:
            return films_of(draw_films(seed) if table is None else table, job, seed)

        found = compare_ensemble(job, load, mlp(20 + _WIDTH, 2, (16,)), seeds=1 if quick else 3, parallel=1, tell=lambda line: None)  # fmt: skip
        made += _judge(found, "auc", part, _TAOBAO)
    return made


@keeping_nothing("fel-celeba")
def _run_faces(quick: bool) -> list[Claim]:
    every = [f"a{k}" for k in range(39)]
    rules: dict[str, Any] = {"Clusters by k-means of attributes (3)": CentroidClusters(3, every)}
    if not quick:
        rules |= {"Clusters by number of attributes (3)": AttributeClusters("third"), "Clusters by k-means of attributes (5)": CentroidClusters(5, every)}  # fmt: skip
    table = None if quick else read_faces()
    made = []
    for part, rule in rules.items():
        job = _job(rule, 39, 8 if quick else 60, 0.5, batch=8)

        def load(seed: int) -> Islands:
            return faces_of(draw_faces(seed) if table is None else table, 150 if quick else 1000, 0 if table is None else seed)  # fmt: skip

        found = compare_ensemble(job, load, mlp(39, 2, (16,)), seeds=1 if quick else 3, parallel=1, tell=lambda line: None)  # fmt: skip
        made += _judge(found, "accuracy", part, _CELEBA)
    return made


_FEL = "Hejazinia et al. 2022, FEL: High Capacity Learning for Recommendation and Ranking via Federated Ensemble Learning, Table 8"  # fmt: skip
MOVIELENS_ENTRY = Entry(
    name="fel-movielens",
    title="Federated ensembles on MovieLens: clusters of users by age and gender",
    source=_FEL,
    run=_run_films,
    needs="MovieLens 100K below ATOLL_DATA; nothing with --quick",
    data=("movielens_100k",),
    quick_data=(),
)
CELEBA_ENTRY = Entry(
    name="fel-celeba",
    title="Federated ensembles on CelebA's attributes: clusters of people",
    source=_FEL,
    run=_run_faces,
    needs="CelebA's attributes below ATOLL_DATA; nothing with --quick",
    data=("celeba_attributes",),
    quick_data=(),
)
