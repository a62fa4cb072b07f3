"""The small jobs of ``tests/support/corpus.py`` give the results that they gave: a third of them by default, all with ``make thorough``."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import corpus
from tests.support.tiers import ENGINES

KNOWN: dict[str, Any] = json.loads(corpus.FILE.read_text(encoding="utf-8"))


@pytest.mark.every(3)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.network if n.split()[0] in ENGINES else ()) for n in corpus.JOBS]
)
def test_a_job_gives_what_it_gave(name: str, tmp_path: Path) -> None:
    if name in corpus.NEEDS and find_spec(corpus.NEEDS[name]) is None:
        pytest.skip(f"needs {corpus.NEEDS[name]}")
    assert corpus.differs(name, tmp_path / "run", KNOWN) == []


def test_every_job_has_its_results() -> None:
    assert list(KNOWN["jobs"]) == list(corpus.JOBS), "write what is new: python -m tests.support.corpus --write NAME"


def test_the_jobs_differ_from_each_other() -> None:
    """A part that changes nothing would freeze nothing."""
    found = [tuple(v for k, v in row.items() if k != "numbers") for row in KNOWN["jobs"].values()]
    assert len(set(found)) >= len(found) - 4  # engines give the same


@pytest.mark.parametrize(
    "other",
    [{"a": np.array([1.0, np.nextafter(2.0, 3.0)])}, {"b": np.array([1.0, 2.0])}, {"a": np.array([[1.0, 2.0]])},
     {"a": np.array([1.0, 2.0], np.float32)}, {"a": [1.0, 2.0]}],
    ids=["last bit", "place", "shape", "type", "list"],
)  # fmt: skip
def test_a_digest_sees_every_bit(other: Any) -> None:
    assert corpus.digest({"a": np.array([1.0, 2.0])}) != corpus.digest(other)


def test_another_seed_is_seen_by_bits_and_by_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "SEED", 8)
    assert corpus.differs("QSGD both ways", tmp_path / "bits", {**KNOWN, "arithmetic": corpus.arithmetic()}) == [
        "result",
        "records",
        "numbers",
    ]
    monkeypatch.setattr(corpus, "SEED", 7)
    elsewhere = {**KNOWN, "arithmetic": "another"}
    assert corpus.differs("CentralDP", tmp_path / "near", elsewhere) == []
    monkeypatch.setattr(corpus, "SECRET", 12)
    assert corpus.differs("CentralDP", tmp_path / "far", elsewhere) == ["numbers"]


def test_a_name_that_changed_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random keys follow the name of a task."""
    from dataclasses import replace

    renamed = replace(corpus.moments, name="corpus:renamed")
    monkeypatch.setattr(corpus, "moments", renamed)
    monkeypatch.setattr(corpus._own_program, "tasks", (renamed,))
    assert "result" in corpus.differs("program", tmp_path / "run", {**KNOWN, "arithmetic": corpus.arithmetic()})
