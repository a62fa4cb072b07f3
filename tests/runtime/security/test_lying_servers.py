"""A server that hands out other keys than the sites have: masked sums between real processes are refused, by the name of the key's site."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from atoll.runs import yaml
from atoll.runtime import poc
from tests.runtime import lying_server
from tests.support.front_toys import World, played
from tests.support.submissions import PROGRAM

SITES = ["site-1", "site-2", "site-3", "site-4"]
REFUSED = {
    "honest": None,
    "swapped": r"the key of site 'site-[12]' is refused: site 'site-[12]' of .* is refused: 'site-[12]' was meant",
    "stale": "its kit has not signed this key for this job",
    "unsigned": "the key of site 'site-1' is refused: its kit has not signed this key for this job",
    "absent": "no key of site 'site-1' is known in this job",
}
"""What the server does, in this order, and what a site says to it. The keys of the first job are stale in the third."""


@pytest.fixture
def lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that says what the server does."""
    honest = poc._Daemon

    class Daemon(honest):  # type: ignore[valid-type, misc]
        module = property(lambda self: "lying_server" if self.name == "server" else "atoll.cli")

    monkeypatch.setattr(poc, "_Daemon", Daemon)
    monkeypatch.setenv("PYTHONPATH", str(Path(lying_server.__file__).parent))
    monkeypatch.setenv(lying_server.FILE, str(tmp_path / "lie"))
    return tmp_path / "lie"


@pytest.mark.slow  # its quick siblings are `test_a_server_that_cheats_is_refused_by_name` and `test_a_key_that_the_site_has_not_signed_is_refused_by_name`
@pytest.mark.parametrize("transport", ["tcp", "grpc"])
def test_keys_that_a_site_has_not_signed_for_this_job_win_no_sum(transport: str, tmp_path: Path, lie: Path) -> None:
    rows = {name: np.random.default_rng(i).normal(size=(3, 20)) for i, name in enumerate(SITES)}
    data = {name: [str(tmp_path / f"{name}.npz")] for name in SITES}
    for name, x in rows.items():
        np.savez(data[name][0], x=x, y=np.arange(3) % 2)

    async def body(world: World) -> None:
        for told, words in REFUSED.items():
            lie.write_text(told, encoding="utf-8")
            job = tmp_path / f"job-{told}"
            (job / "code").mkdir(parents=True)
            (job / "code" / "adding.py").write_text(PROGRAM, encoding="utf-8")
            tree = {"sites": SITES, "source": "code", "job": "program", "program": "adding:add", "arguments": {"masked": True}}  # fmt: skip
            (job / "job.yaml").write_text(yaml.dump(tree), encoding="utf-8")
            ended = await world.end((await world.admin.submit(job))["job"])
            if words is None:
                assert ended["state"] == "finished", ended
                found = await world.result(ended["job"], tmp_path / "result")
                np.testing.assert_allclose(found, sum(x[0] for x in rows.values()), atol=1e-5)
            else:
                assert ended["state"] == "failed", (told, ended)
                assert re.search(words, ended["reason"]), (told, ended)

    played(tmp_path / "project", body, transport=transport, data=data)
