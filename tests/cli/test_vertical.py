"""``atoll vertical``: files in any order, compared with XGBoost and with the guest alone."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from atoll.cli.app import run
from atoll.core.message import decode, split_frames

xgboost = pytest.importorskip("xgboost")
pytest.importorskip("rbcl")
ROWS = 260


def write(path, columns):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for row in zip(*columns.values(), strict=True):
            writer.writerow(["" if isinstance(one, float) and np.isnan(one) else one for one in row])
    return str(path)


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(5)
    x = rng.normal(size=(ROWS, 4)).astype(np.float32)
    x[:, 2:][rng.random((ROWS, 2)) < 0.2] = np.nan
    x[:, 3] = np.round(2 * x[:, 3])
    signal = x[:, 0] + np.nan_to_num(x[:, 2]) + 0.3 * rng.normal(size=ROWS)
    y = {
        "binary": np.where(signal > 0, "yes", "no"),
        "regression": signal,
        "multiclass": np.digitize(signal, [-1, 0.5]),
    }
    ids = [f"{i:04}" for i in range(ROWS)]

    def made(task="binary", order=None, extra=0):
        order = np.arange(ROWS) if order is None else order
        bank = {"id": ids, "a": x[:, 0].tolist(), "b": x[:, 1].tolist(), "y": y[task].tolist()}
        shop = {"id": [ids[i] for i in order], "c": x[order, 2].tolist(), "d": x[order, 3].tolist()}
        for k in range(extra):
            shop = {name: [*values, f"x{k}" if name == "id" else 0.5] for name, values in shop.items()}
        return [write(tmp_path / "bank.csv", bank), write(tmp_path / "shop.csv", shop)]

    made.x, made.y, made.ids = x, y, ids
    return made


@pytest.fixture
def asked(capsys):
    def call(*words, code=0):
        assert run(["vertical", *map(str, words), "--json"]) == code
        return json.loads(capsys.readouterr().out)

    return call


def rows_of(path):
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("task", ["binary", "regression", "multiclass"])
def test_predictions_are_xgboosts(files, asked, tmp_path, task):
    out = tmp_path / "F.csv"
    words = ("--security", "none", "--trees", 6, "--depth", 3, "--bins", 16, "--predictions", out)
    found = asked(*files(task, extra=3), *words)
    assert found["task"] == task
    assert found["metric"] == {"binary": "auc", "regression": "rmse", "multiclass": "accuracy"}[task]
    assert found["difference"] == 0
    assert found["federated"] == found["pooled"]
    rows = rows_of(out)
    assert found["rows"] == {"guest": ROWS, "host": ROWS + 3, "aligned": ROWS, "train": sum(r["split"] == "train" for r in rows), "test": sum(r["split"] == "test" for r in rows)}  # fmt: skip
    at = np.array([files.ids.index(row["id"]) for row in rows])
    train = np.array([row["split"] == "train" for row in rows])
    names, codes = np.unique(files.y[task], return_inverse=True)
    y = files.y[task] if task == "regression" else codes
    settings = {"tree_method": "hist", "max_depth": 3, "max_bin": 16, "eta": 0.3, "nthread": 1}
    settings["objective"] = {"binary": "binary:logistic", "regression": "reg:squarederror", "multiclass": "multi:softprob"}[task]  # fmt: skip
    if task == "multiclass":
        settings["num_class"] = 3
    theirs = xgboost.train(settings, xgboost.DMatrix(files.x[at[train]], y[at[train]]), 6)
    columns = [f"federated_{name}" for name in names] if task == "multiclass" else ["federated"]
    ours = np.array([[float(row[name]) for name in columns] for row in rows])
    scale = np.std(y) if task == "regression" else 1.0
    assert np.abs(ours - theirs.predict(xgboost.DMatrix(files.x[at])).reshape(len(at), -1)).max() / scale < 5e-6
    assert [row["y"] for row in rows][:5] == [str(np.float32(y[i])) if task == "regression" else str(files.y[task][i]) for i in at[:5]]  # fmt: skip


def test_encrypted_and_shuffled_the_file_is_the_same(files, asked, tmp_path):
    pytest.importorskip("gmpy2")
    words = ("--trees", 2, "--depth", 2, "--bins", 8, "--short-exponents")
    found = asked(*files(), *words, "--predictions", tmp_path / "one.csv")
    assert (found["security"], found["difference"]) == ("paillier", 0)
    assert found["seconds"] > 0
    assert found["predicted_seconds"] > 0
    assert found["bytes"] > 2 * found["rows"]["train"] * 512
    assert any("448 bits" in line for line in found["learns"]["shop"])
    order = np.random.default_rng(1).permutation(ROWS)
    words = ("--trees", 2, "--depth", 2, "--bins", 8, "--security", "none", "--predictions", tmp_path / "two.csv")
    asked(*files(order=order), *words)
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()


def test_hidden_trees_are_those_of_all_columns_in_one_place(files, asked):
    pytest.importorskip("gmpy2")
    pytest.importorskip("rbcl")
    found = asked(*files(), "--model", "pivot", "--security", "enhanced", "--trees", 1, "--depth", 1, "--bins", 4)
    assert (found["security"], found["difference"]) == ("enhanced", 0)
    assert found["predicted_seconds"] > 0
    assert not any("split" in line for line in found["learns"]["shop"])


def test_trees_by_products_are_exact_and_noise_needs_an_epsilon(files, asked):
    pytest.importorskip("rbcl")
    few = ("--model", "fedxgboost", "--trees", 2, "--bins", 8)
    found = asked(*files(), *few)
    assert (found["security"], found["difference"]) == ("product", 0)
    told = asked(*files(), *few, "--security", "noise", "--epsilon", 2)
    assert any("epsilon 2.0" in line for line in told["learns"]["shop"])
    assert told["difference"] > 0
    assert "epsilon=None" in asked(*files(), *few, "--security", "noise", code=2)["error"]["what"]


def test_what_is_wrong_is_refused(files, asked, tmp_path):
    bank, shop = files()
    few = ("--trees", 1, "--security", "none")
    assert "no column 'nobody'" in asked(bank, shop, "--label", "nobody", *few, code=3)["error"]["what"]
    assert "--model forest" in asked(bank, shop, "--model", "forest", code=2)["error"]["what"]
    assert "security='magic'" in asked(bank, shop, "--security", "magic", code=2)["error"]["what"]
    other = write(tmp_path / "other.csv", {"id": ["q1", "q2"], "e": [1.0, 2.0]})
    assert "0 shared rows" in asked(bank, other, *few, code=3)["error"]["what"]
    named = write(tmp_path / "named.csv", {"id": files.ids, "y": [1.0] * ROWS})
    assert "the name of the guest's labels" in asked(bank, named, *few, code=3)["error"]["what"]


def test_codes_of_categories_are_named_by_their_columns(files, asked):
    bank, shop = files()
    few = ("--trees", 1, "--depth", 1, "--security", "none")
    told = asked(bank, shop, "--categories", "nowhere", *few, code=3)["error"]
    assert "no column 'nowhere' in any of the files" in told["what"]
    told = asked(bank, shop, "--categories", "c", "--model", "linear", code=4)["error"]
    assert "categories=['c'] with VerticalLinear" in told["what"]


def test_people_get_a_table(files, capsys):
    assert run(["vertical", *files(), "--trees", "1", "--security", "none"]) == 0
    told, said = capsys.readouterr()
    assert "shop learns" in told
    assert "largest difference to pooled" in told
    assert "security" in told
    assert "SecureBoost of bank, shop with security none: about" in said


def test_a_transcript_has_no_key_and_no_cell(files, asked, tmp_path):
    """Keys and cells as text and as numbers; labels are found in what a host hears without encryption."""
    pytest.importorskip("gmpy2")
    words = ("--trees", 1, "--depth", 2, "--bins", 8)
    asked(*planted(files, tmp_path), *words, "--short-exponents", "--transcript", tmp_path / "sealed")
    assert sorted(one.name for one in (tmp_path / "sealed").iterdir()) == ["bank--shop.bin", "shop--bank.bin"]
    assert found_in(tmp_path / "sealed") == []
    asked(*planted(files, tmp_path), *words, "--security", "none", "--transcript", tmp_path / "open")
    heard = messages_of(tmp_path / "open" / "bank--shop.bin")
    begun = next(one for one in heard if isinstance(one, dict) and one.get("do") == "begin")
    assert len(np.unique(np.asarray(begun["sealed"])[:, 0])) == 2
    kinds = [one["do"] for one in heard if isinstance(one, dict) and "do" in one]
    assert (kinds[0], kinds[-1]) == ("begin", "grown")


def planted(files, tmp_path):
    """The files with keys of 8 characters, and a cell of 8 bytes at each party."""
    paths = files()
    for path, column in zip(paths, ("b", "d"), strict=True):
        rows = rows_of(tmp_path / path)
        for row in rows:
            row["id"] = f"cust{row['id']}"
        rows[7][column] = CELLS[column]
        write(tmp_path / path, {name: [row[name] for row in rows] for name in rows[0]})
    return paths


CELLS = {"b": "31415.92", "d": "27182.81"}


def found_in(folder):
    """What must not be in the messages of a link."""
    ids = [f"cust{i:04}".encode() for i in range(ROWS)]
    cells = [form for text in CELLS.values() for form in (text.encode(), np.float64(text).tobytes())]
    return [(file.name, one) for file in folder.iterdir() for one in (*ids, *cells) if one in file.read_bytes()]


def messages_of(file):
    return [decode(one) for one in split_frames(file.read_bytes())]


@pytest.mark.network
def test_real_processes_write_the_same_file(files, asked, tmp_path):
    """Also with the host's rows shuffled; what they say to each other has no key and no cell."""
    pytest.importorskip("gmpy2")
    words = ("--trees", 2, "--depth", 2, "--bins", 8, "--short-exponents")
    here = asked(*planted(files, tmp_path), *words, "--predictions", tmp_path / "one.csv")
    bank, _ = planted(files, tmp_path)
    rows = rows_of(tmp_path / "shop.csv")
    order = np.random.default_rng(2).permutation(len(rows))
    shop = write(
        tmp_path / "a-shop.csv", {name: [rows[i][name] for i in order] for name in rows[0]}
    )  # before the bank by name
    more = ("--predictions", tmp_path / "two.csv", "--transcript", tmp_path / "heard", "--poc")
    there = asked(bank, shop, *words, *more)
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()
    assert found_in(tmp_path / "heard") == []
    assert sum(len(messages_of(file)) for file in (tmp_path / "heard").iterdir()) > 10
    for name in ("rows", "federated", "pooled", "difference"):
        assert there[name] == here[name]
    assert there["learns"]["a-shop"] == here["learns"]["shop"]
    assert there["bytes"] == here["bytes"]
    assert there["seconds"] > 0


