"""Counts within circles from some of the owners: one owner for all, an owner for each cell of a grid, and some of their records.

Source: the survey of federated computing (source 000, section 3.3) describes Shi et al. 2021, "Efficient Approximate Range Aggregation over Large-scale Spatial Data Federation": the count of one owner stands for all if owners have
rows of one kind, a grid makes this true in small cells, and level sampling of records balances unequal owners. The survey gives no numbers. Those that we compare with are of the same places and rules, worked out before
there was a protocol: 5 owners of New York's Airbnb places, each neighbourhood with 80 % of its places at one owner, circles of 2 km, cells of 500 m: an error of 14 % by one owner, and of 1.2 % by a grid.

What differs: owners are drawn by their counts, which is unbiased however rows lie; the paper draws them uniformly. The grid is told for each owner, by cells around the circle, and not kept for later statements.
"""

from __future__ import annotations

import csv
import gzip
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from atoll.data.folder import locate
from atoll.query import SqlConnection, connect
from atoll.query.owner_draws import CircleGrid, combine_draws
from atoll.reproduce import Claim, Entry, keeping_nothing

__all__ = ["ENTRY"]

_RADIUS, _CELL, _OWNERS = 2_000.0, 500.0, 5
_COUNT = "SELECT count(*) AS n FROM places WHERE DWithin(spot, POINT(?, ?), 2000)"
_POLICY = {"policy": {"min_count": 1}, "tables": {"places": {"columns": "protected", "points": {"spot": {"x": "x", "y": "y", "extent": 200_000, "precision": 1}}}}}  # fmt: skip


def _metres(longitude: Any, latitude: Any) -> Any:
    """Degrees as metres east and north of the middle."""
    lon, lat = np.asarray(longitude, float), np.asarray(latitude, float)
    degree = 6_371_008.8 * math.pi / 180
    return np.stack([(lon - lon.mean()) * degree * math.cos(math.radians(float(lat.mean()))), (lat - lat.mean()) * degree], axis=1)  # fmt: skip


def _skewed(groups: Any, rng: np.random.Generator) -> Any:
    """The owner of each row: 80 % of a group's rows are one owner's, the others anybody's."""
    names, place = np.unique(groups, return_inverse=True)
    home = rng.integers(0, _OWNERS, len(names))
    return np.where(rng.random(len(place)) < 0.8, home[place], rng.integers(0, _OWNERS, len(place)))


def _airbnb(rng: np.random.Generator) -> tuple[Any, Any]:
    with gzip.open(locate(None, "geo", "nyc_airbnb_2019.csv.gz"), "rt", encoding="utf-8") as file:
        rows = [(one["longitude"], one["latitude"], one["neighbourhood"]) for one in csv.DictReader(file)]
    lon, lat, groups = zip(*rows, strict=True)
    return _metres(lon, lat), _skewed(groups, rng)


def _taxis(rng: np.random.Generator) -> tuple[Any, Any]:
    """Each taxi is one company's."""
    with gzip.open(locate(None, "geo", "beijing_taxi_traces.csv.gz"), "rt", encoding="utf-8") as file:
        rows = [(float(one["lon"]), float(one["lat"]), one["taxi_id"]) for one in csv.DictReader(file)]
    rows = [one for one in rows if 115 < one[0] < 118 and 39 < one[1] < 41.5]
    lon, lat, groups = zip(*rows, strict=True)
    names, place = np.unique(groups, return_inverse=True)
    return _metres(lon, lat), rng.permutation(np.arange(len(names)) % _OWNERS)[place]


def _generated(rng: np.random.Generator) -> tuple[Any, Any]:
    """20,000 places in 60 districts."""
    centres = rng.uniform(-9_000, 9_000, (60, 2))
    groups = rng.integers(0, 60, 20_000)
    return centres[groups] + rng.normal(0, 900, (20_000, 2)), _skewed(groups, rng)


def _open(folder: Path, spots: Any, owners: Any) -> SqlConnection:
    import duckdb

    silos = {}
    for k in range(_OWNERS):
        path, own = folder / f"o{k}.duckdb", spots[owners == k]
        with duckdb.connect(str(path)) as db:
            db.execute("CREATE TABLE places AS SELECT unnest($1) AS x, unnest($2) AS y", [own[:, 0].tolist(), own[:, 1].tolist()])  # fmt: skip
        silos[f"o{k}"] = str(path)
    return connect(silos=silos, policy=_POLICY)


def _uniform(spots: Any, owners: Any, at: Any, rng: np.random.Generator) -> float:
    """The paper's rule for owners of one kind: an owner drawn uniformly, scaled by all rows over its own."""
    k = int(rng.integers(_OWNERS))
    own = owners == k
    return float((np.hypot(*(spots[own] - at).T) <= _RADIUS).sum() * len(spots) / own.sum())


def _mean_over_draws(spots: Any, owners: Any, at: Any) -> float:
    """How far the mean over all draws is from the count, as a part of it: owners by their probabilities, cell by cell."""
    grid = CircleGrid(float(at[0]), float(at[1]), _RADIUS, _CELL)
    cells = grid.cells()
    places = {tuple(one): k for k, one in enumerate(cells.tolist())}
    rows, asked = np.zeros((_OWNERS, len(cells)), np.int64), np.zeros((_OWNERS, len(cells)), np.int64)
    for (x, y), owner in zip(spots.tolist(), owners.tolist(), strict=True):
        place = places.get((math.floor(x / _CELL), math.floor(y / _CELL)))
        if place is not None:
            rows[owner, place] += 1
            asked[owner, place] += math.hypot(x - at[0], y - at[1]) <= _RADIUS
    totals = np.maximum(1, rows.sum(axis=0))
    mean = 0.0
    for k in range(_OWNERS):  # cells are drawn by themselves, so the mean is the sum of the cells' means
        for cell in np.flatnonzero(rows[k]).tolist():
            one, drawn = [cell], np.array([[k]])
            mean += rows[k, cell] / totals[cell] * combine_draws(rows[:, one], drawn, asked[k : k + 1, one]).value
    return float(abs(mean - asked.sum()) / asked.sum())


