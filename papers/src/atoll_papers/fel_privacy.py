"""Federated ensembles under differential privacy: Table 9 of FEL, on rows in the format of Taobao's advertisements.

Source: Hejazinia et al. 2022, FEL, Table 9: what each way to join leaves gains over one model with the same noise, for clusters by age (7), consumption (4) and city level (5), and epsilon infinite,
3.78 and 1.56. The paper has 26 million interactions, of which 500 rows are to be had here: too few to train on. So the rows are drawn: public columns of users and items in the sample's format, and
clicks that depend on the items in another way for each age, consumption and city level. Where ``ATOLL_DATA`` has the sample, it is read too, and shows that the format is its own.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import atoll
from atoll.core.errors import DataError
from atoll.data import Islands
from atoll.data.folder import locate
from atoll.ensemble import AttributeClusters, Federated
from atoll.mechanisms import CentralDP
from atoll.models import mlp
from atoll.reproduce import Claim, Entry, keeping_nothing
from atoll.study import EnsembleArms, compare_ensemble

from .ensembles import hold_out_quarter

__all__ = ["ENTRY", "TABLE_9", "draw_impressions", "inputs_of", "read_impressions", "split_users"]

_HISTORY = 50
_BLOCKS = ("behaviour", "category", "brand", "mask", "match")
_SINGLES = (
    "user", "cms_segid", "cms_group_id", "gender", "age", "consumption", "shopping", "occupation", "city", "ad", "item_category", "campaign", "customer", "item_brand", "price", "pid", "clicked",
)  # fmt: skip
_LEVELS = {"age": 7, "consumption": 4, "city": 5}
"""Levels of each column that clusters users; 0 of consumption and city level stands for missing ones."""

Table = Mapping[str, NDArray[Any]]

TABLE_9: Mapping[str, Mapping[float | None, tuple[float, float, float, float]]] = {
    "age": {None: (1.27, -0.23, -0.10, 1.86), 3.78: (0.63, -0.14, 0.11, 0.66), 1.56: (0.32, -0.23, 0.34, 0.68)},
    "consumption": {None: (1.92, -0.46, -1.64, 2.29), 3.78: (0.75, -0.21, 0.03, 1.38), 1.56: (0.69, -0.11, 0.74, 0.76)},
    "city": {None: (1.86, 0.74, -2.07, 2.31), 3.78: (1.49, -0.09, 1.03, 1.93), 1.56: (0.71, -0.37, 1.26, 1.02)},
}
"""Clusters -> epsilon -> gain over one model in per cent, of mean, median, max and over-arch."""
_WAYS = ("mean", "median", "max", "over_arch")


# ---------------------------------------------------------------- rows in the sample's format


def read_impressions(path: Path) -> Table:
    """Read rows of the sample: a history of 50 behaviours in five blocks of columns, then 17 columns of user, item and context.

    A missing number, which is empty or ``NULL``, becomes 0.

    Args:
        path: a CSV file without header, which may be packed by gzip.

    Raises:
        DataError: a row has another number of columns, or a word that is no number.
    """
    wide = _HISTORY * len(_BLOCKS) + len(_SINGLES)
    opened: Any = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", newline="") as file:
        rows = list(csv.reader(file))
    made = np.zeros((len(rows), wide))
    for number, row in enumerate(rows):
        try:
            if len(row) != wide:
                raise ValueError(f"{len(row)} columns")
            made[number] = [0.0 if word in ("", "NULL") else float(word) for word in row]
        except ValueError as error:
            raise DataError(
                f"row {number + 1} cannot be read: {error}",
                where=path.name,
                remedy=f"give rows of {wide} numbers, in the format of Alimama's sampled advertisements",
            ) from error
    blocks = {name: made[:, _HISTORY * k : _HISTORY * (k + 1)] for k, name in enumerate(_BLOCKS)}
    return {**blocks, **{name: made[:, _HISTORY * len(_BLOCKS) + k] for k, name in enumerate(_SINGLES)}}


def draw_impressions(seed: int, users: int, rows: int) -> Table:
    """Draw rows in the sample's format, of which clicks follow ``logit = x (w + w_age + w_consumption + w_city)``.

    ``x`` is `inputs_of` the rows. What a user is shown, and has done before, also depends on its three levels.

    Args:
        seed: of everything.
        users: how many.
        rows: of each.
    """
    draw = np.random.default_rng(seed)
    count = users * rows
    level = {name: np.repeat(draw.integers(0, many, users), rows) for name, many in _LEVELS.items()}
    shift = sum(draw.normal(0, 0.8, (many, 8))[level[name]] for name, many in _LEVELS.items())
    lean = shift + draw.normal(size=(count, 8))
    share = 1 / (1 + np.exp(-lean))
    place = np.arange(_HISTORY)
    mask = place < np.round(_HISTORY * share[:, 4:5])
    seen = {
        "behaviour": np.where(draw.random((count, _HISTORY)) < share[:, 6:7], 1, 2) * mask,
        "category": draw.integers(1, 12000, (count, _HISTORY)) * mask,
        "brand": draw.integers(1, 400000, (count, _HISTORY)) * (draw.random((count, _HISTORY)) < share[:, 7:8]) * mask,
        "mask": mask,
        "match": mask & (draw.random((count, _HISTORY)) < share[:, 5:6]),
    }
    whole = {name: draw.integers(1, 800000, count) for name in ("ad", "item_category", "campaign", "customer", "item_brand")}  # fmt: skip
    person = {name: np.repeat(draw.integers(0, many, users), rows) for name, many in (("cms_segid", 97), ("cms_group_id", 13))}  # fmt: skip
    table: dict[str, NDArray[Any]] = {
        **{name: value.astype(float) for name, value in (seen | whole | person | level).items()},
        "user": np.repeat(np.arange(users) + 1_000_000.0, rows),
        "gender": 1.0 + np.repeat(lean[::rows, 1] > 0, rows),
        "shopping": np.full(count, 3.0),
        "occupation": np.repeat(lean[::rows, 2] > 1, rows).astype(float),
        "price": share[:, 0],
        "pid": (lean[:, 3] > 0).astype(float),
    }
    slopes = draw.normal(size=8) + sum(draw.normal(size=(many, 8))[level[name]] for name, many in _LEVELS.items())
    chance = 1 / (1 + np.exp(-(inputs_of(table) * slopes).sum(1)))
    return {**table, "clicked": (draw.random(count) < chance).astype(float)}


def inputs_of(table: Table) -> NDArray[np.float32]:
    """Return what a leaf reads of each row, ``(rows, 8)``, each column with mean 0 and standard deviation 1; the columns that cluster users are not among it."""
    mask = table["mask"] > 0
    shares = [mask, table["match"] > 0, mask & (table["behaviour"] == 1), mask & (table["brand"] > 0)]
    x = np.column_stack(
        [
            table["price"],
            table["gender"] == 2,
            table["occupation"],
            table["pid"],
            *(one.sum(1) / _HISTORY for one in shares),
        ]
    ).astype(np.float64)
    spread = x.std(0)
    made: NDArray[np.float32] = ((x - x.mean(0)) / np.where(spread > 0, spread, 1.0)).astype(np.float32)
    return made


def split_users(table: Table) -> Islands:
    """Return each user's rows, of which a quarter is for tests, with the public columns that cluster users."""
    columns = {"x": inputs_of(table), "y": table["clicked"].astype(np.int64)}
    columns |= {level: table[level].astype(np.int64) for level in _LEVELS}
    return hold_out_quarter(table["user"], columns)


