"""``atoll trees``: federated, alone and pooled, as people and scripts type it."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest

from atoll.cli.app import run
from atoll.core.errors import ConfigError
from atoll.study.label_rows import rows_of
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


@pytest.mark.every(2)
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
    assert ["pooled", "-"] in [line.split()[:2] for line in told.out.splitlines()]


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


@pytest.mark.every(2)
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
    assert "--missing-features" in json.loads(capsys.readouterr().out)["error"]["remedy"]
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


def clinic(path, rows, seed, classes, names):
    """A file of a clinic, with its columns in an order of its own, and the numbers of patients."""
    rng = np.random.default_rng(seed)
    made = {
        "id": np.arange(rows),
        "age": rng.normal(60, 10, rows).round(1),
        "ward": rng.choice(["east", "icu", "west"], rows),
        "bmi": rng.normal(25, 3, rows).round(2),
    }
    made["state"] = np.array(classes)[np.digitize(made["age"] + 5 * (made["ward"] == "icu"), [57, 66])]
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([names, *zip(*(made[name].tolist() for name in names), strict=True)])


@pytest.fixture
def clinics(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    clinic(tmp_path / "north" / "data.csv", 200, 1, ["a", "b", "c"], ["id", "age", "ward", "bmi", "state"])
    clinic(tmp_path / "south" / "data.csv", 150, 2, ["a", "b", "b"], ["state", "bmi", "id", "ward", "age"])
    clinic(tmp_path / "held.csv", 120, 3, ["a", "b", "c"], ["age", "bmi", "id", "state", "ward"])
    return tmp_path


def grown(capsys, *words):
    code = run(["trees", "--label", "state", "--rounds", "5", "--depth", "3", *words, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == found.get("error", {}).get("exit_code", 0), found
    return found


def test_two_clinics_with_equal_file_names_and_a_class_that_one_lacks(capsys, clinics):
    metrics = pytest.importorskip("sklearn.metrics")
    found = grown(capsys, "north/data.csv", "south/data.csv", "--test", "held.csv", "--drop", "id")
    assert (list(found["alone"]), found["classes"]) == (["north/data", "south/data"], ["a", "b", "c"])
    assert (found["measure"], found["test"]) == ("accuracy", {"rows": 120, "from": "held.csv"})
    assert found["federated"] == found["pooled"] > found["alone"]["south/data"]
    # XGBoost reads the file and predicts, scikit-learn counts: neither is our code.
    with Path("held.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    codes = {"east": 0.0, "icu": 1.0, "west": 2.0}
    booster = xgboost.Booster(model_file=found["model"])
    assert booster.feature_names == ["age", "bmi", "ward"]
    x = np.array([[float(row["age"]), float(row["bmi"]), codes[row["ward"]]] for row in rows])
    shares = booster.predict(xgboost.DMatrix(x, feature_names=booster.feature_names))
    truth = np.array([row["state"] for row in rows])
    assert found["federated"] == pytest.approx((np.array(["a", "b", "c"])[shares.argmax(axis=1)] == truth).mean())
    area = metrics.roc_auc_score(truth, shares / shares.sum(axis=1, keepdims=True), multi_class="ovr")
    assert found["auc"]["federated"] == pytest.approx(area, abs=1e-6)
    gains = booster.get_score(importance_type="total_gain")
    theirs = {name: gain / sum(gains.values()) for name, gain in gains.items()}
    assert found["importance"] == pytest.approx({name: theirs.get(name, 0.0) for name in found["importance"]}, abs=1e-5)
    assert next(iter(found["importance"])) == "age"
    assert run(["predict", found["model"], "--rows", "held.csv", "--out", "out.csv"]) == 0
    with Path("out.csv").open(newline="") as file:
        told = list(csv.DictReader(file))
    assert [row["prediction"] for row in told] == np.array(["a", "b", "c"])[shares.argmax(axis=1)].tolist()
    ours = [[float(row[f"probability_{name}"]) for name in "abc"] for row in told]
    np.testing.assert_allclose(ours, shares, rtol=0, atol=1e-6)


def test_without_a_test_file_a_share_of_the_rows_is_kept_apart(capsys, clinics):
    words = ("north", "south", "--drop", "id")  # folders with one file each
    found = grown(capsys, *words)
    assert (list(found["alone"]), found["test"]["rows"]) == (["north", "south"], 70)
    assert "20% of each site's rows, drawn by seed 0" in found["test"]["from"]
    assert grown(capsys, *words) == found
    assert grown(capsys, *words, "--seed", "1") != found
    # What the model has seen of the sites is four fifths of their rows.
    first = json.loads(Path(found["model"]).read_bytes())["learner"]["gradient_booster"]["model"]["trees"][0]
    assert sum(first["sum_hessian"][:1]) == pytest.approx(2 * 280 * (1 / 3) * (2 / 3), rel=0.05)


def test_columns_and_agreed_categories(capsys, clinics):
    words = ("north", "south", "--test", "held.csv", "--columns", "age,ward", "--categories", "ward=west,icu,east")
    found = grown(capsys, *words)
    assert sorted(found["importance"]) == ["age", "ward"]
    known = json.loads(json.loads(Path(found["model"]).read_bytes())["learner"]["attributes"]["atoll"])
    assert known["categories"] == {"ward": ["west", "icu", "east"]}
    error = grown(capsys, "north", "south", "--columns", "agee,ward")["error"]
    assert "Did you mean 'age'" in error["what"]
    error = grown(capsys, "north", "south", "--drop", "idd")["error"]
    assert "Did you mean 'id'" in error["what"]
    error = grown(capsys, "north", "south", "--drop", "id", "--categories", "ward=west,east")["error"]
    assert "is not a category of column 'ward'" in error["what"]


def test_people_read_measures_importance_and_what_comes_next(capsys, clinics):
    assert run(["trees", "north", "south", "--label", "state", "--drop", "id", "--rounds", "3"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    for words in ("trained on accuracy auc", "feature share of gain age 0.", "70 test rows", "--rows FILE"):
        assert words in told


@pytest.mark.parametrize(
    ("files", "what"),
    [
        (("north", "north/data.csv"), "a file is given twice"),
        (("north", "gone.csv"), "gone.csv: there is no such file"),
        (("north", "both"), "holds 2 CSV or Parquet files"),
    ],
)
def test_files_of_sites_are_told_apart(capsys, clinics, files, what):
    clinic(clinics / "both" / "a.csv", 30, 1, ["a", "b", "c"], ["age", "state"])
    clinic(clinics / "both" / "b.csv", 30, 1, ["a", "b", "c"], ["age", "state"])
    assert what in grown(capsys, *files)["error"]["what"]


def rewrite(path):
    """The same table as a German spreadsheet writes it."""
    with path.open(newline="") as file:
        rows = list(csv.reader(file))
    told = path.with_name(f"german_{path.name}")
    with told.open("w", newline="", encoding="latin-1") as file:
        csv.writer(file, delimiter=";").writerows(
            [word.replace("ward", "wärd").replace(".", ",") for word in row] for row in rows
        )
    return told


GERMAN = ("--delimiter", ";", "--decimal", ",", "--encoding", "latin-1")


def test_files_in_another_form_give_the_same_trees_predictions_and_comparisons_of_labels(
    capsys, clinics, typed, monkeypatch
):
    files = [clinics / "north" / "data.csv", clinics / "south" / "data.csv", clinics / "held.csv"]
    german = [rewrite(file) for file in files]
    told = {}
    for form, (north, south, held), more in (("plain", files, ()), ("german", german, GERMAN)):
        out = clinics / f"{form}.json"
        found = grown(capsys, str(north), str(south), "--test", str(held), "--drop", "id", "--out", str(out), *more)
        told[form] = {name: found[name] for name in ("federated", "pooled")}
        code, _, _ = typed("predict", out, "--rows", held, "--out", clinics / f"{form}.csv", *more)
        assert code == 0
    assert told["plain"] == told["german"]
    assert (clinics / "plain.csv").read_text() == (clinics / "german.csv").read_text()

    seen = []

    def stop(data, **given):
        seen.append({name: given[name] for name in ("delimiter", "decimal", "encoding")})
        raise ConfigError("read", remedy="stop")

    monkeypatch.setattr("atoll.data.read_data", stop)
    assert typed("labels", "compare", german[0], "--target", "state", "--keep", "3", *GERMAN)[0] != 0
    assert typed("labels", "adapt", *german[:2], "--target", "german_data", "--label", "state", *GERMAN)[0] != 0
    assert seen == [{"delimiter": ";", "decimal": ",", "encoding": "latin-1"}] * 2
    monkeypatch.undo()
    plain = clinics / "plain_rows.csv"
    clinic(plain, 60, 4, ["a", "b", "c"], ["age", "bmi", "ward", "state"])
    rows = rows_of(str(rewrite(plain)), "state", form={"delimiter": ";", "decimal": ",", "encoding": "latin-1"})
    np.testing.assert_array_equal(rows.x, rows_of(str(plain), "state").x)


def test_a_page_compares_the_federation_with_each_site_and_all_rows(capsys, clinics):
    found = grown(capsys, "north", "south", "--test", "held.csv", "--drop", "id", "--html", "page.html")
    compared = (
        (clinics / "page.html").read_text().partition("Alone, federated, pooled</h2>")[2].partition("</table>")[0]
    )
    rows = re.findall(r"<td>([^<]+)</td><td class=\"n\">([^<]+)</td><td class=\"n\">([^<]+)</td>", compared)
    assert [name for name, *_ in rows] == ["north alone", "south alone", "federated", "pooled"]
    assert rows[2][1:] == (f"{found['federated']:.6g}", f"{found['auc']['federated']:.6g}")
    assert rows[3][1:] == (f"{found['pooled']:.6g}", f"{found['auc']['pooled']:.6g}")


def test_counts_are_classes_with_a_word_and_numbers_with_an_option(capsys, tmp_path):
    rng = np.random.default_rng(3)
    for name in ("north", "south"):
        age = rng.normal(60, 9, 80).round(1)
        stay = rng.poisson(np.exp((age - 50) / 20))
        (tmp_path / f"{name}.csv").write_text("age,stay\n" + "".join(f"{a},{s}\n" for a, s in zip(age, stay, strict=True)))  # fmt: skip
    files = [str(tmp_path / f"{name}.csv") for name in ("north", "south")]
    said = {}
    for task in ((), ("--task", "classification"), ("--task", "regression")):
        words = ("--label", "stay", "--rounds", "2", "--depth", "2", "--out", str(tmp_path / "m.json"), *task)
        assert run(["trees", *files, *words, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        said[task[-1:]] = found["measure"], [line for line in found.get("notices", ()) if "whole numbers" in line]
    assert said[("classification",)] == ("accuracy", [])
    assert said[("regression",)] == ("rmse", [])
    measure, (line,) = said[()]
    assert (measure, "--task regression" in line) == ("accuracy", True)
    assert run(["trees", *files, "--label", "stay", "--task", "counts", "--json"]) == 3
    assert "unknown task 'counts'" in capsys.readouterr().out
    # The same labels in a fit, which names the method for counts and the one for amounts.
    assert run(["fit", "glm", *files, "--label", "stay", "--json"]) == 0
    (line,) = json.loads(capsys.readouterr().out.splitlines()[-1])["notices"]
    assert "--set family=poisson" in line
    assert "atoll fit ridge" in line
    assert run(["fit", "glm", *files, "--label", "stay", "--set", "family=poisson", "--json"]) == 0
    assert "notices" not in json.loads(capsys.readouterr().out)
