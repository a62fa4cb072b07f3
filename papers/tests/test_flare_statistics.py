"""The reproduction of FLARE's federated statistics holds in its quick form."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.reproduce import Lab, NotKept
from atoll_papers.flare.statistics import ENTRY


def test_what_the_paper_implies_holds(tmp_path: Path) -> None:
    claims = ENTRY.run(Lab(tmp_path), True)
    assert {claim.claim: claim.verdict for claim in claims} == {claim.claim: "holds" for claim in claims}
    assert len(claims) == 7
    assert any("sums of squares" in claim.note for claim in claims)


def test_it_keeps_no_training(tmp_path: Path) -> None:
    with pytest.raises(NotKept, match="flare-statistics"):
        ENTRY.run(Lab(tmp_path, kept=True), True)
