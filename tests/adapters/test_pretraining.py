"""The small dual encoder from generated pictures: what it says, who reads it, that it learns."""

from __future__ import annotations

import json
import math
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from atoll.adapters import Encoder, pretrain_encoder
from atoll.adapters.pretraining import _COLOURS, COLOURS, NOTE, SHAPES, draw_pictures
from atoll.cli.app import run
from atoll.core.errors import AtollError

for library in ("torch", "transformers", "tokenizers", "PIL"):  # not imported here: that takes seconds of every worker
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed", allow_module_level=True)

SMALL = {"pairs": 16, "steps": 2, "batch": 8, "width": 16, "layers": 1}


def test_captions_tell_the_truth_of_their_pictures() -> None:
    pixels, y, captions = draw_pictures(200, np.random.default_rng(0))
    table = np.array([_COLOURS[name] for name in COLOURS]) * 255
    seen = 0
    for row, caption in enumerate(captions):
        words = caption.split()
        shape = SHAPES[y[row]]
        assert shape in words
        if caption.startswith("a picture"):
            continue
        named = [COLOURS.index(word) for word in words if word in COLOURS]
        if shape in ("circle", "square", "diamond", "bar", "cross"):
            middle = pixels[row, 14:18, 14:18].reshape(-1, 3).mean(0)
            assert np.abs(table - middle).sum(1).argmin() == named[0], caption
            seen += 1
        assert len(set(named)) == len(named), "a shape has another colour than its ground"
    assert seen > 50
    again = draw_pictures(200, np.random.default_rng(0))
    np.testing.assert_array_equal(again[0], pixels)
    assert again[2] == captions


def test_clip_reads_it_and_it_says_what_it_is(tmp_path: Path) -> None:
    import transformers

    found = pretrain_encoder(tmp_path / "one", **SMALL)  # type: ignore[arg-type]
    model = transformers.CLIPModel.from_pretrained(tmp_path / "one")
    assert sum(p.numel() for p in model.parameters()) == found.parameters
    assert "not CLIP's" in NOTE
    assert NOTE == found.note == json.loads((tmp_path / "one" / "config.json").read_text())["note"]
    assert NOTE in (tmp_path / "one" / "README.md").read_text()
    again = pretrain_encoder(tmp_path / "two", **SMALL)  # type: ignore[arg-type]
    assert again.digest == found.digest, "same seed, same weights"
    encoder = Encoder.open(str(tmp_path / "one"), digest=found.digest, modality="image")
    features = encoder.encode(["airplane", "a picture of a ring", "ship"], cached=False)
    assert np.abs(features[0] - features[2]).max() > 1e-4, "words of no caption differ too"
    with pytest.raises(AtollError, match="there is an encoder in"):
        pretrain_encoder(tmp_path / "one", **SMALL)  # type: ignore[arg-type]
    with pytest.raises(AtollError, match="a multiple of 4"):
        pretrain_encoder(tmp_path / "three", width=18)


def test_it_learns_to_match_captions(tmp_path: Path) -> None:
    found = pretrain_encoder(tmp_path / "one", pairs=64, steps=60, batch=32, width=32, layers=1, lr=5e-3)
    assert found.loss < 0.6 * math.log(32)


def test_the_command_says_so_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "adapters",
        "pretrain",
        str(tmp_path / "one"),
        "--pairs",
        "8",
        "--steps",
        "1",
        "--width",
        "16",
        "--batch",
        "4",
        "--json",
    ]
    assert run(words) == 0
    assert json.loads(capsys.readouterr().out)["note"] == NOTE
