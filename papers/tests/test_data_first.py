"""A reproduction looks for its data before it runs anything."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import atoll.data
from atoll.core.errors import DataError
from atoll.data.folder import FILES, require
from atoll.reproduce import Entry, Lab, entries, reproduce


def _data(one: Entry, quick: bool) -> tuple[str, ...]:
    return one.quick_data if quick and one.quick_data is not None else one.data


CASES = [
    (name, quick)
    for name, one in entries().items()
    if isinstance(one, Entry)
    for quick in (False, True)
    if _data(one, quick)
]


READ_BY_ENTRIES = {"crowd_labels", "geo", "mosi_texts"}
"""Files that have no loader in `atoll.data`: the entries read them."""


class NothingRuns(Lab):
    def __getattribute__(self, name: str) -> Any:
        if name in ("train", "folder"):
            raise AssertionError(f"{name} was used before the data were looked for")
        return super().__getattribute__(name)


@pytest.mark.parametrize(("name", "quick"), CASES)
def test_missing_data_are_named_at_once(
    name: str, quick: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = NothingRuns(tmp_path)
    monkeypatch.delenv("ATOLL_DATA", raising=False)
    with pytest.raises(DataError, match="ATOLL_DATA is not set"):
        reproduce(name, lab, quick=quick)
    monkeypatch.setenv("ATOLL_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"there is no .* in the folder of ATOLL_DATA"):
        reproduce(name, lab, quick=quick)


def test_every_entry_that_needs_data_says_which() -> None:
    found = {name: one for name, one in entries().items() if isinstance(one, Entry)}
    assert {name for name, one in found.items() if "ATOLL_DATA" in one.needs} == {
        name for name, one in found.items() if one.data
    }


@pytest.mark.parametrize("name", sorted(FILES))
def test_the_files_are_those_that_the_loader_opens(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOLL_DATA", str(tmp_path))
    loader, _, part = name.partition(":")
    if loader in READ_BY_ENTRIES:
        look, given = require, name
    elif part:
        look, given = getattr(atoll.data, loader), part
    else:
        look, given = atoll.data.open, name
    with pytest.raises(DataError, match=re.escape(FILES[name][0].removesuffix(".gz"))):
        look(given)