def test_a_file_whose_name_no_site_can_have_is_refused(files, asked, tmp_path):
    bank, _ = files()
    other = write(tmp_path / "my shop.csv", {"id": files.ids, "e": [1.0] * ROWS})
    assert "'my shop' cannot be the name of a site" in asked(bank, other, "--poc", code=2)["error"]["what"]


@pytest.mark.parametrize("task", ["binary", "regression", "multiclass"])
def test_a_linear_model_is_that_of_all_columns(files, asked, tmp_path, task):
    found = asked(*files(task), "--model", "linear", "--security", "none", "--predictions", tmp_path / "F.csv")
    assert found["task"] == task
    assert found["difference"] < 1e-10
    assert found["federated"] == pytest.approx(found["pooled"], abs=1e-12)
    assert set(found["rows"]) == {"guest", "host", "aligned", "train", "test"}
    assert any("labels" in line for line in found["learns"]["shop"])
    assert min(found["seconds"], found["predicted_seconds"], found["bytes"]) > 0
    assert len(rows_of(tmp_path / "F.csv")) == ROWS


def test_labels_of_a_host_teach_too(files, asked, tmp_path):
    bank, shop = files("multiclass", order=np.arange(ROWS)[::-1])
    plain = asked(bank, shop, "--model", "mmvfl")
    lines = Path(shop).read_text(encoding="utf-8").splitlines()
    seen = [
        "seen",
        *("" if i % 3 == 0 else str((label + 1) % 3) for i, label in enumerate(files.y["multiclass"][::-1])),
    ]
    Path(shop).write_text("".join(f"{a},{b}\n" for a, b in zip(lines, seen, strict=True)), encoding="utf-8")
    found = asked(bank, shop, "--model", "mmvfl", "--host-labels", "shop=seen")
    assert found["difference"] < 1e-12
    assert any("the labels of shop" in line for line in found["learns"]["bank"])
    assert found["federated"] < plain["federated"], "the shop's labels are wrong, and count"
    refused = asked(bank, shop, "--model", "mmvfl", "--host-labels", "shop", code=2)
    assert refused["error"]["what"] == "--host-labels shop"