# ---------------------------------------------------------------- Table 9


def _gains(found: EnsembleArms) -> dict[str, float]:
    """Return the relative gain of each way to join over one model, in per cent, of AUC and mean over seeds."""
    base = found.scores["baseline"]["auc"]
    return {way: 100 * (found.scores[way]["auc"] / base - 1) for way in (*_WAYS, "gate")}


def _cell(column: str, epsilon: float | None, quick: bool) -> EnsembleArms:
    """Train one model and leaves with the same epsilon, with two seeds."""
    users, rows, rounds = (300, 12, 6) if quick else (1000, 20, 20)
    leaf = atoll.Training(
        model=mlp(8, 2, (4,)),
        algorithm=atoll.FedAvg(lr=0.3, batch_size=5),
        rounds=rounds,
        selection=atoll.selection.Uniform(0.25),
        privacy=None if epsilon is None else CentralDP(epsilon=epsilon, delta=1e-5, clip=1.0),
    )
    job = Federated(clusters=AttributeClusters(column), leaf=leaf, opt_in=0.1, smallest=1)
    return compare_ensemble(
        job, lambda seed: split_users(draw_impressions(seed, users, rows)), seeds=1 if quick else 2, parallel=1, tell=lambda line: None
    )  # fmt: skip


def _say(gains: Mapping[str, float]) -> str:
    return ", ".join(f"{way} {gains[way]:+.2f}" for way in gains)


