"""Held-out rows of clients: a share, tables or `Islands.holdout`; ``clients/…`` and ``personal/…`` are measured on them, and nobody trains on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.algorithms import Ditto
from atoll.core.errors import DataError
from atoll.data import Dataset, Islands
from atoll.learn.metrics import Confusion
from atoll.learn.round.evaluation import scores


def rows(seed: int, size: int = 40) -> Dataset:
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(size, 3)).astype(np.float32)
    return Dataset({"x": x, "y": (x[:, 0] + draw.normal(size=size) > 0).astype(int)}, classes=2)


def job(**more: Any) -> atoll.Training:
    evaluation = atoll.Evaluation(clients=-1, **more.pop("evaluation", {}))
    model = more.pop("model", atoll.models.linear(3, 2))
    return atoll.Training(model=model, selection=atoll.Everyone(), rounds=2, evaluation=evaluation, **more)


def run(data: Islands, **more: Any) -> Any:
    return atoll.simulate(job(**more), data, engine=more.pop("engine", "inline"), progress=False)


@pytest.fixture(scope="module")
def base() -> Islands:
    return Islands.from_datasets({name: rows(seed) for seed, name in enumerate(("north", "south", "west"))})


def test_a_share_is_what_holdout_gives_and_nobody_trains_on_it(base: Islands) -> None:
    train, held = base.holdout(0.25, seed=3)
    data = base.with_held_out(0.25, seed=3)
    assert data.sizes.tolist() == train.sizes.tolist() == [30, 30, 30]
    np.testing.assert_array_equal(data.shard("south").x, train.shard("south").x)
    np.testing.assert_array_equal(data.shard("south").held_out.x, held.shard("south").x)
    np.testing.assert_array_equal(train.with_held_out(held).shard(2).held_out.x, data.shard(2).held_out.x)
    # The model is the one that trains on these rows alone, to the bit.
    np.testing.assert_equal(run(data).params, run(train).params)


def net() -> Any:
    from torch import nn

    return nn.Linear(3, 2)


@pytest.mark.parametrize("model", [atoll.models.linear(3, 2), net], ids=["linear", "torch"])
@pytest.mark.parametrize("engine", ["inline", "batched"])
def test_clients_measure_on_their_held_out_rows(base: Islands, model: Any, engine: str) -> None:
    data = base.with_held_out(0.25, seed=3)
    result = atoll.simulate(job(model=model), data, engine=engine, progress=False)
    learner, params = result.prepared.learner, result.params
    own = [scores(learner.evaluate(params, shard.held_out))["accuracy"] for shard in data]
    trained = [scores(learner.evaluate(params, shard))["accuracy"] for shard in data]
    assert result.metrics.last("clients/accuracy/values") == pytest.approx(own, abs=1e-6)
    assert own != pytest.approx(trained, abs=1e-6)


def test_personal_models_and_metrics_are_measured_there_too(base: Islands) -> None:
    held = base.with_held_out(0.25, seed=3)
    algorithm = Ditto(lr=0.1, epochs=1, lam=0.1, personal_epochs=1)
    evaluation = {"personal": True, "metrics": [Confusion(2)]}
    with_them = run(held, algorithm=algorithm, evaluation=evaluation).metrics
    without = run(held.with_held_out(None), algorithm=algorithm, evaluation=evaluation).metrics
    for name in ("clients/accuracy", "personal/accuracy"):
        shown = with_them.last(f"{name}/values")
        assert all(round(value * 10) == pytest.approx(value * 10, abs=1e-4) for value in shown), (
            "shares of ten rows each"
        )
        assert shown != without.last(f"{name}/values")


def test_a_table_for_each_client_by_name(base: Islands) -> None:
    tests = {name: rows(10 + k, 7) for k, name in enumerate(("west", "north", "south"))}
    data = base.with_held_out(tests)
    np.testing.assert_array_equal(data.shard("north").held_out.x, tests["north"]["x"])
    assert data.subset([2]).shard(0).held_out.x.tolist() == tests["west"]["x"].tolist()
    made = Islands.from_datasets({name: rows(0) for name in tests}, test=tests)
    assert made.test is None
    assert len(made.shard("south").held_out) == 7


def test_frames_hold_out_by_share_or_table_in_one_coding() -> None:
    pandas = pytest.importorskip("pandas")
    north = pandas.DataFrame({"ward": ["a", "b", "a", "b"], "y": [0, 1, 0, 1]})
    south = pandas.DataFrame({"ward": ["b", "c", "c", "b"], "y": [1, 0, 0, 1]})
    tests = {
        "north": pandas.DataFrame({"y": [1, 0], "ward": ["c", "a"]}),
        "south": pandas.DataFrame({"ward": ["a"], "y": [0]}),
    }
    data = atoll.data.from_dataframes({"north": north, "south": south}, target="y", test=tests)
    assert list(map(str, data.names)) == ["north", "south"]
    assert data.shard("north").held_out.x.ravel().tolist() == [2, 0]  # a, b, c are 0, 1, 2 everywhere
    assert data.shard("south").x.ravel().tolist() == [1, 2, 2, 1]
    share = atoll.data.from_dataframes({"north": north, "south": south}, target="y", test=0.25)
    assert [len(shard.held_out) for shard in share] == [1, 1]
    with pytest.raises(DataError, match=r"test has tables of north.* Remedy: give both a table 'south', or neither"):
        atoll.data.from_dataframes({"north": north, "south": south}, target="y", test={"north": tests["north"]})


@pytest.mark.parametrize(
    ("test", "words"),
    [
        (1.5, r"holdout fraction 1.5"),
        ({"north": rows(0)}, r"no held-out rows of client 'south'"),
        (
            {name: rows(0) for name in ("north", "south", "west", "east")},
            r"held-out rows of 'east', which is no client",
        ),
        (Islands.from_datasets({"a": rows(0)}), r"rows held out of 1 clients, which are not the 3 clients here"),
    ],
)
def test_what_does_not_fit_is_refused(base: Islands, test: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        base.with_held_out(test)


def test_what_is_measured_on_training_rows_says_so(base: Islands, tmp_path: Path) -> None:
    from atoll.report.facts import facts_of

    assert facts_of(run(base)).rows_of("clients/accuracy") == ", training rows"
    held = run(base.with_held_out(0.25))
    assert facts_of(held).rows_of("personal/accuracy") == ", held-out rows"
    assert facts_of(held).rows_of("test/accuracy") == ""
    assert "Clients, held-out rows" in held.report(tmp_path / "page.html").read_text()


def test_a_site_holds_out_a_share_of_its_rows(tmp_path: Path) -> None:
    from atoll.runs import yaml
    from atoll.runtime.worker.sitedata import load_site_data

    whole = rows(0)
    np.savez(tmp_path / "rows.npz", x=whole.x, y=whole.y)
    file = tmp_path / "site.yaml"
    file.write_text(yaml.dump({"path": "rows.npz", "held_out": 0.25}), encoding="utf-8")
    found = load_site_data(str(file), "north")
    assert (found.sizes, len(found.population.shard(0).held_out)) == ((30,), 10)
    both = np.concatenate([found.population.shard(0).x, found.population.shard(0).held_out.x])
    np.testing.assert_array_equal(np.sort(both, axis=0), np.sort(whole.x, axis=0))
    file.write_text(yaml.dump({"path": "rows.npz", "held_out": "some"}), encoding="utf-8")
    with pytest.raises(DataError, match=r"held_out='some' .*Remedy: give a share between 0 and 1"):
        load_site_data(str(file), "north")
