"""Every attack of the kit meets what its table says, whether the job fails or goes on without the site."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll.core.errors import ConfigError
from atoll.core.persistence.files import read_lines
from atoll.data import Dataset
from atoll.runs import yaml
from atoll.testing.hostile import ATTACKS, Outcome, play
from tests.support.front_toys import World
from tests.support.front_toys import played as with_processes

JOB = {
    "model": {"name": "linear", "features": 4, "outputs": 2}, "algorithm": {"name": "FedAvg", "lr": 0.1},
    "selection": "Everyone", "rounds": 3, "patience": 20.0,
}  # fmt: skip
ROOT = Path(__file__).parents[3]
SITES = ("site-1", "site-2", "site-3", "site-4")
BAD = SITES[-2:-1][0]
REFUSED = [name for name, attack in ATTACKS.items() if attack.fate == "refused"]


def rows() -> dict[str, Dataset]:
    rng = np.random.default_rng(3)
    made = {}
    for name in SITES:
        x = rng.normal(size=(30, 4)).astype(np.float32)
        made[name] = Dataset({"x": x, "y": (x[:, 0] > 0).astype(np.int64)})
    return made


def held(attack: str | None, folder: Path, without: bool = False, **settings: Any) -> Outcome:
    sites = {name: data for name, data in rows().items() if not (without and name == BAD)}
    return play(
        {**JOB, **settings},
        sites,
        ATTACKS.get(attack or ""),
        folder,
        hostile=None if without else BAD,
        after=settings.pop("after", 0),
    )


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    found = held(None, tmp_path_factory.mktemp("honest"))
    assert found.error is None
    assert found.warnings == []
    return found


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return held(None, tmp_path_factory.mktemp("without"), without=True)


def test_there_are_thirty_at_least_and_each_says_what_it_does() -> None:
    assert len(ATTACKS) >= 30
    assert all(attack.does and attack.meets for attack in ATTACKS.values())
    page = (ROOT / "docs/concepts/hostile-sites.md").read_text(encoding="utf-8")
    for attack in ATTACKS.values():
        assert f"| {attack.name} | {attack.does} | {attack.meets} |" in page, f"write it into the page: {attack}"
    with pytest.raises(ConfigError, match="hostile='nobody' is not one of"):
        play(JOB, rows(), None, ".", hostile="nobody")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if i % 6 == 0 else [pytest.mark.slow]) for i, name in enumerate(REFUSED)]
)
@pytest.mark.quick("a flood of events")
def test_a_job_that_fails_names_the_site(name: str, tmp_path: Path) -> None:
    found = held(name, tmp_path)
    assert found.error is not None
    assert BAD in str(found.error), found.error
    assert len(str(found.error)) < 5000
    assert "no progress" not in str(found.error)  # it is refused for what it sent, not given up for what it did not
    if "from its first bytes" in ATTACKS[name].meets:  # by its size or beginning, not by what is in it
        assert re.search(r"more than (max_bytes|200000 leaves)|it begins with", str(found.error)), found.error


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if i % 6 == 3 else [pytest.mark.slow])
        for i, name in enumerate(name for name in REFUSED if ATTACKS[name].on != "hello")
    ],
)
def test_a_job_that_goes_on_reaches_what_it_would_have_reached_without_the_site(
    name: str, without: Outcome, tmp_path: Path
) -> None:
    """From the first round on: the model is to the bit that of the others alone."""
    found = held(name, tmp_path, on_lost="drop")
    assert found.error is None, found.error
    assert any(BAD in line for line in found.warnings)
    first = 4 if name.startswith("a flood of re") else 3  # its first reply is a reply
    assert [row["replied"] for row in found.rows] == [first, 3, 3]
    assert (found.model == without.model) is (first == 3)


@pytest.mark.parametrize("name", [name for name, attack in ATTACKS.items() if attack.fate == "forgotten"])
def test_what_nobody_asked_for_changes_nothing(name: str, honest: Outcome, tmp_path: Path) -> None:
    found = held(name, tmp_path)
    assert found.error is None
    assert (found.model, found.rows[-1]["replied"]) == (honest.model, 4)


@pytest.mark.parametrize("name", [name for name, attack in ATTACKS.items() if attack.fate == "warned"])
def test_what_stands_far_outside_is_named_and_by_one_setting_rejected(
    name: str, without: Outcome, tmp_path: Path
) -> None:
    warned = held(name, tmp_path / "warn")
    assert warned.error is None
    assert [list(row["outlying_clients"]) for row in warned.rows] == [[BAD]] * 3
    assert any(f"the reply of {BAD} stands far outside its cohort" in line for line in warned.warnings)
    rejected = held(name, tmp_path / "reject", on_outlier="reject")
    assert [list(row["rejected_clients"]) for row in rejected.rows] == [[BAD]] * 3
    assert all("times the median" in row["rejected_clients"][BAD] for row in rejected.rows)
    assert rejected.model == without.model


@pytest.mark.parametrize("name", [name for name, attack in ATTACKS.items() if attack.fate == "believed"])
def test_what_nobody_can_tell_is_said_to_be_so(name: str, honest: Outcome, tmp_path: Path) -> None:
    found = held(name, tmp_path)
    assert (found.error, found.warnings) == (None, [])
    assert found.model != honest.model


@pytest.mark.slow
def test_silence_is_given_up_after_the_jobs_patience(without: Outcome, tmp_path: Path) -> None:
    failed = held("silence", tmp_path / "fail", patience=1.0)
    assert "no progress for 1 seconds" in str(failed.error)
    assert BAD in str(failed.error)
    assert held("silence", tmp_path / "drop", patience=1.0, on_lost="drop").model == without.model


@pytest.mark.network
@pytest.mark.parametrize(
    ("transport", "name", "on_lost"), [("tcp", "another shape", "drop"), ("grpc", "800 MB", "fail")]
)
@pytest.mark.quick("tcp-another shape-drop")
def test_with_real_processes_the_same(
    transport: str, name: str, on_lost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _in_one_project(tmp_path, transport, [(name, {"on_lost": on_lost})], monkeypatch)


@pytest.mark.slow  # its quick sibling is the test above
@pytest.mark.parametrize("name", sorted(REFUSED))
@pytest.mark.parametrize("transport", ["tcp", "grpc"])
def test_with_real_processes_every_attack(
    transport: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = [(name, {"on_lost": on_lost}) for on_lost in ("fail", "drop")]
    _in_one_project(tmp_path, transport, cases, monkeypatch)


@pytest.mark.slow  # its quick sibling is the one in one process
@pytest.mark.parametrize("transport", ["tcp", "grpc"])
def test_with_real_processes_what_stands_far_outside_is_named_and_by_one_setting_rejected(
    transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [name for name, attack in ATTACKS.items() if attack.fate == "warned"]
    outside = [(name, {"on_outlier": how}) for name in names for how in ("warn", "reject")]
    _in_one_project(tmp_path, transport, outside, monkeypatch)


@pytest.mark.slow  # its quick siblings are those in one process
@pytest.mark.parametrize("transport", ["tcp", "grpc"])
def test_with_real_processes_what_changes_nothing_what_is_believed_and_silence(
    transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = [name for name, attack in ATTACKS.items() if attack.fate in ("forgotten", "believed")]
    silent = [("silence", {"on_lost": on_lost, "patience": 2.0}) for on_lost in ("fail", "drop")]
    _in_one_project(tmp_path, transport, [*((name, {}) for name in quiet), *silent], monkeypatch)


def _in_one_project(
    folder: Path, transport: str, cases: list[tuple[str, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, three = {}, {name: part for name, part in rows().items() if name != "site-4"}
    for name, part in three.items():
        (folder / "data" / name).mkdir(parents=True)
        np.savez(folder / "data" / name / "rows.npz", x=part.x, y=part.y)
        data[name] = [str(folder / "data" / name / "rows.npz")]
    monkeypatch.setattr("atoll.runtime.poc._Daemon", _hostile_daemon(BAD))

    async def body(world: World) -> None:
        for number, (name, terms) in enumerate(cases):
            job = folder / "jobs" / str(number)
            job.mkdir(parents=True)
            settings = {**JOB, "rounds": 2, "name": name, "sites": list(data), **terms}
            (job / "job.yaml").write_text(yaml.dump(settings))
            ended = await world.end((await world.admin.submit(job))["job"])
            met = await _met(world, ended, folder / "results" / str(number))
            _look(name, terms, ended, *met)

    with_processes(folder, body, transport=transport, data=data)


async def _met(world: World, ended: dict[str, Any], folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of a job that has finished, and what the server has said about it."""
    said = [line async for _, node, line in world.admin.logs(ended["job"]) if node == "server"]
    if ended["state"] != "finished":
        return [], said
    files = {path.name: path for path in await world.admin.result(ended["job"], folder)}
    return read_lines(files["metrics.jsonl"]), said


