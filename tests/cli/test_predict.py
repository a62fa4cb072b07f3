"""``atoll predict``: people train with one command and predict new rows with the next."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import atoll
from atoll.cli.app import run
from atoll.data import from_csv_folder
from atoll.runs import load_model
from atoll.stages import GaussianNoise

COLUMNS = ("age", "ward", "bmi")
CLASSES = ("no", "yes")


def table(rows: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    made = {
        "age": rng.normal(60, 9, rows).round(1),
        "ward": rng.choice(["east", "icu", "west"], rows),
        "bmi": rng.normal(25, 3, rows).round(2),
    }
    made["died"] = np.where(made["age"] + 9 * (made["ward"] == "icu") + rng.normal(0, 3, rows) > 63, "yes", "no")
    return made


def write(path: Path, found: dict[str, np.ndarray], names: tuple[str, ...]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows(zip(*(found[name] for name in names), strict=True))
    return path


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(Path("north.csv"), table(120, 1), (*COLUMNS, "died"))
    write(Path("south.csv"), table(90, 2), ("died", "bmi", "age", "ward"))
    write(Path("new.csv"), {**table(40, 3), "note": np.full(40, "x")}, ("note", "bmi", "ward", "age"))
    return tmp_path


def told(capsys, *words) -> dict:
    code = run([*map(str, words), "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert code == answer.get("error", {}).get("exit_code", 0)
    return answer


def predicted(capsys, model, *more) -> pd.DataFrame:
    found = told(capsys, "predict", model, "--rows", "new.csv", "--out", "out.csv", *more)
    assert found["rows"] == 40, found
    return pd.read_csv("out.csv")


def coded() -> np.ndarray:
    new = pd.read_csv("new.csv")
    return np.stack([new.age, new.ward.map({"east": 0, "icu": 1, "west": 2}), new.bmi], axis=1)


def require_classes(found: pd.DataFrame, second: np.ndarray, atol: float) -> None:
    """The order of the rows, and the scores of an independent library."""
    assert found.columns.tolist() == ["prediction", "probability_no", "probability_yes"]
    np.testing.assert_allclose(found.probability_yes, second, rtol=0, atol=atol)
    np.testing.assert_allclose(found.probability_no, 1 - second, rtol=0, atol=atol)
    assert found.prediction.tolist() == np.where(second > 0.5, "yes", "no").tolist()
    assert len(set(found.prediction)) == 2


@pytest.mark.parametrize("method", ["histogram", "lightgbm"])
def test_trees(capsys, place, method) -> None:
    xgboost, lightgbm = pytest.importorskip("xgboost"), pytest.importorskip("lightgbm")
    words = ("--label", "died", "--test", "south.csv", "--rounds", 6, "--depth", 3, "--method", method)
    found = told(capsys, "trees", "north.csv", "south.csv", *words)
    x, names = coded().astype(np.float32), ["bmi", "age", "ward"]
    order = [("age", "ward", "bmi").index(name) for name in ("age", "bmi", "ward")]
    if method == "lightgbm":
        theirs = lightgbm.Booster(model_file=found["model"]).predict(x[:, order])
    else:
        booster = xgboost.Booster(model_file=found["model"])
        assert sorted(booster.feature_names) == sorted(names)
        theirs = booster.predict(xgboost.DMatrix(x[:, order], feature_names=booster.feature_names))
    require_classes(predicted(capsys, found["model"]), theirs.astype(np.float64), 1e-6)


def test_a_fit(capsys, place) -> None:
    from atoll.fitting import FittedModel

    told(capsys, "fit", "glm", "north.csv", "south.csv", "--label", "died", "--out", "fit.json")
    theirs = FittedModel.load("fit.json").estimator().predict_proba(pd.read_csv("new.csv"))[:, 1]
    require_classes(predicted(capsys, "fit.json"), theirs, 1e-9)
    Path("fit.json").rename("ward.model")  # a file may have any name
    require_classes(predicted(capsys, "ward.model"), theirs, 1e-9)


def test_a_fit_of_numbers_and_one_without_classes(capsys, place) -> None:
    from atoll.fitting import FittedModel

    told(capsys, "fit", "ridge", "north.csv", "south.csv", "--label", "bmi", "--columns", "age,ward", "--out", "r.json")
    found = predicted(capsys, "r.json")
    assert found.columns.tolist() == ["prediction"]
    theirs = FittedModel.load("r.json").estimator().predict(pd.read_csv("new.csv"))
    np.testing.assert_allclose(found.prediction, theirs, rtol=0, atol=1e-9)
    told(capsys, "fit", "pca", "north.csv", "south.csv", "--columns", "age,bmi", "--out", "p.json")
    assert predicted(capsys, "p.json").columns.tolist() == ["prediction_0", "prediction_1"]


CONFIG = """
name: {name}
data: {{source: {{name: from_csv_files, files: [north.csv, south.csv], target: died}}}}
model: {model}
algorithm: {{name: FedAvg, lr: 0.0003}}
selection: Everyone
rounds: 2
engine: inline
"""
NETWORK = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(x)


class Turned(Net):
    def forward(self, x):
        return -self.layer(x)
"""


