"""``atoll labels adapt``: the sources alone, and with the target's rows, as people and scripts type it."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from atoll.cli.app import run
from atoll.data import WordVectors, adaptation
from atoll.study.adaptation import (
    JUDGING,
    AdaptationRun,
    AdaptationTerms,
    compare_adaptation,
    domains_of,
    macro_f1,
    sources_of,
    with_judge,
)

pytest.importorskip("torch")


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for name, moved in {"north": 0.0, "south": 1.0, "east": -1.0}.items():
        y = rng.integers(0, 3, 120)
        x = np.eye(5)[y] * 3 + rng.normal(0, 0.7, (120, 5)) + moved
        np.savez(tmp_path / f"{name}.npz", x=x.astype(np.float32), y=y)
    return tmp_path


def asked(folder, *more):
    return ["labels", "adapt", *(str(folder / f"{n}.npz") for n in ("north", "south")), *map(str, more), "--json"]


def test_one_target_is_compared_with_the_strongest_training_of_the_sources(capsys, folder):
    target = folder / "south.npz"
    methods = "source,SelfTraining,FADE,EfficientFDA"
    more = ("--target", target, "--methods", methods, "--rounds", 2, "--steps", 2, "--size", 60, "--seeds", 1)
    assert run(asked(folder, *more)) == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert re.match(r"1 of 6: target south, source: none, seed 0, in \d+\.\d s\n2 of 6: ", shown.err)
    assert found["setting"]["domains"] == ["north", "south"]
    assert set(found["source"]) == {"none", "weak", "strong"}
    assert found["strong"]["median"] == max(run["median"] for run in found["source"].values())
    assert set(found["adapted"]) == {"SelfTraining", "FADE", "EfficientFDA"}
    for one in found["adapted"].values():
        assert one["gain"] == pytest.approx(one["median"] - found["strong"]["median"])
        assert one["gain_by_seed"] == pytest.approx([one["gain"]])
    assert found["gain"] == max(one["gain"] for one in found["adapted"].values())


@pytest.mark.slow
def test_an_unseen_domain_is_in_no_training(capsys, folder, monkeypatch):
    """Leave one out: a training that had any row of the target would have more parties than the others."""
    import atoll.simulation

    seen = []
    simulate = atoll.simulation.simulate

    def watched(job, islands, **more):
        seen.append((type(job.algorithm).__name__, list(islands.names), sum(len(shard) for shard in islands)))
        return simulate(job, islands, **more)

    monkeypatch.setattr(atoll.simulation, "simulate", watched)
    assert run(asked(folder, "--target", "each", "--unseen", "--rounds", 2, "--steps", 2, "--seeds", 1)) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["setting"]["unseen"] is True
    assert set(found["targets"]) == {"north", "south"}
    for name, one in found["targets"].items():
        assert set(one["adapted"]) == {"FedSR"}
        assert one["gain"] == pytest.approx(one["adapted"]["FedSR"]["median"] - one["strong"]["median"]), name
    assert {names[0] for _, names, _ in seen} == {"north", "south"}
    assert all(len(names) == 1 and rows < 120 for _, names, rows in seen)
    assert [kind for kind, *_ in seen].count("FedSR") == 2


@pytest.mark.slow  # the tests above and below run the parts: methods, the parties that they want, and a guard
def test_every_method_of_the_survey_adapts_and_a_guard_stands_by_where_it_can(capsys, folder):
    """FADA's target and DualAdapt's sources lie at helpers, FRuDA chooses its collaborator; the smallest source judges the two that a guard can go around."""
    methods = "SelfTraining,DANN,FADA,DualAdapt,FRuDA"
    more = (folder / "east.npz", "--target", "south", "--methods", methods, "--rounds", 4, "--steps", 2, "--seeds", 1)
    assert run(asked(folder, *more)) == 0
    found = json.loads(capsys.readouterr().out)["adapted"]
    assert {name: one["guard"] is not None for name, one in found.items()} == {
        "SelfTraining": True, "DANN": True, "FADA": False, "DualAdapt": False, "FRuDA": False,
    }  # fmt: skip
    for one in found.values():
        assert one["guard"] is None or [len(one["guard"][name]) for name in ("on", "gain")] == [1, 1]


@pytest.mark.slow
def test_one_source_holds_out_rows_of_its_own(capsys, folder):
    more = ("--target", "south", "--guard", "--rounds", 4, "--steps", 1, "--seeds", 1)
    assert run(asked(folder, *more)) == 0
    found = json.loads(capsys.readouterr().out)["adapted"]["SelfTraining"]["guard"]
    assert found["on"][0] or found["gain"][0] < -0.05 * np.log(3)  # only what is surely worse than the slack falls


def odds_of(model, x):
    made = np.exp(model.outputs(x).astype(float))
    return made / made.sum(1, keepdims=True)


def watched(monkeypatch):
    """Keep the parties and the model of every training."""
    seen, trained = [], AdaptationRun.train_domains

    def kept(self, islands, settings, seed):
        seen.append((islands, trained(self, islands, settings, seed)))
        return seen[-1][1]

    monkeypatch.setattr(AdaptationRun, "train_domains", kept)
    return seen


@pytest.mark.slow
def test_a_target_that_misleads_gets_the_committee_of_the_sources_to_the_bit(monkeypatch, folder):
    """Law: the target's rows of each class lie where the sources have the next, so guesses there teach nonsense; what is left is the fallback, whole."""
    y = np.random.default_rng(3).integers(0, 3, 300)
    x = np.eye(5)[(y + 1) % 3] * 3 + np.random.default_rng(4).normal(0, 1.5, (300, 5))
    np.savez(folder / "west.npz", x=x.astype(np.float32), y=y)
    files = [str(folder / f"{name}.npz") for name in ("north", "south", "west")]
    seen = watched(monkeypatch)
    found = compare_adaptation(files, "west", ["SelfTraining"], AdaptationTerms(seeds=1, rounds=4, steps=2))
    one = found["adapted"]["SelfTraining"]
    assert one["guard"]["on"] == [False]
    assert one["scores"] == found["fallback"]["scores"]
    # Oracle: the weighted mean of the members' probabilities, by NumPy.
    (weights,) = found["fallback"]["weights"]
    told = [odds_of(model, seen[0][0].test.x) for _, model in seen[:3]]
    mean = sum(w * each for w, each in zip(weights, told, strict=True))
    assert one["scores"] == [float((mean.argmax(1) == seen[0][0].test.y).mean())]
    # The weights are those of trainings that had neither a row nor a label of the judge, here the smaller of two sources.
    judge = sources_of(seen[0][0])["north"]
    assert [list(islands.names) for islands, _ in seen[4:]] == [["south", "west"]] * 3
    logs = np.stack([np.log(odds_of(model, judge.x)[np.arange(len(judge)), judge.y]) for _, model in seen[4:]])
    fit = lambda w: np.log(np.asarray(w) @ np.exp(logs)).mean()  # noqa: E731
    assert fit(weights) >= max(fit(np.eye(3)[m]) for m in range(3)) - 1e-4