@pytest.mark.slow  # so is that of the arbiter, whose transcript is looked at below
def test_a_linear_model_on_ciphertexts_is_the_plain_one(files, asked):
    pytest.importorskip("gmpy2")
    found = asked(*files(), "--model", "linear", "--short-exponents")
    assert found["security"] == "pair"
    assert found["difference"] < 1e-8
    assert any("2048 bits" in line for line in found["learns"]["shop"])


@pytest.mark.parametrize(("security", "bound"), [("shared", 1e-3), ("ckks", 1e-5)])
def test_a_linear_model_on_shares_and_under_ckks_is_in_bounds(files, asked, security, bound):
    pytest.importorskip("tenseal")
    found = asked(*files(), "--model", "linear", "--security", security)
    assert found["security"] == security
    assert 0 < found["difference"] < bound
    assert found["federated"] > found["alone"]


def test_the_arbiters_messages_are_in_the_transcript(files, asked, tmp_path):
    pytest.importorskip("gmpy2")
    found = asked(*files(), "--model", "linear", "--security", "arbiter", "--short-exponents", "--transcript", tmp_path / "heard")  # fmt: skip
    assert (found["security"], set(found["learns"])) == ("arbiter", {"bank", "shop", "arbiter"})
    assert found["difference"] < 1e-8
    names = {"bank", "shop", "arbiter"}
    assert {p.name for p in (tmp_path / "heard").iterdir()} == {f"{a}--{b}.bin" for a in names for b in names - {a}}
    assert (tmp_path / "heard" / "bank--arbiter.bin").stat().st_size > 512