def _judge_cell(column: str, epsilon: float | None, found: EnsembleArms) -> list[Claim]:
    """Return a row of Table 9 with the absolute values that the paper leaves out, and what the ensemble costs."""
    part = f"Clusters by {column} ({_LEVELS[column]})"
    named = f"epsilon {'∞' if epsilon is None else epsilon}"
    gains, scores = _gains(found), found.scores
    paper = _say(dict(zip(_WAYS, TABLE_9[column][epsilon], strict=True)))
    made = [
        Claim.figure(f"{named}: gain over one model with the same epsilon, in %", _say(gains), f"the paper: {paper}; AUC of one model {scores['baseline']['auc']:.3f}, of a user's own leaf {scores['own_leaf']['auc']:.3f}", part),
        Claim(f"{named}: the over-arch gains", f"{TABLE_9[column][epsilon][-1]:+.2f} %", f"{gains['over_arch']:+.2f} %", gains["over_arch"] > 0, "above 0", part),
    ]  # fmt: skip
    if epsilon is not None:
        loss = found.epsilon
        total = loss["total"]
        same = total is not None and total == loss["leaves"] and 0.97 * epsilon <= total <= epsilon + 1e-6
        made.append(Claim(f"{named}: the ensemble costs what its leaves cost (section 2.3)", f"{epsilon}", f"{total:.3f}, leaves {loss['leaves']:.3f}", same, "opt-in users train no leaf, and each leaf solves its own noise", part))  # fmt: skip
    return made


def _judge_table(cells: Mapping[tuple[str, float | None], EnsembleArms], quick: bool) -> list[Claim]:
    """Judge what the paper says of the table as a whole."""
    gains = {key: _gains(found) for key, found in cells.items()}
    part = "The table"
    best = [max(_WAYS, key=own.__getitem__) for own in gains.values()]
    told = ", ".join(f"{name} {best.count(name)}" for name in dict.fromkeys(best))
    rows = [row for own in TABLE_9.values() for row in own.values()]
    first = sum(row[3] == max(row) for row in rows)
    made = [
        Claim("the over-arch is the best of the four ways in every row", f"in {first} of {len(rows)}", f"in {best.count('over_arch')} of {len(best)}", best.count("over_arch") == len(best), f"how often each is best here: {told}", part),
    ]  # fmt: skip
    if quick:
        return made
    clear, noisy = (
        statistics.fmean(own["max"] for (_, epsilon), own in gains.items() if (epsilon is None) == free)
        for free in (True, False)
    )
    less = [gains[column, None]["over_arch"] - gains[column, 1.56]["over_arch"] for column in _LEVELS]
    return [
        *made,
        Claim("the maximum helps only with noise", "-1.27, +0.59", f"{clear:+.2f}, {noisy:+.2f}", clear <= 0 < noisy, "mean gain in % without noise and with it", part),
        Claim("the smaller epsilon, the smaller the gain of the over-arch", "+1.86 to +0.68, +2.29 to +0.76, +2.31 to +1.02", ", ".join(f"{one:+.2f}" for one in less), min(less) > 0, "gain without noise less that at epsilon 1.56, by clusters", part),
    ]  # fmt: skip


def _show_sample() -> list[Claim]:
    """Return what the real sample has in the same columns; nothing where it is not there."""
    with contextlib.suppress(DataError):
        table = read_impressions(locate(None, "taobao_alimama_sample", "alimama_sampled_train.csv.gz"))
        known = ", ".join(f"{name} {len(np.unique(table[name]))} of {many}" for name, many in _LEVELS.items())
        islands = split_users(table)
        return [
            Claim.figure("rows, users, share of clicks", f"{len(table['clicked'])}, {len(islands)}, {table['clicked'].mean():.2f}", "taobao_alimama_sample: too few to train on", "Taobao's sample"),
            Claim.figure("levels that cluster users (Table 7)", known, "0 of consumption and city level stands for a missing one", "Taobao's sample"),
        ]  # fmt: skip
    return []


@keeping_nothing("fel-privacy")
def _run(quick: bool) -> list[Claim]:
    columns = ("consumption",) if quick else tuple(_LEVELS)
    epsilons = (None, 3.78) if quick else (None, 3.78, 1.56)
    cells = {(column, epsilon): _cell(column, epsilon, quick) for column in columns for epsilon in epsilons}
    rows = [claim for (column, epsilon), found in cells.items() for claim in _judge_cell(column, epsilon, found)]
    return [*rows, *_judge_table(cells, quick), *_show_sample()]


ENTRY = Entry(
    name="fel-privacy",
    title="Federated ensembles under differential privacy: what they gain at the same epsilon",
    source="Hejazinia et al. 2022, FEL: High Capacity Learning for Recommendation and Ranking via Federated Ensemble Learning, Table 9",
    run=_run,
)
