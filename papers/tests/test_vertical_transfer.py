"""The reproduction of transfer with few shared rows: the protocols agree, and its quick form runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.reproduce import Lab, NotKept
from atoll_papers.vertical_transfer import ENTRY, _protocols


def test_protocols_give_one_model() -> None:
    pytest.importorskip("gmpy2")
    claims = _protocols(True)
    assert [claim.verdict for claim in claims] == ["holds", "holds"]


@pytest.mark.slow
def test_the_quick_form_has_every_method(tmp_path: Path) -> None:
    claims = {claim.claim: claim for claim in ENTRY.run(Lab(tmp_path), True)}
    for name in ("SFTL", "SFHTL", "alone", "all labels"):
        assert 0.5 < claims[f"3% shared: {name}"].ours < 1
    assert claims["FedHealth"].ours > claims["the cloud's model of public rows"].ours


def test_it_keeps_no_training(tmp_path: Path) -> None:
    with pytest.raises(NotKept, match="vertical-transfer"):
        ENTRY.run(Lab(tmp_path, kept=True), True)