def _measured(part: str, spots: Any, owners: Any, circles: int, published: tuple[str, str] | None) -> list[Claim]:
    """The errors of each way to draw owners, over circles around places that are drawn as the places lie."""
    rng = np.random.default_rng(17)
    errors: dict[str, list[float]] = {"uniform": [], "whole": [], "grid": [], "grid,level=2": []}
    inside, met, sent, work = [], [], [], []
    with tempfile.TemporaryDirectory(prefix="atoll-owners-") as folder, _open(Path(folder), spots, owners) as db:
        for at in spots[rng.choice(len(spots), circles, replace=False)]:
            exact = db.sql(_COUNT, at.tolist(), strategy="hufu")
            n = exact.rows[0][0]
            errors["uniform"].append(abs(_uniform(spots, owners, at, rng) - n) / n)
            for how in ("whole", "grid", "grid,level=2"):
                found = db.sql(_COUNT, at.tolist(), strategy=f"hufu:cell=500,owners={how}")
                errors[how].append(abs(found.rows[0][0] - n) / n)
            work.append(
                found.approximate["cells"] / len(CircleGrid(float(at[0]), float(at[1]), _RADIUS, _CELL).cells())
            )
            near = db.sql(_COUNT, at.tolist(), strategy="hufu:owners=grid,cell=500", error=0.05)
            met.append(abs(near.rows[0][0] - n) <= 0.05 * n)
            if near.approximate is not None:
                low, high = near.approximate["intervals"]["n"][0]
                inside.append(low <= n <= high)
            sent.append(near.bytes / exact.bytes)
    means = {name: float(np.mean(one)) for name, one in errors.items()}
    rule = f"mean error of {circles} circles of 2 km around places; {len(spots):,} places, {_OWNERS} owners"
    off = max(_mean_over_draws(spots, owners, at) for at in spots[rng.choice(len(spots), 3, replace=False)])
    made = [
        Claim("the mean over all draws is the count", "unbiased", f"off by {off:.1g} of it", off <= 1e-9, "to 1e-9; three circles, every owner of every cell by its probability", part),
        Claim("a grid makes one owner's rows stand for all, where owners differ", "closer than whole owners", f"{means['grid']:.1%} to {means['whole']:.1%}", means["grid"] < means["whole"] / 3, f"at most a third of the error; {rule}", part),
        Claim("an owner drawn uniformly does not stand for owners of another kind", "assumes rows of one kind", f"{means['uniform']:.0%}", means["uniform"] > 2 * means["whole"], f"more than twice the error of one drawn by counts; {rule}", part),
        Claim("two draws of each cell tell how far they err", "closed enough with high probability", f"{np.mean(inside):.0%} of intervals at 95 %" if inside else "none was near enough", bool(inside) and float(np.mean(inside)) >= 0.85, "at least 85 % of them hold the count; draws that miss 5 % are left out, and all owners count", part),
        Claim("an error of 5 % is met", "error guarantee", f"{np.mean(met):.0%} of counts", float(np.mean(met)) >= 0.93, "at confidence 0.95; at least 93 % of counts", part),
        Claim.figure("error of a grid, and a quarter of the records", f"{means['grid,level=2']:.1%}", f"level 2; {rule}", part),
        Claim.figure("cells of the circle that some owner counts in", f"{np.mean(work):.0%}", "the others lie inside, or are empty", part),
        Claim.figure("bytes of a count with an error of 5 %, to those of the exact one", round(float(np.mean(sent)), 1), "two draws of each cell; the exact count is one number an owner, and a secret of each two owners", part),
    ]  # fmt: skip
    if published is not None:
        whole, grid = published
        made[1:1] = [
            Claim("error of one owner, drawn by counts", whole, f"{means['whole']:.1%}", 0.09 <= means["whole"] <= 0.19, f"9 to 19 %; {rule}", part),
            Claim("error of a grid of 500 m", grid, f"{means['grid']:.1%}", means["grid"] <= 0.017, f"at most 1.7 %; {rule}", part),
        ]  # fmt: skip
    return made


@keeping_nothing("query-sampling")
def _run(quick: bool) -> list[Claim]:
    rng = np.random.default_rng(3)
    if quick:
        return _measured("Drawn places", *_generated(rng), 8, None)
    return [
        *_measured("Airbnb places of New York", *_airbnb(rng), 60, ("14 %", "1.2 %")),
        *_measured("Taxis of Beijing", *_taxis(rng), 40, None),
        *_measured("Drawn places", *_generated(rng), 40, None),
    ]


ENTRY = Entry(
    name="query-sampling",
    title="Counts within circles from some of the owners: whole, by a grid, and with fewer records",
    source="the survey of federated computing, section 3.3: Shi et al. 2021",
    run=_run,
    needs="the extra sql; places of Airbnb and of taxis below ATOLL_DATA",
    data=("geo:airbnb", "geo:taxis"),
    quick_data=(),
)
