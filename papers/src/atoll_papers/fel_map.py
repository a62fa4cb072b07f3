"""A map of where an ensemble pays: the width of a leaf, the users that train it, and how the segments of users differ.

Segments are those of `fel-segments`, made by the entry. Each cell of the map trains one model of all users, one as wide as all leaves together, and an ensemble whose clusters are the segments. Hejazinia
et al. 2022 measure on data of a company; that the over-arch is not worse than the mean of leaves, and this not worse than one model, is a hypothesis about data like theirs, as is a best number of random
clusters that is neither the least nor the most.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import atoll
from atoll.data import Islands
from atoll.ensemble import AttributeClusters, Federated, RandomClusters
from atoll.models import mlp
from atoll.reproduce import Claim, Entry, keeping_nothing
from atoll.study.ensembles import auc

from .ensembles import segments_of

__all__ = ["ENTRY", "MapPlace", "judge_map"]

_SEGMENTS = 4
_PAYS = 0.02
"""By how much the AUC must be better for an ensemble to pay."""
_COUNTS = (1, 2, 4, 8)
_MAP, _ORDER = "The gate against one model, and against one as wide as all leaves", "Hypotheses"


@dataclass(frozen=True)
class MapPlace:
    """A place of the map.

    Attributes:
        width: of a leaf's hidden layer.
        users: that train a leaf, and a tenth more who opt in.
        apart: how far the segments' rows lie apart, see `segments_of`.
        differ: how far the segments' slopes differ.
    """

    width: int
    users: int
    apart: float
    differ: float

    def __str__(self) -> str:
        return f"width {self.width}, {self.users} users a leaf, rows {self.apart:g} apart, slopes {self.differ:g} different"


def cells_of(quick: bool) -> list[MapPlace]:
    """Return the places: two widths, few and many users, rows that lie together, apart and far apart, and slopes that are nearly alike."""
    kinds = [(0.0, 1.0), (0.7, 1.0), (2.0, 1.0), (0.7, 0.25)]
    sizes = [(4, 10)] if quick else [*itertools.product((4, 16), (10, 50))]
    return [MapPlace(width, users, *kind) for width, users in sizes for kind in kinds]


def _training(width: int, rounds: int, **more: Any) -> Any:
    return atoll.Training(
        model=mlp(8, 2, (width,)), algorithm=atoll.FedAvg(lr=0.3, batch_size=10), rounds=rounds, **more
    )


def _one_model(width: int, rounds: int, islands: Islands, seed: int) -> float:
    measures: list[Any] = [auc]
    job = _training(width, rounds, evaluation=atoll.Evaluation(every=rounds, metrics=measures))
    return float(atoll.simulate(job, islands, seed=seed, progress=False).metrics.last("test/auc"))


def _measure_cell(cell: MapPlace, rounds: int, seed: int) -> dict[str, float]:
    """Return the AUC of one model, of the wide one and of each way to join leaves; opt-in users train none of them."""
    count = _SEGMENTS * cell.users
    islands = segments_of(seed, count, _SEGMENTS, apart=cell.apart, differ=cell.differ)
    job = Federated(clusters=AttributeClusters("segment"), leaf=_training(cell.width, rounds), opt_in=0.1)
    away = set(job.draw_opt_in([str(name) for name in islands.names]))
    rest = islands.subset([place for place, name in enumerate(islands.names) if str(name) not in away])
    scores = atoll.simulate(job, islands, seed=seed, progress=False).outcome.scores
    found = {arm: each["auc"] for arm, each in scores.items()}
    one, wide = (_one_model(width, rounds, rest, seed) for width in (cell.width, _SEGMENTS * cell.width))
    return {**found, "one": one, "wide": wide}


def _measure_counts(users: int, rounds: int, seed: int) -> dict[int, float]:
    """Return the AUC of the mean of leaves of random clusters, by their number."""
    islands, found = segments_of(seed, users), dict[int, float]()
    for count in _COUNTS:
        job = Federated(clusters=RandomClusters(count), leaf=_training(4, rounds), aggregate="mean")
        found[count] = atoll.simulate(job, islands, seed=seed, progress=False).outcome.scores["mean"]["auc"]
    return found


def judge_map(
    found: Mapping[MapPlace, Sequence[Mapping[str, float]]], counts: Sequence[Mapping[int, float]]
) -> list[Claim]:
    """Return the map's figures, and what it says.

    Args:
        found: cell -> the AUC of each arm, by seed.
        counts: the AUC of the mean of leaves by the number of random clusters, by seed.
    """
    mean = {cell: {arm: statistics.fmean(one[arm] for one in each) for arm in each[0]} for cell, each in found.items()}
    gain = {cell: one["gate"] - one["one"] for cell, one in mean.items()}
    over = {cell: one["gate"] - one["wide"] for cell, one in mean.items()}
    made = [Claim.figure(str(cell), f"{gain[cell]:+.3f}, {over[cell]:+.3f}", f"one model {mean[cell]['one']:.3f}, wide {mean[cell]['wide']:.3f}, gate {mean[cell]['gate']:.3f}, over-arch {mean[cell]['over_arch']:.3f}, mean {mean[cell]['mean']:.3f}", _MAP) for cell in found]  # fmt: skip
    apart = [cell for cell in found if cell.differ == 1]
    alike = [cell for cell in found if cell.differ < 1]
    near, far = ([over[cell] for cell in apart if cell.apart == at] for at in (0.0, 2.0))
    order = [one["over_arch"] >= one["mean"] >= one["one"] for one in mean.values()]
    random = {count: statistics.fmean(one[count] for one in counts) for count in counts[0]}
    best = max(random, key=lambda count: random[count])
    told = ", ".join(f"{count}: {value:.3f}" for count, value in random.items())
    return [
        *made,
        Claim("an ensemble pays wherever slopes differ, against one model", None, f"{min(gain[cell] for cell in apart):+.3f} at least", min(gain[cell] for cell in apart) >= _PAYS, f"AUC, at least {_PAYS:g}", _MAP),
        Claim("it pays against a model as wide as all leaves too", None, f"{min(over[cell] for cell in apart):+.3f} at least", min(over[cell] for cell in apart) >= _PAYS, f"AUC, at least {_PAYS:g}", _MAP),
        Claim("a wide model makes up for more of it where rows lie far apart, and tell the segment", None, f"{statistics.fmean(near):+.3f}, {statistics.fmean(far):+.3f}", statistics.fmean(near) > statistics.fmean(far), "the gate against the wide model, rows together and far apart", _MAP),
        Claim("it does not pay where slopes are nearly alike", None, f"{max(gain[cell] for cell in alike):+.3f} at most", max(gain[cell] for cell in alike) < _PAYS, f"against one model, below {_PAYS:g}", _MAP),
        Claim("over-arch, mean of leaves, one model: each is not worse than the next", "Table 8", f"{sum(order)} of {len(order)} cells", all(order), "a hypothesis about users of segments", _ORDER),
        Claim("random clusters have a best number between the least and the most", "Figure 2", f"{best} of {told}", best not in (min(random), max(random)), "the mean of leaves", _ORDER),
    ]  # fmt: skip


@keeping_nothing("fel-map")
def _run(quick: bool) -> list[Claim]:
    rounds, seeds = (6, range(1)) if quick else (30, range(2))
    found = {cell: [_measure_cell(cell, rounds, seed) for seed in seeds] for cell in cells_of(quick)}
    return judge_map(found, [_measure_counts(40 if quick else 240, rounds, seed) for seed in seeds])


ENTRY = Entry(
    name="fel-map",
    title="A map of where an ensemble pays: width × users a leaf × how segments differ",
    source="Hejazinia et al. 2022, FEL: High Capacity Learning for Recommendation and Ranking via Federated Ensemble Learning",
    run=_run,
)
