"""The reproduction of boosted trees over columns at several owners holds in its quick form."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.reproduce import Lab
from atoll_papers.vertical_boost import ENTRY


@pytest.mark.slow  # `tests/vertical/trees/test_secure_boost.py` says so of the trees themselves
def test_no_part_changes_a_tree_and_packing_saves_bytes(tmp_path: Path) -> None:
    pytest.importorskip("gmpy2")
    pytest.importorskip("rbcl")
    claims = ENTRY.run(Lab(tmp_path), True)
    assert {claim.claim: claim.verdict for claim in claims} == {claim.claim: "holds" for claim in claims}
    assert len(claims) == 7
