"""The reproduction of leaks holds in its quick form."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.reproduce import Lab, NotKept
from atoll_papers import vertical_leaks

pytest.importorskip("torch")


def test_gradients_tell_labels_unless_they_are_stretched() -> None:
    parties, _ = vertical_leaks._parties(True)
    bare, hidden = (
        vertical_leaks._train(parties, True, 0, audit=("direction",), defence=vertical_leaks._DEFENCES[name])
        for name in ("bare", "MaxNorm")
    )
    assert bare["direction"] > 0.95 > 0.85 > hidden["direction"]


@pytest.mark.slow
def test_what_is_claimed_holds_in_the_quick_form(tmp_path: Path) -> None:
    claims = vertical_leaks.ENTRY.run(Lab(tmp_path), True)
    assert not [claim.claim for claim in claims if claim.verdict == "does not hold"]
    assert len([claim for claim in claims if claim.verdict == "holds"]) >= 3


def test_it_keeps_no_training(tmp_path: Path) -> None:
    with pytest.raises(NotKept, match="vertical-leaks"):
        vertical_leaks.ENTRY.run(Lab(tmp_path, kept=True), True)
