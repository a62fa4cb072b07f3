"""How people name jobs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from atoll.cli.asking import id_of


class Jobs:
    async def jobs(self) -> list[dict[str, Any]]:
        return [{"job": "00000001-aaaaaa"}, {"job": "00000010-bbbbbb"}, {"job": "00000012-123456"}]


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("1", "00000001-aaaaaa"),
        ("10", "00000010-bbbbbb"),
        ("0010", "00000010-bbbbbb"),
        ("00000012-123456", "00000012-123456"),
        ("123456", "123456"),  # no job's number: the server says that there is none
        ("0", "0"),
        ("a", "a"),
    ],
)
def test_a_job_is_named_by_its_id_or_its_number(said: str, meant: str) -> None:
    assert asyncio.run(id_of(Jobs(), said)) == meant  # type: ignore[arg-type]
