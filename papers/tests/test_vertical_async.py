"""The reproduction of asynchronous hosts holds in its quick form."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.reproduce import Lab, NotKept
from atoll_papers.vertical_async import ENTRY

pytest.importorskip("torch")


@pytest.mark.slow
def test_what_is_claimed_holds_in_the_quick_form(tmp_path: Path) -> None:
    claims = ENTRY.run(Lab(tmp_path), True)
    assert [claim.verdict for claim in claims if claim.verdict] == ["holds"] * 3


def test_it_keeps_no_training(tmp_path: Path) -> None:
    with pytest.raises(NotKept, match="vertical-async"):
        ENTRY.run(Lab(tmp_path, kept=True), True)
