"""The reproductions of SMCQL and Shrinkwrap hold in their quick form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from atoll.reproduce import Lab
from atoll_papers import query_shrinkwrap, query_smcql


@pytest.mark.slow
@pytest.mark.parametrize(("entry", "statements"), [(query_smcql.ENTRY, 16), (query_shrinkwrap.ENTRY, 9)])
def test_the_quick_form_holds(entry: Any, statements: int, tmp_path: Path) -> None:
    claims = entry.run(Lab(tmp_path), True)
    judged = {claim.claim + claim.part: claim.verdict for claim in claims if claim.kind == "statement" and claim.holds is not None}  # fmt: skip
    assert judged == dict.fromkeys(judged, "holds")
    assert len(judged) == statements
