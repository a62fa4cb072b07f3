"""The reproduction of Hu-Fu holds in its quick form."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.reproduce import Lab
from atoll_papers.query_hufu import ENTRY


@pytest.mark.slow
def test_the_search_sends_no_more_than_published(tmp_path: Path) -> None:
    claims = ENTRY.run(Lab(tmp_path), True)
    judged = {claim.claim + claim.part: claim.verdict for claim in claims if claim.kind == "statement"}
    assert judged == dict.fromkeys(judged, "holds")
    assert len(judged) == 12