@pytest.mark.parametrize("name", ["linear", "network"])
def test_a_training(capsys, place, name, monkeypatch) -> None:
    from atoll.runs import read_model

    monkeypatch.syspath_prepend(str(place))
    Path(f"nets_{name}.py").write_text(NETWORK)
    model = "{name: linear, features: 3, outputs: 2}" if name == "linear" else f"nets_{name}:Net"
    Path("run.yaml").write_text(CONFIG.format(name=name, model=model))
    told(capsys, "run", "run.yaml", "--no-report", "--folder", f"runs/{name}")
    arrays = read_model(f"runs/{name}/model.safetensors")
    x = coded().astype(np.float32)[:, [0, 2, 1]]  # tables in two orders: features are in alphabetical order
    if name == "linear":
        scores = x.astype(np.float64) @ arrays["weight"] + arrays["bias"]
    else:
        scores = x @ arrays["layer.weight"].T + arrays["layer.bias"]
    theirs = 1 / (1 + np.exp(np.float64(scores[:, 0] - scores[:, 1])))
    atol = 1e-9 if name == "linear" else 1e-6
    for place_of in (name, f"runs/{name}", f"runs/{name}/model.safetensors"):
        found = predicted(capsys, place_of)
        np.testing.assert_allclose(found.probability_yes, theirs, rtol=0, atol=atol)
        np.testing.assert_allclose(found.probability_no + found.probability_yes, 1, atol=1e-6)
        assert found.prediction.tolist() == np.where(theirs > 0.5, "yes", "no").tolist()
    if name == "network":
        # The same parameters in other code are another model: nothing else would say so.
        error = told(capsys, "predict", name, "--rows", "new.csv", "--model", "nets_network:Turned")["error"]
        assert "not the one that was trained" in error["what"]
        Path("alone.safetensors").write_bytes(Path("runs/network/model.safetensors").read_bytes())
        error = told(capsys, "predict", "alone.safetensors", "--rows", "new.csv")["error"]
        assert "--model module:name" in error["remedy"]
        again = predicted(capsys, "alone.safetensors", "--model", "nets_network:Net")
        pd.testing.assert_frame_equal(again, found)


@pytest.mark.every(2)
@pytest.mark.parametrize("kind", ["trees", "fit", "training"])
def test_rows_that_a_model_does_not_know_are_refused(capsys, place, kind) -> None:
    if kind == "trees":
        pytest.importorskip("xgboost")
        told(
            capsys, "trees", "north.csv", "--label", "died", "--test", "south.csv", "--rounds", 2, "--out", "model.json"
        )
        model = "model.json"
    elif kind == "fit":
        told(capsys, "fit", "bayes", "north.csv", "south.csv", "--label", "died", "--out", "fit.json")
        model = "fit.json"
    else:
        Path("run.yaml").write_text(CONFIG.format(name="run", model="{name: linear, features: 3, outputs: 2}"))
        told(capsys, "run", "run.yaml", "--no-report", "--folder", "runs/one")
        model = "one"
    new = pd.read_csv("new.csv")
    for change, what in (
        ({"ward": new.ward.replace("icu", "ICUU")}, "'ICUU'"),
        ({"ward": new.ward.replace("icu", "icuu")}, "Did you mean 'icu'?"),
        ({"age": new.age.astype(str).replace(str(new.age[4]), "old")}, "'old'"),
        ({"age": new.age.where(new.index != 7)}, "'age'"),
    ):
        new.assign(**change).to_csv("bad.csv", index=False)
        error = told(capsys, "predict", model, "--rows", "bad.csv", "--out", "bad_out.csv")["error"]
        column = next(iter(change))
        assert what in error["what"]
        assert repr(column) in error["what"]
        assert "bad.csv" in error["where"]
    new.rename(columns={"age": "agee"}).to_csv("bad.csv", index=False)
    error = told(capsys, "predict", model, "--rows", "bad.csv", "--out", "bad_out.csv")["error"]
    assert ("no column 'age'" in error["what"], "'agee'" in error["what"]) == (True, True)
    assert "bad.csv" in error["where"]
    assert not Path("bad_out.csv").exists()


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("modle.json", "--rows", "new.csv"), "there is no model, run or job 'modle.json'"),
        (("new.csv", "--rows", "new.csv"), "no trees can be read"),
        ((".", "--rows", "new.csv"), "the folder holds no model"),
        (("fit.json", "--rows", "gone.csv"), "there is no such file"),
        (("fit.json", "--rows", "new.csv", "--out", "gone/out.csv"), "there is no such folder"),
    ],
)
def test_what_is_not_there_is_named(capsys, place, words, what) -> None:
    told(capsys, "fit", "bayes", "north.csv", "south.csv", "--label", "died", "--out", "one.json")
    Path("one.json").rename("kept")
    if words[0] == "fit.json":
        Path("kept").rename("fit.json")
    assert what in told(capsys, "predict", *words)["error"]["what"]


