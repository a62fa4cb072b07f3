"""``atoll labels``: the methods, and whether rows without labels help."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from atoll.cli.app import run
from atoll.core.errors import ConfigError, DataError
from atoll.data import Dataset, Islands
from atoll.study.label_methods import (
    LabelRuns,
    _describe_method,
    choose_methods,
    known_methods,
    probe_model,
    tell_in_turn,
)
from atoll.study.label_rows import LabelSetting, rows_of, with_few_labels
from atoll.views import Translate
from tests.support.label_toys import images

KEYS = {"scores", "median", "gain", "interval", "coverage", "purity", "seconds", "bytes_up", "bytes_down", "client_state", "exposes"}  # fmt: skip


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Toy images, with rows to test on."""
    train, test = images(120, share=2.0), images(40, share=2.0, seed=1)
    file = tmp_path_factory.mktemp("rows") / "toy.npz"
    np.savez(file, x=train["x"], y=train["y"], x_test=test["x"], y_test=test["y"])
    return str(file)


def answer(capsys, *words, code=0):
    assert run(["labels", *map(str, words), "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_relabelling_goes_around_fixmatch_at_the_common_rate():
    runs = LabelRuns(images(20, share=2.0), LabelSetting(at="rows", keep=8), rounds=7, lr=0.02)
    made = runs.method("Relabel")
    assert (type(made.base).__name__, made.lr, made.base.horizon) == ("FixMatch", 0.02, 7)
    assert "Relabel" in known_methods()


def test_all_methods_of_the_survey_are_listed(capsys, monkeypatch):
    rows = answer(capsys, "methods")["methods"]
    assert len(rows) == 21
    assert all(row["here"] and not row["to_come"] for row in rows)
    assert {"SemiFL", "FedMatch", "RSCFed", "FedU", "FedEMA", "Orchestra"} <= {
        row["name"] for row in rows if row["here"]
    }
    assert {row["class"] for row in rows} >= {
        "atoll.labels.SemiFL",
        "atoll.vertical.SFTL",
        "atoll.vertical.SFHTL",
        "atoll.vertical.PrADA",
    }
    assert all(row[what] for row in rows for what in ("setting", "state", "bits_up", "bits_down", "exposes"))
    monkeypatch.setenv("COLUMNS", "250")
    assert run(["labels", "methods"]) == 0
    shown = capsys.readouterr().out
    assert "PrADA" in shown
    assert "to come" not in shown


@pytest.mark.slow
@pytest.mark.quick("rows-FixMatch")  # labels at the server warm up for 250 steps, and the baselines take as many
@pytest.mark.parametrize(("at", "name"), [("rows", "FixMatch"), ("server", "SemiFL")])
def test_a_comparison_has_the_strongest_of_labelled_rows_alone_beside_each_method(capsys, archive, at, name):
    words = ("--at", at, "--keep", 8, "--parties", 2, "--rounds", 1, "--seeds", 1, "--lr", 0.05)
    found = answer(capsys, "compare", archive, "--methods", f"labelled,{name}", *words)
    assert set(found) == {"setting", "rows", "metric", "baseline", "methods", "helped"}
    assert set(found["baseline"]) == {"name", "scores", "median"}
    assert set(found["methods"]) == {name}
    assert set(found["methods"][name]) == KEYS
    made = found["methods"][name]
    assert found["baseline"]["median"] == max(found["setting"]["baselines"].values())
    assert made["gain"] == pytest.approx(made["median"] - found["baseline"]["median"])
    assert (made["interval"], found["helped"]) == (None, [])  # one seed says nothing of the spread
    assert made["client_state"] == "none"


@pytest.mark.slow  # `labels/test_guard_and_relabel.py` has the laws of the guard
def test_a_guard_says_whether_a_method_stayed(archive):
    setting = LabelSetting(at="rows", keep=60, parties=2)
    runs = LabelRuns(rows_of(archive), setting, rounds=2, lr=0.02, guard=True)
    verdict = runs.train_method("FixMatch", 0)["guard"]
    assert verdict["on"] or verdict["gain"] < 0  # only a harm makes it fall
    plain = runs.guard_algorithm(runs.method("FixMatch")).plain
    assert (plain.steps, plain.horizon) == (runs.method("FixMatch").steps, 2)
    with pytest.raises(ConfigError, match="no label can judge"):
        replace(runs, setting=LabelSetting(at="none", keep=8)).train_method("FedSimCLR", 0)


def test_settings_that_make_no_comparison_are_refused(capsys, archive):
    refused = {
        "neither keep nor wrong": (archive,),
        "method 'SemFL'": (archive, "--keep", 8, "--methods", "SemFL"),
        "DATA 'mnits'": ("mnits", "--keep", 8),
        "lr=0": (archive, "--keep", 8, "--lr", 0),
        "name it: --target": ("rows.csv", "--keep", 8),
        "at='sever'. Did you mean 'server'": (archive, "--keep", 8, "--at", "sever"),
        "remove labels, or spoil them": (archive, "--keep", 8, "--wrong", 0.4),
    }
    for said, words in refused.items():
        assert run(["labels", "compare", *map(str, words)]) != 0
        assert said in " ".join(capsys.readouterr().err.split())


@pytest.fixture(scope="module")
def clinics(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table as people have it: two of three labels are missing, and a column names the clinic of a row."""
    draw = np.random.default_rng(0)
    y, x = draw.integers(0, 2, 90), draw.normal(size=(90, 2)).round(3)
    lines = [
        f"{a},{b},{('benign', 'malignant')[c] if i % 3 == 0 else ''},{'ab'[i % 2]}"
        for i, ((a, b), c) in enumerate(zip(x, y, strict=True))
    ]
    file = tmp_path_factory.mktemp("table") / "scans.csv"
    file.write_text("\n".join(["size,density,diagnosis,clinic", *lines]))
    return str(file)


def test_labels_that_are_missing_already_are_the_question(clinics):
    rows = rows_of(clinics, "diagnosis", party="clinic")
    setting = LabelSetting().of(rows)
    assert (setting.alpha, setting.parties, rows.x.shape) == (0.0, 2, (90, 2))
    islands = with_few_labels(rows, setting, 0, "party")
    assert list(islands.names) == ["a", "b"]
    assert (
        "labelled" not in islands.test or islands.test["labelled"].all()
    )  # a hidden label would be measured as class 0
    assert len(islands.test) == 6
    assert sum(int(shard["labelled"].sum()) for shard in islands) == 30 - 6
    few = with_few_labels(rows, LabelSetting(keep=4, parties=3), 0)
    assert sum(int(shard["labelled"].sum()) for shard in few) == 4
    refused = {
        "at='server', and no number of labels": LabelSetting(at="server"),
        "alpha=0.5: the class of each row": LabelSetting(alpha=0.5),
    }
    for said, asked in refused.items():
        with pytest.raises(ConfigError, match=said):
            asked.of(rows)


def test_an_archive_names_owners_missing_labels_and_rows_to_test_on(tmp_path):
    y = np.arange(40) % 4
    pixels = np.arange(40 * 64, dtype=np.uint16).reshape(40, 8, 8) % 256
    held = {"x_test": pixels[:9].astype(np.uint8), "y_test": np.where(np.arange(9) % 3, y[:9], -1)}
    np.savez(
        tmp_path / "a.npz",
        x=pixels.astype(np.uint8),
        y=np.where(y, y, -1),
        party=np.arange(40) % 5,
        site=np.arange(40) % 2,
        **held,
    )
    rows = rows_of(str(tmp_path / "a.npz"), missing="-1")
    assert (rows.x.shape, rows.x.dtype, float(rows.x.max())) == ((40, 1, 8, 8), np.float32, 1.0)
    assert len(with_few_labels(rows, LabelSetting(), 0, "party")) == 5
    assert len(with_few_labels(rows, LabelSetting(), 0, "party").test) == 6
    assert (
        len(with_few_labels(rows_of(str(tmp_path / "a.npz"), missing="-1", party="site"), LabelSetting(), 0, "party"))
        == 2
    )
    for said, more in {
        "no array 'clinic'": {"party": "clinic"},
        "an archive has no column 'y'": {"target": "y"},
    }.items():
        with pytest.raises(DataError, match=said):
            rows_of(str(tmp_path / "a.npz"), missing="-1", **more)


def test_each_training_that_has_ended_is_told():
    lines: list[str] = []
    told = tell_in_turn(lines.append, 2)
    told("baselines", 0, 0.91)
    told("SemiFL", 0, None)
    assert [line.partition(" in ")[0] for line in lines] == [
        "1 of 2: baselines, seed 0, 0.910,",
        "2 of 2: SemiFL, seed 0,",
    ]


def test_parties_and_labels_follow_the_seed(archive):
    setting = LabelSetting(at="rows", keep=12, size=100, parties=3)
    one, again, other = (with_few_labels(rows_of(archive), setting, seed) for seed in (0, 0, 1))
    assert [shard["x"].tolist() for shard in one] == [shard["x"].tolist() for shard in again]
    assert one.sizes.sum() == 100
    assert sum(int(shard["labelled"].sum()) for shard in one) == 12
    assert one.sizes.tolist() != other.sizes.tolist()


def test_each_setting_has_a_method_by_default_that_fits_it():
    wanted = {"ForwardCorrection": {"wrong": 0.4}, "FedSimCLR": {"at": "none", "keep": 8}, "SemiFL": {"keep": 8}}
    for name, settings in wanted.items():
        setting = LabelSetting(**settings)
        assert choose_methods(None, setting) == [name]
        assert name in known_methods(setting.at)
    assert choose_methods("labelled,Relabel", LabelSetting(wrong=0.1)) == ["Relabel"]


def test_what_a_method_exposes_is_said_whether_the_survey_has_it_or_not():
    wanted = {"ForwardCorrection": "counts of neighbours' labels", "SemiFL": "nothing"}
    assert {name: _describe_method(name)["exposes"] for name in wanted} == wanted


def test_wrong_labels_are_those_of_the_next_class(archive):
    rows = rows_of(archive)
    setting = LabelSetting(keep=None, wrong=0.25, size=None, parties=2, alpha=0.0)
    spoilt = with_few_labels(rows, setting, 0).pooled()
    right = {row.tobytes(): label for row, label in zip(rows["x"], rows["y"], strict=True)}
    moved = [(label - right[row.tobytes()]) % 4 for row, label in zip(spoilt["x"], spoilt["y"], strict=True)]
    assert set(moved) == {0, 1}
    assert np.mean(moved) == pytest.approx(0.25, abs=0.02)


def test_a_baseline_takes_as_many_steps_as_the_global_model_of_a_method(archive):
    runs = LabelRuns(rows_of(archive), LabelSetting(at="server", keep=8), rounds=10)
    made = runs.method("SemiFL")
    assert runs.steps(made) == 250 + 10 * (12 + 12)
    assert runs.method("FixMatch").horizon == 10
    with pytest.raises(ConfigError, match="method 'Semi'"):
        runs.method("Semi")


def test_settings_follow_where_the_labels_are_and_without_any_features_are_few():
    """FedSimCLR and 5 clients, longer trainings where labels stay at clients; a stride and two poolings leave 3 x 3 places of 28 x 28 pixels, and small images keep theirs."""
    usual = {at: LabelSetting(at=at, keep=8) for at in ("rows", "server", "none")}
    assert {at: (choose_methods(None, one), one.parties, one.usual_rounds) for at, one in usual.items()} == {
        "rows": (["SemiFL"], 20, 100),
        "server": (["SemiFL"], 20, 60),
        "none": (["FedSimCLR"], 5, 50),
    }
    assert LabelSetting(wrong=0.4).usual_rounds == 60
    for side, at, features in ((28, "none", 288), (28, "rows", 32 * 49), (7, "none", 32 * 4), (8, "none", 32)):
        rows = Dataset({"x": np.zeros((2, 1, side, side), np.float32), "y": np.arange(2)}, classes=2)
        runs = LabelRuns(rows, usual[at], rounds=1)
        assert runs.encoder()(torch.zeros(2, 1, side, side)).shape == (2, runs.features) == (2, features)


def test_without_labels_strokes_change_and_an_encoder_that_sees_every_pixel_is_a_baseline():
    rows = Dataset({"x": np.zeros((2, 1, 15, 17), np.float32), "y": np.arange(2)}, classes=2)
    none, some = (LabelRuns(rows, LabelSetting(at=at, keep=8), rounds=1) for at in ("none", "rows"))
    assert [type(link).__name__ for link in none.contrasted.links] == ["Affine", "Thicken", "ColourJitter", "Cutout"]
    assert none.method("FedSimCLR").view == none.contrasted
    assert some.method("FixMatch").strong == some.views()["strong"]
    for whole in (False, True):
        assert none.siamese(whole).train()(torch.zeros(3, 1, 15, 17)).shape[0] == 3
    table = LabelRuns(
        Dataset({"x": np.zeros((2, 3), np.float32), "y": np.arange(2)}, classes=2), none.setting, rounds=1
    )
    assert table.contrasted == table.views()["strong"]


@pytest.mark.slow
def test_without_labels_a_probe_measures_features(capsys, archive):
    words = ("--at", "none", "--keep", 12, "--parties", 2, "--rounds", 1, "--seeds", 1)
    found = answer(capsys, "compare", archive, *words)
    assert found["metric"] == "probe accuracy"
    assert set(found["methods"]) == {"FedSimCLR"}  # nobody named a method, and SemiFL needs labels
    sources, views = ("pixels", "untrained", "untrained without stride"), ("no", "weak", "strong")
    assert set(found["setting"]["baselines"]) == {f"{source}, {view} views" for source in sources for view in views}
    assert found["methods"]["FedSimCLR"]["coverage"] is None
    assert 0.0 < found["methods"]["FedSimCLR"]["median"] <= 1.0


@pytest.mark.slow
def test_pretraining_and_then_a_method_share_rows_rounds_and_costs(archive, monkeypatch):
    """FedSimCLR+SemiFL: SemiFL's own settings, the steps of both for the baseline, and the bytes of both."""
    setting = LabelSetting(at="server", keep=8, size=60, parties=2, alpha=0.0)
    runs = LabelRuns(rows_of(archive), setting, rounds=1, lr=0.05)
    assert runs.method("FedSimCLR+SemiFL") == runs.method("SemiFL")
    first = runs.pretraining("FedSimCLR+SemiFL")
    assert (type(first).__name__, first.lr, runs.pretraining("SemiFL")) == ("FedSimCLR", 0.05, None)
    assert runs.steps(first) > runs.steps(None) == 0
    ran, run_one = [], LabelRuns._run

    def spied(self, algorithm, islands, *rest):
        ran.append((algorithm, islands, rest[-1], run_one(self, algorithm, islands, *rest)))
        return ran[-1][-1]

    monkeypatch.setattr(LabelRuns, "_run", spied)
    both = runs.train_method("FedSimCLR+SemiFL", 0)
    (simclr, rows, _, before), (semifl, same_rows, model, after) = ran
    assert (simclr, semifl) == (first, runs.method("SemiFL"))
    assert [shard["x"].tolist() for shard in rows] == [shard["x"].tolist() for shard in same_rows]
    assert model.trained is before["model"]
    assert both["bytes_up"] == before["bytes_up"] + after["bytes_up"]
    assert both["score"] == after["score"]
    for name, said in {
        "FedSimCLR+SemFL": "method 'SemFL'",
        "SimCLR+SemiFL": "method 'SimCLR'. Did you mean 'FedSimCLR'",
    }.items():
        with pytest.raises(ConfigError, match=said.replace(".", r"\.")):
            runs.method(name)
    with pytest.raises(ConfigError, match="no label is left to train SemiFL on"):
        LabelRuns(rows_of(archive), LabelSetting(at="none", keep=8), rounds=1).method("FedSimCLR+SemiFL")


@pytest.mark.slow
def test_a_probe_on_views_of_few_rows_knows_what_does_not_matter():
    """The class is the half that a dot is in. One row of each class shows one column; views show the others."""
    draw = np.random.default_rng(0)
    x = np.zeros((400, 1, 8, 8), np.float32)
    y, column = draw.integers(0, 2, 400), draw.integers(1, 7, 400)
    x[np.arange(400), 0, np.where(y, 5, 2), column] = 1.0
    test = Dataset({"x": x, "y": y}, classes=2)
    two = test.take(np.array([np.flatnonzero(y == 0)[0], np.flatnonzero(y == 1)[0]]))
    islands = Islands.from_datasets({"a": test}).with_test(test).with_others({"probe": two})
    plain, moved = probe_model(None, islands), probe_model(None, islands, Translate(2), 3)
    assert plain < 0.75 < moved
    assert probe_model(None, islands, Translate(2), 3) == moved
    noise = Dataset({"x": draw.random((80, 1, 4, 4)).astype(np.float32), "y": np.arange(80) % 3}, classes=3)
    full = Islands.from_datasets({"a": noise}).with_test(noise).with_others({"probe": noise.take(slice(0, 30))})
    assert probe_model(None, full, Translate(0), 3) == probe_model(
        None, full
    )  # the penalty is for each labelled row, however many views it has
