"""``atoll crossmodal``: the arms of a folder of speech and a file of texts, and what it refuses."""

from __future__ import annotations

import json
import sys
import wave
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll.cli.app import run
from atoll.cli.commands.crossmodal import _rate_decoder, _table
from atoll.crossmodal import TextToPhone, Utterances

LEXICON = "good G UH D\nbad B AE D\nfilm F IH L M\nbye B AY\n"
QUICK = ("--rounds", "1", "--iterations", "2")


def write_files(folder: Path, *, one_class: bool = False) -> tuple[str, str, str]:
    """Twelve tones of two heights, twelve texts, and a dictionary."""
    calls, draw = folder / "calls", np.random.default_rng(0)
    calls.mkdir()
    lines = ["file,label"]
    for i in range(12):
        positive = one_class or i % 2 == 0
        time = np.arange(3200) / 16_000
        sound = 6000 * np.sin(2 * np.pi * (300 if positive else 150) * time) + draw.normal(0, 500, 3200)
        with wave.open(str(calls / f"{i}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(16_000)
            file.writeframes(sound.astype("<i2").tobytes())
        lines.append(f"{i}.wav,{1.5 if positive else -0.5}")
    (calls / "labels.csv").write_text("\n".join(lines) + "\n", "utf-8")
    rows = [
        f'"{"good" if one_class or i % 2 else "bad"} film, xq",{1 if one_class or i % 2 else -1}' for i in range(12)
    ]
    (folder / "texts.csv").write_text("\n".join(["text,label", *rows]) + "\n", "utf-8")
    (folder / "words.dict").write_text(LEXICON, "utf-8")
    return str(calls), str(folder / "texts.csv"), str(folder / "words.dict")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path / "cache"))


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """The JSON that the command prints."""
    assert run(["crossmodal", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_command_compares_each_side_alone_with_the_other_and_in_one_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pocketsphinx")
    calls, texts, words = write_files(tmp_path)
    base = ("--speech", calls, "--text", texts, "--lexicon", words, *QUICK)
    listed = Path(calls, "labels.csv")
    head, *rows = listed.read_text("utf-8").splitlines()
    listed.write_text(
        "\n".join([f"{head},text", f"{rows[0]},good film", *(f"{row}," for row in rows[1:])]) + "\n", "utf-8"
    )
    found = asked(capsys, *base, "--epsilon", "5")
    assert list(found)[:6] == ["mono", "federated", "oracle", "rounds", "epsilon", "delta"]
    for arm in ("mono", "federated", "oracle"):
        assert set(found[arm]) == {"speech", "text"}
        assert all(0 <= value <= 1 for value in found[arm].values())
    assert (found["rounds"], found["epsilon"], found["classes"]) == (1, 5.0, ["negative", "positive"])
    assert found["bytes"] > 4 * found["parameters"] > 0
    assert found["utterances"] == {"speech": 12, "text": 12}
    assert (found["words"], found["unknown_words"]) == (36, 12)
    assert (
        found["texts_known"] == 1
    )  # of the other files nobody knows what was said, so there is no arm of aligned rows
    assert found["phone_errors"] > 0
    assert "aligned" not in found
    fused = asked(capsys, *base, "--epsilon", "5", "--fused")
    assert (fused["epsilon"], fused["delta"]) == (None, None)  # no promise holds then


def test_what_the_command_cannot_use_is_refused_with_a_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, texts, words = write_files(tmp_path)
    base = ["crossmodal", "--speech", calls, "--text", texts, "--lexicon", words, *QUICK]

    def said(line: list[str]) -> str:
        assert run(line) != 0
        return " ".join(capsys.readouterr().err.split())

    assert "or add --fused, which claims no epsilon" in said([*base, "--share-fusion", "--epsilon", "5"])
    listed = Path(calls, "labels.csv")
    lines = listed.read_text("utf-8")
    listed.unlink()
    assert "write one into the folder of WAV files" in said(base)
    listed.write_text(lines.replace("file,", "name,"), "utf-8")
    assert "no column 'file'" in said(base)
    listed.write_text(lines.replace("3.wav", "33.wav"), "utf-8")
    assert "is no file of the folder" in said(base)
    listed.write_text(lines, "utf-8")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pocketsphinx", None)
        assert 'pip install "atoll[speech]"' in said(base)


def test_where_and_remedy_are_in_the_words_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pocketsphinx")
    calls, texts, words = write_files(tmp_path)

    def said(*more: str) -> str:
        assert run(["crossmodal", "--speech", calls, "--text", texts, "--lexicon", words, *QUICK, *more]) != 0
        return " ".join(capsys.readouterr().err.replace("│", "").split())

    assert "where: crossmodal at speech remedy: use a smaller --lr or --shared-lr" in said("--shared-lr", "1e9")
    assert "remedy: use a larger epsilon or delta ╰" in said("--epsilon", "0.0001")  # it has no accountant to choose
    file = Path(texts)
    file.write_text(file.read_text("utf-8").replace('"bad film, xq"', "", 1), "utf-8")
    assert "row 1 has no text" in said()


def test_it_says_how_well_phones_were_recognised_where_it_is_known_what_was_said() -> None:
    lexicon = TextToPhone({"good": ["G", "UH", "D"], "bad": ["B", "AE", "D"]})
    heard, texts = lexicon("good").phones, ["good", "bad", " ", "good bad", ""]
    rows = Utterances("speech", [np.zeros((1, 2))] * 5, [heard] * 5, ["a"] * 5, texts=texts)
    found = _rate_decoder(rows, lexicon)
    assert found == {"phone_errors": (0 + 2 + 3) / 12, "texts_known": 3}
    assert _rate_decoder(replace(rows, texts=()), lexicon) == {"phone_errors": None, "texts_known": 0}
    assert _rate_decoder(replace(rows, texts=["12", *[""] * 4]), lexicon) == {"phone_errors": None, "texts_known": 1}
    shown = _table({"mono": {"speech": 0.5}}, {**found, "utterances": {"speech": 5}}).caption
    assert "42% of those that were said, in 3 of 5 utterances" in str(shown)


def test_rows_of_one_class_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pocketsphinx")
    calls, texts, words = write_files(tmp_path, one_class=True)
    assert run(["crossmodal", "--speech", calls, "--text", texts, "--lexicon", words, *QUICK]) != 0
    assert "give rows of two classes or more" in " ".join(capsys.readouterr().err.split())


def test_labels_that_are_no_numbers_or_have_other_names_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pocketsphinx")
    calls, texts, words = write_files(tmp_path)
    line = ["crossmodal", "--speech", calls, "--text", texts, "--lexicon", words, *QUICK]
    listed = Path(calls, "labels.csv")
    rows = listed.read_text("utf-8")
    listed.write_text(rows.replace("\n0.wav,1.5", "\n0.wav,nan"), "utf-8")
    assert run(line) == 3
    assert "row 1 has no label" in " ".join(capsys.readouterr().err.split())
    listed.write_text(rows.replace("-0.5", "down").replace("1.5", "up"), "utf-8")
    assert run(line) == 3
    assert "name the classes alike" in " ".join(capsys.readouterr().err.split())
