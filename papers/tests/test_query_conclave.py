"""The reproduction of Conclave holds in its quick form."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.reproduce import Lab
from atoll_papers.query_conclave import ENTRY


@pytest.mark.slow
def test_what_leaves_the_shares_saves_what_they_cost(tmp_path: Path) -> None:
    claims = ENTRY.run(Lab(tmp_path), True)
    judged = {claim.claim + claim.part: claim.verdict for claim in claims if claim.kind == "statement"}
    assert judged == dict.fromkeys(judged, "holds")
    assert len(judged) == 8
