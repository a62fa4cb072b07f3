"""The reproductions of sampled queries hold in their quick forms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from atoll.reproduce import Lab
from atoll_papers import query_sampling, query_saqe


@pytest.mark.slow
@pytest.mark.parametrize("entry", [query_sampling.ENTRY, query_saqe.ENTRY])
def test_the_quick_form_holds(entry: Any, tmp_path: Path) -> None:
    claims = entry.run(Lab(tmp_path), True)
    judged = {claim.claim: claim.verdict for claim in claims if claim.kind == "statement"}
    assert judged == dict.fromkeys(judged, "holds")
    assert len(judged) >= 5
