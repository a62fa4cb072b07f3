"""``atoll trees``: federated, alone and pooled, as people and scripts type it."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from atoll.cli.app import run
from atoll.trees.tree import auc

xgboost = pytest.importorskip("xgboost")


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    x = np.round(rng.normal(size=(900, 4)), 1)
    y = (x[:, 0] * x[:, 1] + x[:, 2] + 0.3 * rng.normal(size=900) > 0).astype(int)
    for name, rows in {"north": slice(0, 200), "south": slice(200, 500), "held": slice(500, 900)}.items():
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["a", "b", "c", "d", "ward", "y"])
            for row, label in zip(x[rows], y[rows], strict=True):
                writer.writerow([*row, "east" if row[3] > 0 else "west", label])
    return tmp_path


def asked(folder, *more):
    files = [folder / "north.csv", folder / "south.csv"]
    words = ("--label", "y", "--test", folder / "held.csv", "--out", folder / "m.json", "--rounds", 10, "--depth", 3)
    return ["trees", *map(str, (*files, *words, *more)), "--json"]


@pytest.mark.parametrize("more", [(), ("--secure",), ("--method", "bagging"), ("--method", "forest")])
def test_the_federated_trees_are_compared_and_saved(capsys, folder, more):
    assert run(asked(folder, *more)) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["measure"], set(found["alone"])) == ("auc", {"north", "south"})
    if "--method" not in more:
        assert found["federated"] > max(found["alone"].values())
        assert abs(found["federated"] - found["pooled"]) < (1e-3 if "--secure" in more else 1e-6)
        assert "pooled_shuffled" not in found
    booster = xgboost.Booster(model_file=found["model"])
    with (folder / "held.csv").open() as file:
        rows = [[*map(float, row[:4]), float(row[4] == "west"), float(row[5])] for row in list(csv.reader(file))[1:]]
    table = np.array(rows)
    named = xgboost.DMatrix(table[:, :5], feature_names=["a", "b", "c", "d", "ward"])
    assert auc(table[:, 5], booster.predict(named)) == pytest.approx(found["federated"], abs=1e-6)


def test_without_xgboost_nothing_is_called_pooled(capsys, folder, monkeypatch):
    from atoll.study import sites

    monkeypatch.setattr(sites, "find_spec", lambda name: None)
    assert run(asked(folder)) == 0
    assert json.loads(capsys.readouterr().out)["pooled"] is None
    assert run([word for word in asked(folder) if word != "--json"]) == 0
    told = capsys.readouterr()
    assert 'pip install "atoll[trees]"' in told.err
    assert told.out.split()[-2:] == ["pooled", "-"]


def test_of_more_rows_than_xgboost_queues_they_are_still_its_trees_and_masked_sums_show_what_the_order_does(
    capsys, tmp_path
):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(12_500, 2))
    x[:, 1] = np.round(10 * x[:, 1], 2)
    odds = 4 * np.sin(9 * x[:, 0]) + np.sin(x[:, 1])
    table = np.column_stack((x, rng.random(len(x)) < 1 / (1 + np.exp(-odds))))
    for name, rows in {"north": slice(0, 5000), "south": slice(5000, 12_000), "held": slice(12_000, None)}.items():
        np.savetxt(tmp_path / f"{name}.csv", table[rows], "%.9g", ",", header="a,b,y", comments="")
    assert run([*asked(tmp_path), "--rounds", "3"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert abs(found["federated"] - found["pooled"]) < 1e-6
    assert "pooled_shuffled" not in found
    assert run([*asked(tmp_path, "--secure"), "--rounds", "3"]) == 0
    masked = json.loads(capsys.readouterr().out)
    assert masked["pooled"] == found["pooled"]
    assert len(set(masked["pooled_shuffled"])) > 1
    assert 1e-6 < abs(masked["federated"] - masked["pooled"]) < 0.02
    assert run([word for word in [*asked(tmp_path, "--secure"), "--rounds", "1"] if word != "--json"]) == 0
    assert "pooled, in other orders" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--label", "z"), "'z'"),
        (("--method", "boosting"), "scheme='boosting'"),
        (("--test", "nowhere.csv"), "nowhere.csv"),
        (("--out", "no/such/folder/m.json"), "there is no such folder"),
        (("--eta", "7"), "eta=7.0"),
    ],
)
def test_what_cannot_be_is_said(capsys, folder, words, told):
    assert run([*asked(folder), *words]) != 0
    assert told in json.loads(capsys.readouterr().out)["error"]["what"]


@pytest.mark.parametrize("more", [(), ("--secure",), ("--method", "bagging")])
def test_empty_cells_are_missing_features_where_they_are_declared(capsys, folder, more):
    rng = np.random.default_rng(5)
    for name in ("north", "south", "held"):
        with (folder / f"{name}.csv").open(newline="") as file:
            header, *rows = list(csv.reader(file))
        rows = [[*("" if rng.random() < 0.2 else cell for cell in row[:5]), row[5]] for row in rows]
        with (folder / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([header, *rows])
    assert run(asked(folder, *more)) != 0
    assert "missing_features=True" in json.loads(capsys.readouterr().out)["error"]["remedy"]
    assert run(asked(folder, "--missing-features", *more)) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["federated"] > max(found["alone"].values())
    held = [
        [*(float(c or "nan") for c in row[:4]), {"": np.nan, "east": 0.0, "west": 1.0}[row[4]], float(row[5])]
        for row in rows
    ]
    table = np.array(held)
    named = xgboost.DMatrix(table[:, :5], feature_names=["a", "b", "c", "d", "ward"])
    booster = xgboost.Booster(model_file=found["model"])
    assert auc(table[:, 5], booster.predict(named)) == pytest.approx(found["federated"], abs=1e-6)
