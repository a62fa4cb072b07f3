"""Adapters on texts: the entries' path on a tiny encoder with random weights."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from atoll.reproduce import Lab
from atoll_papers.text_adapters import FEDCLIP_ENTRY, PEFT_ENTRY

for library in ("torch", "transformers", "peft"):  # not imported here: that takes seconds of every worker
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed", allow_module_level=True)


@pytest.mark.parametrize(
    "entry", [FEDCLIP_ENTRY, pytest.param(PEFT_ENTRY, marks=pytest.mark.slow)], ids=lambda entry: entry.name
)
def test_the_quick_run_needs_no_data_and_no_weights(
    entry: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ATOLL_MODELS", raising=False)
    claims = {claim.claim: claim for claim in entry.run(Lab(tmp_path), True)}  # type: ignore[attr-defined]
    exact = [one for name, one in claims.items() if "comprehensive" in name or "four bytes" in name]
    assert exact
    assert all(one.holds for one in exact)
    assert not any(one.paper for one in claims.values()), "numbers of other weights stand beside none"
