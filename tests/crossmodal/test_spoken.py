"""Sentences that a machine says: decoded phones are those of the dictionary, and the command takes the files to F1 and epsilon. Skipped without ``espeakng-loader``, which is under the GPL."""

from __future__ import annotations

import csv
import difflib
import json
from pathlib import Path

import pytest

from atoll.cli.app import run
from atoll.crossmodal import TextToPhone, read_speech
from atoll_papers.speaker import speak, tie_prosody, write_folder

pytest.importorskip("pocketsphinx")
pytest.importorskip("espeakng_loader", reason="espeakng-loader (GPL) is not installed: no speech is synthesised")

LEXICON = {
    "a": "AH", "wonderful": "W AH N D ER F AH L", "happy": "HH AE P IY", "movie": "M UW V IY", "story": "S T AO R IY",
    "terrible": "T EH R AH B AH L", "boring": "B AO R IH NG", "people": "P IY P AH L",
}  # fmt: skip
SAID = [("a wonderful movie", 1.5), ("terrible people", -2.0), ("a happy story", 0.5), ("a boring movie", 0.0), ("happy people", 2.0), ("a terrible story", -1.0)]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """WAV files with their labels, texts of other sentences, and a dictionary of their words."""
    made = tmp_path_factory.mktemp("spoken")
    sentences = tie_prosody([text for text, _ in SAID], [str(label) for _, label in SAID], seed=0)
    write_folder(made / "calls", sentences, *speak(sentences))
    with (made / "texts.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *((f"{text} {text}", label) for text, label in SAID * 2)])
    (made / "words.dict").write_text("\n".join(f"{word} {phones}" for word, phones in LEXICON.items()) + "\n", "utf-8")
    return made


@pytest.fixture(autouse=True)
def own_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOLL_CACHE", str(folder / "cache"))


def test_phones_that_are_heard_are_those_of_the_dictionary_more_than_those_of_another_sentence(folder: Path) -> None:
    rows, translate = read_speech(folder / "calls"), TextToPhone.read(folder / "words.dict")
    written = [translate(text).phones for text, _ in SAID]

    def alike(heard: object, phones: tuple[int, ...]) -> float:
        return difflib.SequenceMatcher(None, list(heard), list(phones), autojunk=False).ratio()  # type: ignore[call-overload]

    own = [alike(heard, phones) for heard, phones in zip(rows.phones, written, strict=True)]
    other = [alike(heard, phones) for i, heard in enumerate(rows.phones) for j, phones in enumerate(written) if i != j]
    assert sum(own) / len(own) > 0.5
    assert sum(own) / len(own) > sum(other) / len(other) + 0.2
    assert rows.counts == {"negative": 3, "positive": 3}


@pytest.mark.slow  # `cli/test_crossmodal.py` takes files to the same table
def test_the_command_takes_spoken_and_written_sentences_to_f1_and_epsilon(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["crossmodal", "--speech", str(folder / "calls"), "--text", str(folder / "texts.csv"), "--epsilon", "5", "--json"]  # fmt: skip
    assert run([*line, "--lexicon", str(folder / "words.dict"), "--rounds", "2", "--iterations", "3"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert 0 <= found["aligned"]["speech"] <= 1  # labels.csv has what was said
    for arm in ("mono", "federated", "oracle"):
        assert set(found[arm]) == {"speech", "text"}
        assert all(0 <= value <= 1 for value in found[arm].values())
    assert (found["rounds"], found["epsilon"], found["utterances"]) == (2, 5.0, {"speech": 6, "text": 12})
    assert found["bytes"] > 4 * found["parameters"] > 0
    assert (found["words"], found["unknown_words"]) == (2 * 2 * sum(len(text.split()) for text, _ in SAID), 0)