def test_options_of_another_model_are_refused(files, asked):
    told = asked(*files(), "--model", "linear", "--trees", 3, code=2)["error"]
    assert "--trees with --model linear" in told["what"]
    assert "--model boost" in told["remedy"]
    assert "--penalty with --model boost" in asked(*files(), "--penalty", 3, code=2)["error"]["what"]


@pytest.mark.parametrize(
    "task",
    [pytest.param("binary", marks=pytest.mark.slow), pytest.param("regression", marks=pytest.mark.slow), "multiclass"],
)
def test_a_split_network_is_the_one_of_all_columns(files, asked, tmp_path, task):
    pytest.importorskip("torch")
    out = tmp_path / "F.csv"
    found = asked(*files(task), "--model", "net", "--epochs", 3, "--rate", 0.01, "--predictions", out)
    assert found["difference"] < 1e-5
    assert (found["task"], found["security"]) == (task, "none")
    assert {"alone", "federated", "pooled", "seconds", "predicted_seconds", "bytes", "learns"} < set(found)
    assert len(rows_of(out)) == found["rows"]["aligned"] == ROWS


def test_attacks_on_a_split_network_are_told(files, asked):
    pytest.importorskip("torch")
    words = ("--model", "net", "--epochs", 2, "--attack", "norm,direction,inversion")
    for defence in ("none", "maxnorm,sun"):
        found = asked(*files(), *words, "--defend", defence)
        assert list(found["attacks"]) == ["norm", "direction", "inversion"]
        assert all(0 <= value <= 1 for value in found["attacks"].values())
    assert "--defend magic" in asked(*files(), *words, "--defend", "magic", code=2)["error"]["what"]


def test_an_option_of_another_model_is_refused(files, asked):
    assert "--trees with --model net" in asked(*files(), "--model", "net", "--trees", 3, code=2)["error"]["what"]
    assert "--epochs with --model boost" in asked(*files(), "--epochs", 3, code=2)["error"]["what"]


@pytest.mark.network
def test_an_arbiter_between_real_processes_gives_the_same_file(files, asked, tmp_path):
    pytest.importorskip("gmpy2")
    words = ("--model", "linear", "--security", "arbiter", "--short-exponents", "--predictions")
    asked(*files(), *words, tmp_path / "one.csv")
    order = np.random.default_rng(1).permutation(ROWS)
    found = asked(*files(order=order), *words, tmp_path / "two.csv", "--poc", "--transcript", tmp_path / "heard")
    assert found["difference"] < 1e-8
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()
    assert (tmp_path / "heard" / "arbiter--shop.bin").stat().st_size > 256


