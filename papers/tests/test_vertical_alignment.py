"""The reproduction of mistakes of an alignment holds in its quick form; and the mistakes are what their names say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from atoll.reproduce import Lab
from atoll_papers.vertical_alignment import ENTRY, swap_partners


@pytest.mark.parametrize("kind", ["within", "across"])
def test_a_share_of_the_rows_changes_places(kind: str) -> None:
    rng = np.random.default_rng(0)
    y = (rng.random(1000) < 0.3).astype(np.float64)
    partner = swap_partners(y, 0.4, kind, rng)
    assert sorted(partner.tolist()) == list(range(1000))
    moved = partner != np.arange(1000)
    assert moved.sum() == 400
    assert ((y[partner] == y)[moved] == (kind == "within")).all()


def test_mistakes_across_classes_cost_more(tmp_path: Path) -> None:
    claims = ENTRY.run(Lab(tmp_path), True)
    assert {claim.claim: claim.verdict for claim in claims} == {claim.claim: "holds" for claim in claims}
    assert len(claims) == 12