def _look(name: str, terms: dict[str, Any], ended: dict[str, Any], rows: list[dict[str, Any]], said: list[str]) -> None:
    """Compare what a job met with what the kit's table says."""
    attack, error = ATTACKS[name], str(ended["error"])
    if attack.fate in ("refused", "lost") and (terms.get("on_lost", "fail") == "fail" or attack.on == "hello"):
        assert (ended["state"], BAD in error) == ("failed", True), (name, terms, ended)
        assert len(error) < 5000, (name, terms)
        return
    assert ended["state"] == "finished", (name, terms, ended)
    assert len(rows) == 2, (name, terms)
    column = {"warn": "outlying_clients", "reject": "rejected_clients"}.get(terms.get("on_outlier", ""))
    if column is not None:
        assert [list(row[column]) for row in rows] == [[BAD]] * 2, (name, terms, rows)
        assert any(BAD in line and "far outside its cohort" in line for line in said) or column != "outlying_clients"
    elif attack.fate in ("forgotten", "believed"):
        assert [row["replied"] for row in rows] == [3, 3], (name, rows)


def _hostile_daemon(bad: str) -> Any:
    """The daemons of a trial, of which one site's is the kit's."""
    from atoll.runtime import poc

    honest = poc._Daemon

    class Daemon(honest):  # type: ignore[valid-type, misc]
        module = property(lambda self: "atoll.testing.hostile" if self.name == bad else "atoll.cli")

    return Daemon
