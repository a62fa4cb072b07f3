"""Table 21's systems, as strategies: the quick form holds, and an answer that is wrong is called so."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atoll.query.strategies.strategy import known_strategies
from atoll.reproduce import Lab
from atoll_papers import query_table21
from atoll_papers.query_table21 import ENTRY


@pytest.mark.slow
def test_the_quick_form_holds(tmp_path: Path) -> None:
    claims = ENTRY.run(Lab(tmp_path), True)
    judged = {claim.claim: claim.verdict for claim in claims if claim.kind == "statement" and claim.holds is not None}
    assert judged == dict.fromkeys(judged, "holds")
    absent = {claim.claim.partition(":")[0] for claim in claims if claim.verdict == "not run"}
    assert absent == (set() if "senate" in known_strategies() else {"Senate"})


def test_columns_of_five_owners_are_joined(tmp_path: Path) -> None:
    db, silos = query_table21._open_columns(tmp_path, 40)
    found = query_table21._sized("Opaque", 200, 5, db, silos, query_table21._VERTICAL, "opaque:mode=encryption")
    assert found.verdict == "holds"


@pytest.mark.parametrize(
    ("rows", "noise", "right"),
    [([("a", 5), ("b", 7)], {}, True), ([("a", 5), ("b", 8)], {}, False), ([("a", 5)], {}, False),
     ([("b", 9.5), ("a", 4.0)], {"n": 0.5}, True), ([("b", 11), ("a", 4.0)], {"n": 0.5}, False), ([("c", 7), ("a", 5)], {"n": 9}, False)],
)  # fmt: skip
def test_an_answer_is_right_or_not(rows: Any, noise: dict[str, float], right: bool) -> None:
    found: Any = SimpleNamespace(rows=rows, columns=("k", "n"), privacy={"noise_std": noise})
    assert query_table21._is_right(found, [("a", 5), ("b", 7)]) is right