def test_for_macro_f1_rare_classes_count_as_much_as_common_ones(monkeypatch, folder):
    """The scores are those of logits less the log of the sources' shares, whatever the target's are."""
    files = [str(folder / f"{name}.npz") for name in ("north", "south")]
    terms = AdaptationTerms(seeds=1, rounds=2, steps=2, metric="macro_f1")
    seen = watched(monkeypatch)
    found = compare_adaptation(files, "south", [], terms)["source"]["none"]["scores"]
    islands, model = seen[0]
    outputs = model.outputs(islands.test.x)
    counts = np.bincount(islands[0].dataset().y, minlength=3)
    assert found == [macro_f1(islands.test.y, (outputs - np.log(counts / counts.sum())).argmax(1))]


def test_the_smallest_source_judges_and_teaches_nothing(folder):
    rows = domains_of([str(folder / f"{n}.npz") for n in ("north", "south", "east")])
    few = rows.take(np.flatnonzero((rows["party"] != "east") | (np.arange(len(rows)) % 3 == 0))).with_test(rows.test)
    islands = with_judge(adaptation(few, "south", by="party")[0])
    marked = {one.name: set(one[JUDGING].tolist()) for one in islands}
    assert marked == {"east": {True}, "north": {False}, "south": {False}}
    assert set(sources_of(islands)) == {"north", "east"}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--target", "each", "--unseen", "--methods", "FADE"), "'FADE' is not known.*use one of FedSR"),
        (("--target", "west"), "Did you mean|is not known"),
        (("--target", "each", "--methods", "FADA2"), "'FADA2' is not known"),
        (("--target", "each", "--metric", "f1"), "metric='f1'"),
    ],
)
def test_what_is_not_known_is_named(capsys, folder, more, said):
    assert run(asked(folder, *more)) == 2
    assert re.search(said, capsys.readouterr().out)


