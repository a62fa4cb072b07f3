"""More modalities and parties than speech and text: vectors of numbers, three parties, and one without rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import atoll
from atoll.core.errors import ConfigError, DataError
from atoll.crossmodal import Crossmodal, FrameCNN, PretrainedText, SideModel, Utterances, VectorMLP, train_alone
from tests.crossmodal.helpers import made_side

pytest.importorskip("torch")

JOB = Crossmodal(
    speech=FrameCNN(filters=4, widths=(3,)), text=FrameCNN(filters=4, widths=(1,)), vector=VectorMLP(hidden=4), rounds=2, iterations=2, pretrain=1, batch=8, hidden=4, width=4,
)  # fmt: skip


def play(job, parties, **options):
    return atoll.simulate(job, parties, engine="inline", progress=False, **options).outcome


def two():
    return {"a": made_side("speech", 24, 1), "b": made_side("text", 30, 2)}


@pytest.mark.parametrize("modality", ["speech", "text", "vector"])
@pytest.mark.parametrize("name", ["aa", "z"])
def test_with_an_empty_third_party_the_result_is_that_of_two(modality, name):
    whole, job = play(JOB, two()), JOB
    found = play(job, {**two(), name: Utterances(modality, [], [], [])})
    assert found.sides == whole.sides
    assert found.history == whole.history
    assert (found.bytes, found.parameters, found.classes) == (whole.bytes, whole.parameters, whole.classes)
    assert (found.missing, whole.missing) == ((name,), ())


def test_two_parties_have_to_have_rows():
    with pytest.raises(DataError, match="1 parties with utterances"):
        play(JOB, {"a": made_side("text", 20, 1), "b": Utterances("text", [], [], [])})


def test_a_side_with_vectors_trains_beside_speech_and_text_and_predicts_alone(tmp_path):
    rows = made_side("vector", 30, 3, width=9)  # frames of speech have 6 numbers: only speech sides have to agree
    found = play(JOB, {**two(), "c": rows}, results=tmp_path)
    assert {name: side["modality"] for name, side in found.sides.items()} == {"a": "speech", "b": "text", "c": "vector"}
    model = SideModel.of(JOB, "c", tmp_path)
    model.save(tmp_path / "side.msg")
    said = SideModel.load(tmp_path / "side.msg", JOB).predict_proba(rows)
    assert np.array_equal(said, model.predict_proba(rows))
    assert np.allclose(said.sum(axis=1), 1)
    with pytest.raises(DataError, match="frames of 6 numbers instead of 9"):
        model.predict(made_side("vector", 4, 0))
    with pytest.raises(DataError, match="speech at a side that knows vector"):
        model.predict(made_side("speech", 4, 0))


def test_a_vector_is_one_row_of_finite_numbers():
    assert Utterances("vector", [[1.0, 2.0]], [[0]], ["a"]).inputs[0].shape == (1, 2)
    with pytest.raises(DataError, match="a vector of several rows"):
        Utterances("vector", [np.zeros((2, 3))], [[0]], ["a"])
    with pytest.raises(DataError, match="several widths"):
        Utterances("vector", [[1.0], [1.0, 2.0]], [[0]] * 2, ["a"] * 2)
    with pytest.raises(DataError, match="not finite"):
        Utterances("vector", [[np.inf]], [[0]], ["a"])
    with pytest.raises(ConfigError, match=r"vector=PretrainedText\(...\).*VectorMLP"):
        replace(JOB, vector=PretrainedText(encoder="minilm"))


HELPED = Crossmodal(
    speech=FrameCNN(filters=8, widths=(3,)), text=FrameCNN(filters=8, widths=(1,)), vector=VectorMLP(hidden=8), rounds=3, iterations=20, pretrain=10,
    lr=0.01, shared_lr=0.5, classes=("negative", "positive"),
)  # fmt: skip


def gains(job, parties):
    found = play(job, parties)
    return {name: found.sides[name]["f1"] - train_alone(job, rows)["f1"] for name, rows in parties.items()}


def three(count):
    return {"a": made_side("speech", count, 1), "b": made_side("text", count, 2), "c": made_side("vector", count, 3, told=0.4)}  # fmt: skip


def test_three_modalities_help_each_other():
    """Phones tell the class nine times of ten, what only one side has at most six times."""
    found = gains(HELPED, three(100))
    assert min(found.values()) > 0
    assert np.mean([*found.values()]) > 0.05


@pytest.mark.slow
@pytest.mark.parametrize("pair", ["ab", "ac", "bc"])
def test_any_two_modalities_help_each_other(pair):
    found = gains(replace(HELPED, rounds=6), {name: rows for name, rows in three(240).items() if name in pair})
    assert min(found.values()) > 0.03, found
