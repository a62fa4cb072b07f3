"""Who insists on a sandbox, what is said where there is none, and what its command line shows and hides."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from atoll.core.errors import ConfigError, PolicyError
from atoll.core.requests.policy import SitePolicy
from atoll.runtime.confinement import sandbox
from atoll.runtime.confinement.sandbox import Confinement, command, confinement
from atoll.runtime.confinement.walls import JobLimits, Walls
from atoll.runtime.provision.kit_checks import check_confinement
from atoll.runtime.worker.policies import policy_of_site, require_allowed
from atoll.runtime.worker.words import paths_of, site_spec
from tests.support.walls import Walled, open_folder


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without bubblewrap."""
    monkeypatch.setattr(sandbox, "program", lambda: None)


@pytest.mark.network
@pytest.mark.usefixtures("without")
def test_where_there_is_no_sandbox_it_is_said_and_whoever_insists_is_refused() -> None:
    made = confinement("auto")
    assert not made.confined
    assert str(made).startswith("jobs are not confined: bubblewrap is not installed. A job can do whatever the user")
    assert made.command(["python"], Walls(Path("/"))) == ["python"]
    assert made.limits(5) == JobLimits(memory=5)
    with pytest.raises(ConfigError, match=r"jobs must be confined, and bubblewrap is not installed.*apt-get install"):
        confinement("always")
    with pytest.raises(ConfigError, match="'perhaps' is not a way to confine jobs"):
        confinement("perhaps")
    with open_folder() as folder:
        found = check_confinement(Walled(folder).kit("north"))
    assert (found.state, found.step) == ("warning", "jobs")
    assert "site 'north': jobs are not confined" in found.said
    assert "install bubblewrap" in str(found.remedy)


def test_a_sandbox_that_cannot_be_made_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "program", lambda: "/usr/bin/bwrap")
    monkeypatch.setattr(sandbox, "why_not", lambda bwrap, network: "No permissions to create new namespace")
    assert "(No permissions to create new namespace)" in str(confinement("auto"))
    with pytest.raises(ConfigError, match=r"No permissions.*policy of the site"):
        confinement("always", where="policy of the site")


def test_a_policy_insists(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: job\n")
    given = {"path": "rows.npz", "policy": {"confined": True}}
    assert policy_of_site(given, "north") == SitePolicy(confined=True, min_count=10)
    require_allowed(given, "north", tmp_path / "job.yaml", None, confined=True)
    with pytest.raises(PolicyError, match=r"jobs must run confined here, and they do not.*policy of site 'north'"):
        require_allowed(given, "north", tmp_path / "job.yaml", None)


@pytest.mark.network
def test_a_site_whose_policy_insists_does_not_start_without_a_sandbox() -> None:
    with open_folder() as folder:
        walled = Walled(folder)
        settings = folder / "data" / "north" / "rows.npz.yaml"
        settings.write_text("path: rows.npz\npolicy: {confined: true}\n")
        walled.options["north"] = ["--data", str(settings), "--confine", "never"]  # the policy has the last word
        walled.environment = {"PATH": str(folder)}  # no bubblewrap there

        async def begun() -> dict[str, Any]:
            said = await walled.start("north")
            assert await walled.fronts["north"].end(0) == 2
            return said

        said = asyncio.run(begun())
        assert said["error"]["what"] == "jobs must be confined, and bubblewrap is not installed"
        assert said["error"]["where"] == "policy of the site"


@pytest.mark.network
def test_the_command_line_shows_what_the_walls_name_and_hides_the_rest(tmp_path: Path) -> None:
    work, kit, code, home, data = (
        tmp_path / name for name in ("work", "work/kit", "work/run/code", "work/run/code/scratch", "work/data.csv")
    )
    made = Confinement("bwrap", hides=(kit, tmp_path / "work" / "run", tmp_path / "elsewhere"))
    words = made.command(["python"], Walls(home, (work, data, code), (tmp_path / "state",)))
    text = " ".join(words)
    assert text.endswith("-- python")
    assert "--unshare-net" in words
    assert "--cap-drop ALL" in text  # of a plain user bubblewrap keeps none, of root it would
    assert f"--tmpfs {kit}" in text
    assert "elsewhere" not in text  # nothing shows it
    first, again = text.index(f"--ro-bind-try {work} "), text.rindex(f"--ro-bind-try {code} ")
    assert first < text.index(f"--tmpfs {tmp_path / 'work' / 'run'}") < again < text.index(f"--bind {home}")
    assert f"--bind {tmp_path / 'state'} " in text
    assert "--unshare-net" not in command("bwrap", Walls(home), ["python"], network=True)
    assert "/etc/resolv.conf" in command("bwrap", Walls(home), ["python"], network=True)


def test_a_job_reads_its_data_and_where_its_settings_point(tmp_path: Path) -> None:
    rows, settings = tmp_path / "rows.csv", tmp_path / "settings" / "site.yaml"
    rows.write_text("a,b\n1,2\n")
    settings.parent.mkdir()
    settings.write_text("path: ../rows.csv\ntarget: b\n")
    assert paths_of(site_spec(str(rows)), "north") == (rows,)
    assert paths_of(site_spec(str(settings)), "north") == (settings, rows)
    assert paths_of({"factory": "m:f", "folder": str(tmp_path)}, "north") == (tmp_path,)
    assert paths_of({}, "keys", helper=True) == ()
    settings.write_text("nonsense: 1\n")  # the job says what is wrong
    assert paths_of(site_spec(str(settings)), "north") == (settings,)


def test_limits_travel_as_a_word() -> None:
    limits = JobLimits(1, 2, 3, 4)
    assert JobLimits.read(limits.word()) == limits
    assert JobLimits.read("7") == JobLimits(memory=7)
