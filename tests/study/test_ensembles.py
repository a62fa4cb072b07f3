"""The study of ensembles: arms by seed, intervals, a folder that is continued, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.core.errors import DataError
from atoll.ensemble import AttributeClusters, Federated, RandomClusters
from atoll.study import compare_ensemble
from tests.ensemble.test_federated import leaf, population


def test_arms_are_paired_by_seed_and_a_second_call_continues(tmp_path: Path) -> None:
    job = Federated(clusters=AttributeClusters("segment"), leaf=leaf(rounds=1), opt_in=["u3", "u7"])
    said: list[str] = []
    given = {"seeds": [1, 2], "folder": tmp_path, "parallel": 1, "tell": said.append}
    found = compare_ensemble(job, population(), **given)
    assert set(found.values) == {"baseline", "opt_in_alone", "mean", "logits", "median", "max", "weights", "over_arch", "gate", "own_leaf"}  # fmt: skip
    assert set(found.values["gate"]["auc"]) == {1, 2}
    gate = next(one for one in found.differences() if one.group == "gate")
    pairs = [found.values["gate"]["auc"][seed] - found.values["baseline"]["auc"][seed] for seed in (1, 2)]
    assert gate.mean == pytest.approx(sum(pairs) / 2)
    assert gate.low is not None
    assert found.opt_in == 2
    (section,) = found.sections()
    picture = section["figures"][0]
    assert picture["kind"] == "intervals"
    assert picture["values"][picture["labels"].index("gate")] == pytest.approx(gate.mean)
    assert all(
        low <= value <= high
        for low, value, high in zip(picture["low"], picture["values"], picture["high"], strict=True)
    )
    page = found.report(tmp_path / "page.html").read_text()
    assert "Against one model" in page
    assert "How well it predicts" in page
    assert found.parameters["baseline"] == 23
    said.clear()
    again = compare_ensemble(job, population(), **given)
    assert again.values == found.values
    assert said == [f"{n} of {n} runs are finished already" for n in (2, 2, 2)]


def test_ways_that_need_users_whom_test_rows_do_not_name_are_left_out() -> None:
    job = Federated(clusters=RandomClusters(2), leaf=leaf(rounds=1))
    found = compare_ensemble(job, population(), seeds=1, parallel=1, tell=lambda line: None)
    assert set(found.values) == {"baseline", "mean", "logits", "median", "max"}
    assert found.sections()[0]["figures"][0]["kind"] == "bars"  # one seed has no interval
    with pytest.raises(DataError, match="no test rows"):
        compare_ensemble(job, population().with_test(None))
    with pytest.raises(DataError, match="has 1 users to train it"):
        compare_ensemble(Federated(clusters=RandomClusters(8), leaf=job.leaf), population())