def test_a_table_without_a_column_to_predict_gets_the_option_of_this_command(capsys, tmp_path):
    (tmp_path / "a.csv").write_text("x,y,site\n1,0,a\n2,1,b\n")
    assert run(["labels", "adapt", str(tmp_path / "a.csv"), "--party", "site", "--target", "b"]) == 3
    assert "name it: --label COLUMN" in capsys.readouterr().err


def test_texts_of_several_files_become_vectors_of_the_same_words(tmp_path):
    for name, words in {"north": "snow cold late", "south": "sun warm late"}.items():
        rows = [f"{' '.join(words.split()[: 1 + k % 3])},{k % 2}" for k in range(20)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["said,y", *rows]))
    files = [str(tmp_path / f"{name}.csv") for name in ("north", "south")]
    rows = domains_of(files, label="y", text="said")
    one = {name: rows.x[(rows["said"] == text)][0] for name, text in {"snow": "snow", "sun": "sun"}.items()}
    assert rows.x.shape[1] == rows.test.x.shape[1] == 5
    assert one["snow"] @ one["sun"] == 0
    assert one["snow"] @ one["snow"] == pytest.approx(64)


def test_a_file_whose_texts_have_no_word_is_fitted_with_the_others_once(tmp_path, monkeypatch):
    (tmp_path / "north.csv").write_text("\n".join(["said,y", *[f"snow,{k % 2}" for k in range(20)]]))
    (tmp_path / "mute.csv").write_text("\n".join(["said,y", *[f"!,{k % 2}" for k in range(20)]]))
    fits, fit = [], WordVectors.fit
    monkeypatch.setattr(WordVectors, "fit", lambda form, parties: fits.append(form) or fit(form, parties))
    rows = domains_of([str(tmp_path / f"{name}.csv") for name in ("north", "mute")], label="y", text="said")
    assert len(fits) == 1
    assert set(rows["party"][np.any(rows.x != 0, axis=1)]) == {"north"}


def test_macro_f1_is_that_of_scikit_learn():
    from sklearn.metrics import f1_score

    rng = np.random.default_rng(0)
    truth, guess = rng.integers(0, 3, 200), rng.integers(0, 3, 200)
    assert macro_f1(truth, guess) == pytest.approx(f1_score(truth, guess, average="macro"))


def test_pixels_become_numbers_with_a_channel(tmp_path):
    pixels = np.arange(2 * 40 * 16, dtype=np.uint16).reshape(80, 4, 4) % 256
    np.savez(tmp_path / "grey.npz", x=pixels.astype(np.uint8), y=np.arange(80) % 2, party=np.arange(80) % 4 > 1)
    rows = domains_of([str(tmp_path / "grey.npz")], test=8)
    assert (rows.x.shape, rows.test.x.shape, rows.x.dtype) == ((72, 1, 4, 4), (8, 1, 4, 4), np.float32)
    assert 0.9 < rows.x.max() <= 1.0