def test_it_says_where_the_predictions_are(capsys, place) -> None:
    told(capsys, "fit", "bayes", "north.csv", "south.csv", "--label", "died", "--out", "fit.json")
    assert run(["predict", "fit.json", "--rows", "new.csv"]) == 0
    assert capsys.readouterr().out.strip() == "40 predictions of NaiveBayes are in predictions.csv"
    assert len(Path("predictions.csv").read_text().splitlines()) == 41


def test_a_run_measures_on_the_rows_that_clients_hold_out(config, typed):
    measuring = ("--set", "evaluation.clients=-1", "--no-report")
    assert typed("run", config, *measuring, "--folder", "all", "--held-out", "1.5")[0] != 0
    code, told, said = typed("run", config, *measuring, "--folder", "whole")
    assert (code, "measured on the rows that clients train on" in str(told["notices"])) == (0, True)
    assert told["notices"][0] in said  # people read it too
    code, told, _ = typed("run", config, *measuring, "--folder", "apart", "--held-out", "0.2")
    assert (code, "measured on the rows that clients train on" in str(told)) == (0, False)
    whole, apart = (json.loads(Path(name, "data.json").read_text()) for name in ("whole", "apart"))
    assert (whole["held_out"], apart["held_out"] + apart["rows"]) == (0, whole["rows"])
    assert apart["held_out"] == sum(size - int(0.8 * size) for size in whole["client_sizes"])


@pytest.mark.parametrize(
    ("command", "more", "model"),
    [("trees", "--rounds 3 --depth 2", "model.json"), ("fit glm", "--set alpha=1 --out fit.json", "fit.json")],
)
def test_new_rows_in_another_unit_are_named_with_the_range_of_the_training(command, more, model, place, capsys) -> None:
    new = pd.read_csv("new.csv").assign(age=lambda rows: rows.age * 12)
    new.to_csv("months.csv", index=False)
    told(capsys, *command.split(), "north.csv", "south.csv", "--label", "died", *more.split())
    assert "notices" not in told(capsys, "predict", model, "--rows", "new.csv")
    (line,) = told(capsys, "predict", model, "--rows", "months.csv")["notices"]
    assert line.startswith(f"column 'age' of the rows lies around {new.age.median():.4g}, and nearly all that the")
    assert line.endswith("is it in another unit?")
    with pytest.warns(RuntimeWarning, match="column 'age' of the rows"):
        load_model(Path(model)).predict(new)
    coded = pd.read_csv("new.csv").head(3)
    for sign in (-99, 999, -1):
        coded.assign(age=[*coded.age[:2], sign]).to_csv("coded.csv", index=False)
        (line,) = told(capsys, "predict", model, "--rows", "coded.csv")["notices"]
        assert line.startswith(f"column 'age' has {sign} in 1 row of those to predict, unlike all other values")


def test_a_trained_network_knows_where_its_columns_lay_unless_it_promises_privacy(place) -> None:
    Path("new.csv").unlink()
    islands = from_csv_folder(place, target="died", features=["age", "bmi"])
    job = atoll.Training(model=atoll.models.linear(2, 2), algorithm=atoll.FedAvg(lr=0.0001), rounds=1)
    rows = {"age": np.full(30, 720.0), "bmi": np.full(30, 25.0)}
    result = atoll.simulate(job, islands, engine="inline", progress=False)
    with pytest.warns(
        RuntimeWarning, match=r"column 'age' of the rows lies around 720, .* between about \d\d and \d\d"
    ):
        result.predict(rows)
    private = job.replace(uplink=[atoll.Clip(1.0), GaussianNoise(multiplier=1.0)])
    silent = atoll.simulate(private, islands, engine="inline", progress=False)
    assert silent.table.columns.extents == {}
    silent.predict(rows)  # pytest fails on a warning
