"""A text side whose own network is a frozen encoder from a folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import atoll
from atoll.adapters import Encoder
from atoll.core.errors import CheckpointError, ConfigError, DataError
from atoll.crossmodal import Crossmodal, FrameCNN, PretrainedText, SideModel, Utterances
from tests.crossmodal.helpers import made_side
from tests.support.encoders import make_encoder

JOB = Crossmodal(
    speech=FrameCNN(filters=4, widths=(3,)), rounds=2, iterations=8, pretrain=2, batch=16, hidden=6, width=4, lr=0.02
)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_encoder(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path / "cache"))


def reviews(count: int, seed: int) -> Utterances:
    """Texts whose class one word tells; their phones tell nothing."""
    draw, texts, labels = np.random.default_rng(seed), [], []
    for i in range(count):
        word = (("bad", "rude"), ("good", "kind"))[i % 2][int(draw.integers(2))]
        texts.append([word, *draw.choice(["so", "late", "crew", "seat"], size=2).tolist()])
        labels.append(("negative", "positive")[i % 2])
    return Utterances("text", texts, [draw.integers(0, 39, 5) for _ in texts], labels)


def test_a_text_side_learns_on_the_features_of_a_frozen_encoder(encoder: Path, tmp_path: Path) -> None:
    job = replace(JOB, text=PretrainedText(encoder=str(encoder), length=8, hidden=16, dropout=0.0), rounds=4)
    parties = {"south": made_side("speech", 40, 1), "north": reviews(80, 2)}
    found = atoll.simulate(job, parties, engine="inline", progress=False, results=tmp_path / "results").outcome
    assert found.sides["north"]["alone"] > 0.85  # one word of four decides; a coin has .5
    model = SideModel.of(job, "north", tmp_path / "results")
    model.save(tmp_path / "side.msg")
    rows = parties["north"]
    assert np.array_equal(SideModel.load(tmp_path / "side.msg", job).predict_proba(rows), model.predict_proba(rows))
    # What the module reads is what the encoder says of the whole text, as one frame.
    texts = [" ".join(words) for words in rows.inputs]
    assert np.array_equal(model._training.code(rows).inputs[:, 0].numpy(), Encoder.open(str(encoder), length=8).encode(texts))  # fmt: skip
    assert model.predict_proba(Utterances("text", [[]], [[]], ["negative"])).shape == (1, 2)  # an empty text


def test_another_encoder_in_the_same_place_is_noticed(encoder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "moved"
    make_encoder(folder)
    job = replace(JOB, text=PretrainedText(encoder=str(folder), length=8), rounds=1, iterations=1)
    atoll.simulate(job, {"south": made_side("speech", 12, 1), "north": reviews(12, 2)}, engine="inline", progress=False, results=tmp_path / "results")  # fmt: skip
    make_encoder(folder, seed=1)
    with pytest.raises(CheckpointError, match="another pretrained network"):
        SideModel.of(job, "north", tmp_path / "results")
    digest = Encoder.open(str(encoder)).digest
    asked = replace(job, text=PretrainedText(encoder=str(folder), digest=digest))
    with pytest.raises(DataError, match="has the hash"):
        atoll.simulate(asked, {"south": made_side("speech", 12, 1), "north": reviews(12, 2)}, engine="inline", progress=False)  # fmt: skip


def test_what_reads_texts_is_no_network_of_speech(encoder: Path) -> None:
    with pytest.raises(ConfigError, match=r"speech=PretrainedText"):
        replace(JOB, speech=PretrainedText(encoder=str(encoder)))
    with pytest.raises(ConfigError, match="hidden=0"):
        PretrainedText(encoder="x", hidden=0)
    with pytest.raises(DataError, match="no encoder 'nowhere'"):
        PretrainedText(encoder="nowhere").encode(["a"])
