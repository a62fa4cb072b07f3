"""What a client fetches: whole files, in a folder of its own."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from atoll.core.errors import JobError, MessageError
from atoll.runtime.admin import claim, receive_file, require_free


def test_a_file_counts_when_it_is_whole_and_stays_in_its_folder(tmp_path: Path) -> None:
    async def answers(sha: str) -> AsyncIterator[Any]:
        for piece in (b"one ", b"two"):
            yield {"piece": piece}
        yield {"sha256": sha}

    good = hashlib.sha256(b"one two").hexdigest()
    asyncio.run(receive_file(answers(good), "model.safetensors", tmp_path))
    assert (tmp_path / "model.safetensors").read_bytes() == b"one two"
    with pytest.raises(MessageError, match="did not arrive whole"):
        asyncio.run(receive_file(answers("0"), "other", tmp_path))
    for name in ("../x", "a/b", ".hidden", ""):
        with pytest.raises(MessageError, match="is not a file name"):
            asyncio.run(receive_file(answers(good), name, tmp_path))
    assert not (tmp_path / "other").exists()


def test_a_result_overwrites_nothing_of_others(tmp_path: Path) -> None:
    out = tmp_path / "out"
    require_free(out, "7-a")
    claim(out, "7-a")
    (out / "config.yaml").write_text("x")
    require_free(out, "7-a")  # fetched again
    for folder, job in ((out, "8-b"), (tmp_path, "7-a"), (out / "config.yaml", "7-a")):
        with pytest.raises(JobError, match=r"holds something else.*--out FOLDER"):
            require_free(folder, job)
    with pytest.raises(JobError, match="cannot be made: Not a directory"):
        claim(out / "config.yaml" / "deep", "7-a")
