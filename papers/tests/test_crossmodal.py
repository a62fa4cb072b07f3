"""The reproductions of speech and text: what they make their data of, and how they judge."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from atoll_papers import crossmodal
from atoll_papers.crossmodal import make_spoken_rows, read_mosi
from atoll_papers.crossmodal_decoding import DECODING_ENTRY
from atoll_papers.speaker import tie_prosody

pytest.importorskip("torch")


def test_both_modalities_have_one_code_of_phones() -> None:
    text, again, other = (make_spoken_rows("text", 400, seed) for seed in (0, 0, 1))
    assert text.inputs == again.inputs != other.inputs
    speech = make_spoken_rows("speech", 400, 5)
    triples = {}
    for rows in (text, speech):
        counts: dict[tuple[int, ...], list[int]] = {}
        for phones, label in zip(rows.phones, rows.labels, strict=True):
            for place in range(len(phones) - 2):
                counts.setdefault(tuple(phones[place : place + 3].tolist()), [0, 0])[label == "positive"] += 1
        triples[rows.modality] = sorted(counts, key=lambda one: abs(counts[one][0] - counts[one][1]))[-8:]
        assert all(max(counts[one]) > 4 * min(counts[one]) for one in triples[rows.modality])
    assert (
        len(set(triples["text"]) & set(triples["speech"])) >= 6
    )  # eight roots tell the class; a few triples do by chance


def test_a_voice_leans_to_the_label_by_a_fifth_of_a_deviation() -> None:
    labels = ["positive", "negative"] * 4000
    made = tie_prosody(["a word"] * 8000, labels, seed=1)
    assert made == tie_prosody(["a word"] * 8000, labels, seed=1)
    for value in ("rate", "pitch", "volume"):
        told = np.array([getattr(one, value) for one in made], dtype=float)
        lean = (told[::2].mean() - told[1::2].mean()) / told[::2].std()
        assert 0.3 < lean < 0.5  # the classes lie twice a fifth apart; 4,000 rows each have a standard error of .02
        assert told.min() >= 10


def test_sentences_are_read_and_divided_by_video(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cmu_mosi_text"
    folder.mkdir()
    lines = [f"video{v}_x_{i},text {v} {i},{(v + i) % 2 or -0.5},{'test' if v > 3 else 'train'}" for v in range(6) for i in range(3)]  # fmt: skip
    with gzip.open(folder / "mosi_label.csv.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(["id,text,label,mode", *lines]) + "\n")
    monkeypatch.setenv("ATOLL_DATA", str(tmp_path))
    parts = read_mosi()
    assert parts["train"][0] == ("video0_x", "text 0 0", "negative")
    halves = crossmodal._halves(parts)
    assert {text.split()[1] for text, _ in halves["speech"]["train"]} == {"0", "2"}
    assert {text.split()[1] for text, _ in halves["text"]["test"]} == {"5"}
    assert sum(len(rows) for half in halves.values() for rows in half.values()) == 18


def test_a_table_that_is_printed_the_other_way_round_is_told() -> None:
    def rows(positive: int, negative: int) -> list[tuple[str, str, str]]:
        return [("v", "t", "positive")] * positive + [("v", "t", "negative")] * negative

    claims = crossmodal._count_classes({"train": rows(678, 605), "dev": rows(124, 105), "test": rows(409, 277)})
    assert [one.holds for one in claims] == [False, True, False, True, True, False]


def test_arms_are_judged_by_means_over_seeds() -> None:
    def run(value: float) -> dict[str, dict[str, float]]:
        arms = {f"{r}, {crossmodal._name(e)}": value for r in crossmodal._READINGS for e in crossmodal._EPSILONS}
        return {arm: {"speech": one, "text": one} for arm, one in {"mono": 0.5, "oracle": 0.7, **arms}.items()}

    claims = crossmodal._judge_arms([run(0.4), run(0.64)], [{"a": 3}, {"a": 5}])
    said = {
        one.claim.partition(": ")[2]: one.holds for one in claims if one.part.endswith("text") and ": " in one.claim
    }
    assert said == {
        "better than alone at every epsilon": True,
        "not better than all rows in one place": True,
        "epsilon 1 is better than no noise": False,
    }
    assert claims[-1].ours == "4.0"


@pytest.mark.slow
@pytest.mark.parametrize(
    "entry", [crossmodal.PHONES_ENTRY, crossmodal.MOSI_ENTRY, DECODING_ENTRY], ids=lambda entry: entry.name
)
def test_a_quick_run_judges_every_line(entry: object, tmp_path: Path) -> None:
    from atoll.reproduce import Lab

    claims = entry.run(Lab(tmp_path), True)  # type: ignore[attr-defined]
    assert claims
    assert all(one.kind == "figure" or one.holds is not None for one in claims)
