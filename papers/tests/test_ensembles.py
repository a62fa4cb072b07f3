"""The reproductions of ensembles: what they make their data of, and how they judge."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import atoll
from atoll.data import Dataset, Islands
from atoll.ensemble import CentroidClusters, Federated, ListedClusters, Search
from atoll.models import mlp
from atoll_papers import ensembles, fel_map
from atoll_papers.ensembles import digits_of, segments_of


def test_users_of_segments_follow_their_formula() -> None:
    islands, again, other = segments_of(3, users=8), segments_of(3, users=8), segments_of(4, users=8)
    assert islands.names == other.names
    assert np.array_equal(islands.shard(5)["x"], again.shard(5)["x"])
    assert not np.array_equal(islands.shard(5)["x"], other.shard(5)["x"])
    assert [int(islands.shard(user)["segment"][0]) for user in range(8)] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert len(islands.shard(0)["y"]) == 30
    assert islands.test is not None
    assert len(islands.test) == 80


def test_segments_may_lie_together_and_share_their_slopes() -> None:
    plain = segments_of(3, users=8)
    assert np.array_equal(segments_of(3, users=8, apart=0.7, differ=1.0).shard(5)["x"], plain.shard(5)["x"])
    together = [np.asarray(segments_of(3, users=80, apart=0.0).shard(user)["x"]).mean(0) for user in (0, 1, 2, 3)]
    assert np.abs(together).max() < 1  # means of 30 rows of deviation 1
    alike = segments_of(3, users=400, rows=80, apart=0.0, differ=0.0)
    fits = []
    for s in range(4):
        rows = [alike.shard(user) for user in range(s, 400, 4)]
        x, y = (np.concatenate([np.asarray(one[name]) for one in rows]) for name in ("x", "y"))
        fits.append(np.linalg.lstsq(x, y - 0.5, rcond=None)[0])
    assert np.corrcoef(fits).min() > 0.99


def test_the_map_says_where_an_ensemble_pays() -> None:
    """Figures for each place, by hand: the gate gains .2 where slopes differ, .1 of it against the wide model at 0 and .05 at 2, and nothing where they are alike."""
    cells = fel_map.cells_of(quick=True)
    assert [(cell.apart, cell.differ) for cell in cells] == [(0.0, 1.0), (0.7, 1.0), (2.0, 1.0), (0.7, 0.25)]
    arms = {"one": 0.7, "mean": 0.71, "over_arch": 0.72}
    wide = {0.0: 0.8, 0.7: 0.83, 2.0: 0.85}
    found = {cell: [{**arms, "wide": wide[cell.apart] if cell.differ == 1 else 0.7, "gate": 0.9 if cell.differ == 1 else 0.7}] for cell in cells}  # fmt: skip
    claims = fel_map.judge_map(found, [{1: 0.7, 2: 0.8, 4: 0.75}, {1: 0.7, 2: 0.72, 4: 0.75}])
    assert [one.ours for one in claims[:4]] == ["+0.200, +0.100", "+0.200, +0.070", "+0.200, +0.050", "+0.000, +0.000"]
    assert [one.holds for one in claims[4:]] == [True] * 6
    assert claims[-1].ours.startswith("2 of 1: 0.700, 2: 0.760")
    worse = {cell: [{**each[0], "mean": 0.73, "gate": 0.701}] for cell, each in found.items()}
    assert [one.holds for one in fel_map.judge_map(worse, [{1: 0.8, 2: 0.7}])[4:]] == [False, False, True, True, False, False]  # fmt: skip


def test_no_client_has_the_rows_without_labels() -> None:
    islands, rows = digits_of(0)
    assert len(islands) == 10
    assert rows.shape == (400, 64)
    assert sum(islands.sizes) + len(rows) == 1437
    held = {one.tobytes() for user in range(10) for one in np.asarray(islands.shard(user)["x"])}
    assert sum(one.tobytes() in held for one in rows) <= 2  # a digit may stand twice in the set


def test_a_line_holds_within_four_points_of_the_mean() -> None:
    found = [{"alone": 50.0, "new": 1.0}, {"alone": 58.0, "new": 3.0}]
    claims = ensembles._beside(found, {"alone": 58.0}, "Once")
    assert [(one.ours, one.holds, one.kind) for one in claims] == [("54.0", True, "statement"), ("2.0", None, "figure")]
    assert ensembles._beside(found, {"alone": 58.1}, "Once")[0].holds is False


def with_features(islands: Islands) -> tuple[Islands, list[str]]:
    """The users, with names of their inputs, by whose means they are clustered."""
    names = [f"x{place}" for place in range(8)]

    def cut(rows: Any) -> Dataset:
        return Dataset({name: rows[name] for name in rows.columns}, features=names, task="classification")

    parts = {str(name): cut(islands.shard(name)) for name in islands.names}
    return Islands.from_datasets(parts, test=cut(islands.test)), names


def leaf_of_segments() -> atoll.Training:
    """The training of a leaf in `fel-segments`."""
    return atoll.Training(model=mlp(8, 2, (4,)), algorithm=atoll.FedAvg(lr=0.3, batch_size=10), rounds=30)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_the_number_of_leaves_is_that_of_the_segments_or_more_and_one_for_one_segment(seed: int) -> None:
    """Candidates 1, 2, 4 and 8 of k-means; users of four segments, and of one."""
    for segments, wanted in ((4, {4, 8}), (1, {1})):
        islands, names = with_features(segments_of(seed, segments=segments))
        search = Search(clusters=(1, 2, 4, 8))
        job = Federated(clusters=CentroidClusters(1, names), leaf=leaf_of_segments(), opt_in=0.1, search=search)
        assert atoll.simulate(job, islands, seed=seed, progress=False).outcome.search.clusters in wanted


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_users_in_wrong_leaves_move_and_most_is_restored(seed: int) -> None:
    """A fifth of the users stand in a wrong leaf, which costs .06 to .09 of the gate's AUC; one move restores at least nine tenths of it."""
    islands, draw = segments_of(seed), np.random.default_rng(seed + 100)
    wrong = set(draw.choice(240, 48, replace=False).tolist())
    right = {f"user-{user}": user % 4 for user in range(240)}
    mixed = {name: (place + int(draw.integers(1, 4))) % 4 if user in wrong else place for user, (name, place) in enumerate(right.items())}  # fmt: skip

    def auc(places: dict[str, int], search: Search | None = None) -> float:
        listed = {str(s): [name for name, place in places.items() if place == s] for s in range(4)}
        job = Federated(clusters=ListedClusters(listed), leaf=leaf_of_segments(), opt_in=0.1, search=search)
        return float(atoll.simulate(job, islands, seed=seed, progress=False).outcome.scores["gate"]["auc"])

    best, worst, moved = auc(right), auc(mixed), auc(mixed, Search(recluster=1))
    assert best - worst > 0.05
    assert moved - worst > 0.9 * (best - worst)


@pytest.mark.slow
@pytest.mark.parametrize(
    "entry", [ensembles.SUB_MODELS_ENTRY, ensembles.SEGMENTS_ENTRY, ensembles.ONE_SHOT_ENTRY, fel_map.ENTRY]
)
def test_a_quick_run_judges_every_line(entry: object, tmp_path: object) -> None:
    from atoll.reproduce import Lab

    claims = entry.run(Lab(tmp_path), True)  # type: ignore[attr-defined, arg-type]
    assert claims
    assert all(one.kind == "figure" or one.holds is not None for one in claims)
