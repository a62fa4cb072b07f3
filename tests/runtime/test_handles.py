"""A server may have as many connections as the system lets it, and says how many sites that is enough for."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll.runtime.provision import Kit, ProjectConfig, kit_checks, provision
from atoll.runtime.provision.kit_checks import EACH, OWN, Handles, allowed_handles, raise_handles

resource = pytest.importorskip("resource")


@pytest.fixture
def lowered() -> Iterator[tuple[int, int]]:
    """The soft limit is lower than the hard one, as a shell has it."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = (before[0] - 1, before[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, low)
    try:
        yield low
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_soft_limit_becomes_the_hard_one(lowered: tuple[int, int]) -> None:
    before = allowed_handles()
    after = raise_handles(sites=1)
    assert before is not None
    assert after is not None
    assert before.soft < before.hard
    assert (after.soft, after.hard) == (before.hard, before.hard)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] == lowered[1]  # who is no root could never raise it again


@pytest.mark.parametrize(("hard", "said"), [(OWN + 1000 * EACH, False), (OWN + 1000 * EACH - 1, True), (256, True)])
def test_a_low_hard_limit_is_said_in_the_log(
    hard: int, said: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (hard, hard))
    with caplog.at_level(logging.WARNING, "atoll.runtime"):
        raise_handles()
    assert [f"{hard} files at most" in r.getMessage() for r in caplog.records] == ([True] if said else [])


def test_a_limit_that_cannot_be_raised_keeps_no_server_from_starting(
    lowered: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(kind: int, limits: tuple[int, int]) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "setrlimit", refuse)
    try:
        assert raise_handles() == Handles(*lowered)
    finally:
        monkeypatch.undo()


def test_no_limit_is_plenty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    found = allowed_handles()
    assert found is not None
    assert found.sites > 100_000


def test_the_doctor_compares_it_with_the_project(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = [f"site-{i}" for i in range(3)]
    settings = {
        "project": "p", "servers": [{"name": "server", "hosts": ["localhost"]}],
        "sites": [{"name": name, "org": "x"} for name in names],
    }  # fmt: skip
    kit = Kit.read(provision(ProjectConfig.model_validate(settings), tmp_path / "kits").folder / "server")
    for hard, state in ((OWN + 3 * EACH, "ok"), (OWN + 3 * EACH - 1, "problem")):
        monkeypatch.setattr(kit_checks, "allowed_handles", lambda hard=hard: Handles(64, hard))
        found = kit_checks.check_handles(kit)
        assert (found.step, found.state) == ("open files", state)
        assert f"{hard} files and connections" in found.said
    assert "the project has 3" in found.said
    assert "LimitNOFILE" in str(found.remedy)
    monkeypatch.setattr(kit_checks, "allowed_handles", lambda: None)
    assert kit_checks.check_handles(kit).state == "skipped"