@pytest.mark.network
@pytest.mark.slow  # shares between processes: `vertical/test_linear_network.py`; ciphertexts: the arbiter above
@pytest.mark.parametrize(("security", "bound"), [("pair", 0.0), ("shared", 1e-3), ("ckks", 1e-5)])
def test_a_linear_model_between_real_processes_writes_the_same_file(files, asked, tmp_path, security, bound):
    """To the byte where sums are exact; shares and CKKS round by noise that each run draws, so there in bounds."""
    pytest.importorskip("gmpy2")
    if security == "ckks":
        pytest.importorskip("tenseal")
    short = ["--short-exponents"] if security == "pair" else []
    words = ("--model", "linear", "--security", security, *short, "--predictions")
    asked(*files(), *words, tmp_path / "one.csv")
    order = np.random.default_rng(1).permutation(ROWS)
    found = asked(*files(order=order), *words, tmp_path / "two.csv", "--poc")
    assert found["difference"] < (bound or 1e-8)
    one, two = (rows_of(tmp_path / f"{name}.csv") for name in ("one", "two"))
    if not bound:
        assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()
    for a, b in zip(one, two, strict=True):
        assert all(a[key] == b[key] for key in ("id", "split", "y", "alone", "pooled"))
        assert abs(float(a["federated"]) - float(b["federated"])) <= bound


@pytest.mark.quick("woe")
@pytest.mark.parametrize("statistic", ["woe", "correlation"])
def test_statistics_train_nothing(files, asked, capsys, statistic):
    pytest.importorskip("gmpy2")
    found = asked(*files(), "--statistics", statistic, "--short-exponents", "--test", 0)
    assert found["rows"]["train"] == ROWS
    assert found["security"] == "paillier"
    assert min(found["seconds"], found["predicted_seconds"], found["bytes"]) > 0
    names = ["bank.a", "bank.b", "shop.c", "shop.d"]
    if statistic == "woe":
        assert found["classes"] == ["yes"]
        assert list(found["iv"]) == names
        assert found["iv"]["shop.c"][0] > 0.3 > found["iv"]["bank.b"][0]
        assert sum(found["columns"]["shop.c"]["rows"]) == ROWS
    else:
        assert found["columns"] == [*names[:2], "bank.y", *names[2:]]
        x = np.concatenate([files.x[:, :2], (files.y["binary"] == "yes")[:, None], files.x[:, 2:]], axis=1)
        x = np.where(np.isnan(x), np.nanmean(x.astype(np.float64), axis=0), x)
        np.testing.assert_allclose(found["correlation"], np.corrcoef(x.T), atol=1e-6)
    assert run(["vertical", *files(), "--statistics", statistic, "--short-exponents"]) == 0
    assert "shop.c" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (("woe", "--trees", 3), "--trees with --statistics woe"),
        (("correlation", "--bins", 3), "--bins with --statistics correlation"),
        (("woe", "--predictions", "F.csv"), "--predictions with --statistics"),
        (("mean",), "statistic='mean'"),
    ],
)
def test_statistics_with_options_of_models_are_refused(files, asked, words, match):
    assert match in asked(*files(), "--statistics", *words, code=2)["error"]["what"]


@pytest.mark.network
@pytest.mark.quick("woe*")
@pytest.mark.parametrize(("statistic", "name"), [("woe", "iv"), ("correlation", "correlation")])
def test_statistics_between_real_processes_are_the_same(files, asked, statistic, name):
    pytest.importorskip("gmpy2")
    words = ("--statistics", statistic, "--short-exponents")
    order = np.random.default_rng(1).permutation(ROWS)
    assert asked(*files(), *words)[name] == asked(*files(order=order), *words, "--poc")[name]


@pytest.mark.network
def test_a_split_network_between_real_processes_writes_the_same_file(files, asked, tmp_path):
    pytest.importorskip("torch")
    words = ("--model", "net", "--epochs", 3, "--attack", "direction", "--predictions")
    here = asked(*files("binary"), *words, tmp_path / "one.csv")
    order = np.random.default_rng(1).permutation(ROWS)
    there = asked(*files("binary", order=order), *words, tmp_path / "two.csv", "--poc")
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()
    assert there["attacks"] == here["attacks"]


