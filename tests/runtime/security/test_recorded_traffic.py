"""What the server's machine sees of a masked sum between real processes: its traffic is written down and searched for every site's reply."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.cli.app import run
from atoll.cli.commands.poc import poc_job
from atoll.core.algebra import tree as T
from atoll.core.federation.reducer import Plain
from atoll.core.requests.request import PartialSum
from atoll.engines import Inline
from atoll.runs import yaml
from atoll.runtime import poc
from atoll.runtime.job_spec import parse_job
from atoll.secure.words import FixedPoint, WordLayout
from tests.runtime import recording_server
from tests.support.front_toys import World, played
from tests.support.submissions import PROGRAM

SITES = ["site-1", "site-2", "site-3", "site-4"]


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with what the server of a trial has passed on."""
    honest = poc._Daemon

    class Daemon(honest):  # type: ignore[valid-type, misc]
        module = property(lambda self: "recording_server" if self.name == "server" else "atoll.cli")

    monkeypatch.setattr(poc, "_Daemon", Daemon)
    monkeypatch.setenv("PYTHONPATH", str(Path(recording_server.__file__).parent))
    monkeypatch.setenv(recording_server.FILE, str(tmp_path / "record"))
    return tmp_path / "record"


def pieces(array: Any, seed: int = 0) -> set[bytes]:
    """Forty pieces of 16 bytes of an array, as it is and as numbers of the other precisions; none of a single repeated value."""
    flat, found = np.ravel(array), set()
    for dtype in {flat.dtype, np.dtype(np.float32), np.dtype(np.float64)} if flat.dtype.kind == "f" else {flat.dtype}:
        raw, size = np.ascontiguousarray(flat.astype(dtype)), 16 // dtype.itemsize
        for start in np.random.default_rng(seed).integers(0, max(1, len(raw) - size), 40):
            piece = raw[start : start + size]
            if len(piece) == size and len(np.unique(piece)) == size:
                found.add(piece.tobytes())
    return found


def seen(record: Path, wanted: set[bytes]) -> int:
    """How many pieces the record holds."""
    content = record.read_bytes()
    return sum(piece in content for piece in wanted)


@pytest.mark.slow  # its quick sibling is `check_reducer`, which looks at every word that a server receives
@pytest.mark.parametrize("transport", ["tcp", "grpc"])
def test_the_servers_traffic_holds_no_reply_of_a_masked_sum(transport: str, tmp_path: Path, record: Path) -> None:
    rng, data, replies = np.random.default_rng(5), {}, {}
    for name in SITES:
        rows = rng.normal(size=(3, 500))
        data[name] = [str(tmp_path / f"{name}.npz")]
        np.savez(data[name][0], x=rows, y=np.arange(3) % 2)
        replies[name] = rows[0]
    words = set[bytes]()
    for reply in replies.values():
        totals = {"sum": atoll.Sum(reply, role="update").total()}
        for lane in WordLayout.of(totals, FixedPoint(), len(SITES)).encode(totals).values():
            words |= pieces(np.asarray(lane))
    sums: dict[bool, Any] = {}

    async def body(world: World) -> None:
        for masked in (True, False):
            job = tmp_path / f"job-{masked}"
            (job / "code").mkdir(parents=True)
            (job / "code" / "adding.py").write_text(PROGRAM, encoding="utf-8")
            tree = {
                "sites": SITES,
                "source": "code",
                "job": "program",
                "program": "adding:add",
                "arguments": {"masked": masked},
            }
            (job / "job.yaml").write_text(yaml.dump(tree), encoding="utf-8")
            ended = await world.end((await world.admin.submit(job))["job"])
            assert ended["state"] == "finished", ended
            sums[masked] = await world.result(ended["job"], tmp_path / f"result-{masked}")
            found = {name: seen(record, pieces(reply)) for name, reply in replies.items()}
            if masked:
                assert set(found.values()) == {0}, found
                assert seen(record, words) == 0
            else:  # and so the record has what passes
                assert all(count >= 20 for count in found.values()), found

    played(tmp_path / "project", body, transport=transport, data=data)
    np.testing.assert_allclose(sums[True], sums[False], atol=1e-5)
    np.testing.assert_allclose(sums[False], sum(replies.values()), atol=1e-12)


class Noting(Inline):
    """The inline engine, which notes each client's first update."""

    def __init__(self) -> None:
        super().__init__()
        self.updates: dict[int, list[Any]] = {}

    async def fold(self, request: Any, positions: Any) -> Any:
        parts = []
        for position in positions:
            part = await super().fold(request, np.array([position]))
            for total in part.totals.values():
                if total.role == "update":
                    leaves = [np.asarray(leaf) for leaf in T.leaves(total.value)]
                    self.updates.setdefault(int(position), leaves)
            parts.append(part)
        return PartialSum.zero().merge(*parts)


def updates_of(seed: int) -> list[set[bytes]]:
    """Pieces of each site's update in the first round of the trial, from a simulation of the same round without masks."""
    islands = poc.digits_at(SITES, 0.3, seed)
    job = parse_job(poc_job(SITES, seed)).complete().made()
    engine = Noting()
    atoll.simulate(job.replace(reducer=Plain(), rounds=1), islands, engine=engine, seed=seed, progress=False)
    assert sorted(engine.updates) == [0, 1, 2, 3]
    return [set().union(*(pieces(leaf) for leaf in leaves)) for _, leaves in sorted(engine.updates.items())]


@pytest.mark.slow
@pytest.mark.parametrize("secure", [True, False])
def test_the_servers_traffic_holds_no_update_of_a_secure_trial(
    secure: bool, tmp_path: Path, record: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["poc", "--sites", "4", "--folder", str(tmp_path / "poc"), *(["--secure"] if secure else []), "--json"]
    assert run(words) == 0
    assert ("survivors" in json.loads(capsys.readouterr().out)) == secure
    found = [seen(record, update) for update in updates_of(0)]
    if secure:
        assert found == [0] * 4
    else:  # without masks each of them is there
        assert min(found) >= 20, found