def test_a_transcript_needs_a_folder(files, asked, tmp_path):
    (tmp_path / "heard").write_text("", encoding="utf-8")
    error = asked(*files(), "--security", "none", "--transcript", tmp_path / "heard", code=2)["error"]
    assert "it is a file" in error["what"]


def test_a_kept_model_predicts_new_rows_in_the_order_asked(files, asked, tmp_path, capsys):
    bank, shop = files()
    kept, out = tmp_path / "kept", tmp_path / "answers.csv"
    asked(bank, shop, "--trees", 2, "--security", "none", "--folder", kept, "--predictions", tmp_path / "F.csv")
    with (tmp_path / "F.csv").open(encoding="utf-8") as file:
        told = {row["id"]: row["federated"] for row in csv.DictReader(file)}
    names = [files.ids[i] for i in (9, 3, 200)]
    rows = {"id": names, "a": [files.x[int(i), 0] for i in names], "b": [files.x[int(i), 1] for i in names]}
    new = write(tmp_path / "new.csv", rows)

    def predict(code=0, *more):
        assert run(["predict", str(kept), "--rows", new, "--out", str(out), *more, "--json"]) == code
        return json.loads(capsys.readouterr().out)

    told_of_rows = predict()
    assert (told_of_rows["rows"], "notices" in told_of_rows) == (3, False)
    with out.open(encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    assert [row["id"] for row in found] == names
    assert [row["probability_yes"] for row in found] == [told[name] for name in names]
    write(tmp_path / "new.csv", {**rows, "a": [1000 * one for one in (-3.0, -4.0, -5.0)]})
    assert predict()["notices"][0].startswith(
        "table of 'bank': column 'a' of the rows lies around -4000, and nearly all"
    )
    write(tmp_path / "new.csv", {**rows, "id": ["nobody", *names[1:]]})
    assert "1 of 3 rows are not at 'shop': «nobody»" in predict(3)["error"]["what"]
    assert predict(0, "--unknown", "guest")["rows"] == 3
    write(tmp_path / "new.csv", {**rows, "id": ["nobody", "Nobody", names[2]]})
    with pytest.warns(UserWarning, match="in capitals alone"):  # of keys, and no notice of the rows
        assert "notices" not in predict(0, "--unknown", "guest")
    write(tmp_path / "new.csv", {**rows, "id": ["", *names[1:]]})
    assert "row 2 has no key" in predict(3)["error"]["what"]
    write(tmp_path / "new.csv", {**rows, "id": [names[0], names[1], names[0]]})
    twice = predict(3)["error"]
    assert twice["what"] == f"1 keys stand in several rows, one in rows 2 and 4: «{names[0]}»"
    assert twice["remedy"] == "leave one row of each key"
    write(tmp_path / "new.csv", rows)
    whole = Path(shop).read_text(encoding="utf-8")
    Path(shop).write_text(whole + whole.splitlines()[1] + "\n", encoding="utf-8")  # the host has a key twice by now
    assert "keys stand in several rows" in predict(3)["error"]["what"]
    Path(shop).write_text(whole, encoding="utf-8")
    assert sorted(file.name for file in (kept / "results" / "bank").glob("*.msg")) == ["vertical-model.msg", "vertical-outcome.msg"]  # fmt: skip
    assert run(["vertical", bank, shop, "--folder", str(kept), "--json"]) == 2
    assert "is not empty" in capsys.readouterr().out


def test_columns_are_left_out_and_odd_ones_are_what_they_are(files, asked, tmp_path):
    """A column without values is one of numbers that are missing, for every model; a copy of the keys in other capitals is another key, and said."""
    bank, shop = files(extra=0)
    few = ("--trees", 2, "--security", "none")
    plain = asked(bank, shop, *few)
    rows = list(csv.reader(Path(shop).read_text(encoding="utf-8").splitlines()))
    write(tmp_path / "shop.csv", {name: [row[i] for row in rows[1:]] for i, name in enumerate(rows[0])} | {"note": ["x y"] * ROWS, "gap": [""] * ROWS})  # fmt: skip
    dropped = asked(bank, shop, *few, "--drop", "note")
    assert dropped["federated"] == plain["federated"]
    linear = asked(bank, shop, "--model", "linear", "--security", "none", "--drop", "note,b")
    assert linear["difference"] < 1e-9
    assert asked(bank, shop, "--drop", "id", code=2)["error"]["what"].startswith("--drop id: it is the column of --id")
    assert "no column 'nope'" in asked(bank, shop, "--drop", "nope", code=3)["error"]["what"]
    write(tmp_path / "shop.csv", {"id": [one if int(one) % 2 else f"X{one}" for one in files.ids], "c": [1.0] * ROWS})
    write(tmp_path / "bank.csv", {"id": [one if int(one) % 2 else f"x{one}" for one in files.ids], "a": files.x[:, 0].tolist(), "y": [int(v > 0) for v in files.x[:, 1]]})  # fmt: skip
    with pytest.warns(UserWarning, match=f"{ROWS // 2} keys of bank and shop differ in capitals alone"):
        asked(bank, shop, *few)


def test_keys_that_a_program_took_for_numbers_are_said(files, asked, tmp_path):
    """007 at one party and 7 or 7.0 at the other, as a table of numbers is written again, are different keys: none would be shared."""
    bank, shop = files()
    for again in ("{}", "{}.0"):
        write(tmp_path / "bank.csv", {"id": [f"{int(one):09d}" for one in files.ids], "a": files.x[:, 0].tolist(), "y": [int(v > 0) for v in files.x[:, 1]]})  # fmt: skip
        write(tmp_path / "shop.csv", {"id": [again.format(int(one)) for one in files.ids], "c": files.x[:, 2].tolist()})
        with pytest.warns(
            UserWarning, match=rf"{ROWS} keys of bank and shop differ in zeros, as in 007 and 7, or 7\.0"
        ):
            asked(bank, shop, "--trees", 2, "--security", "none", code=3)


def test_labels_that_single_precision_cannot_hold_are_refused(files, asked, tmp_path):
    bank, shop = files("regression")
    base = 1_700_000_000
    write(tmp_path / "bank.csv", {"id": files.ids, "a": files.x[:, 0].tolist(), "y": [base + i for i in range(ROWS)]})
    few = ("--trees", 2, "--security", "none")
    told = asked(bank, shop, *few, code=3)["error"]
    assert "column 'y' has values that differ, but are equal in single precision" in told["what"]
    assert "at all parties" not in told["remedy"]
    assert asked(bank, shop, "--model", "linear", "--security", "none")["task"] == "regression"
    write(
        tmp_path / "bank.csv",
        {"id": files.ids, "a": files.x[:, 0].tolist(), "y": [base + 128 * i for i in range(ROWS)]},
    )
    asked(bank, shop, *few, "--predictions", tmp_path / "F.csv")
    for row in rows_of(tmp_path / "F.csv"):
        assert float(row["y"]) == base + 128 * int(row["id"])
        assert float(row["federated"]) == np.float32(row["federated"])
    write(tmp_path / "bank.csv", {"id": files.ids, "a": files.x[:, 0].tolist(), "y": files.x[:, 1].tolist()})
    assert "with fractions, for task='multiclass'" in asked(bank, shop, *few, "--task", "multiclass", code=3)["error"]["what"]  # fmt: skip
    write(tmp_path / "bank.csv", {"id": files.ids, "a": files.x[:, 0].tolist(), "y": [i % 4 for i in range(ROWS)]})
    assert asked(bank, shop, "--model", "linear", "--security", "none", "--family", "poisson")["task"] == "regression"


def test_an_attack_that_nobody_knows_is_named_as_it_was_typed(files, asked):
    told = asked(*files(), "--model", "net", "--attack", "nrm", code=2)["error"]
    assert told["what"] == "--attack nrm. Did you mean 'norm'?"


def test_codes_of_missing_values_are_said_of_columns_at_several_parties_too(files, asked, tmp_path):
    bank, shop = files()
    rows = list(csv.reader(Path(shop).read_text(encoding="utf-8").splitlines()))
    write(
        tmp_path / "shop.csv", {"id": [row[0] for row in rows[1:]], "c": ["-99", "-99", *(row[1] for row in rows[3:])]}
    )
    with pytest.warns(UserWarning, match="column 'c' has -99 in 2 rows of client 'shop'"):
        asked(bank, shop, "--trees", 2, "--security", "none")
