"""Attacks between real processes over mutual TLS, by a coordinator, an owner and the host of an enclave: each is an error with a name, no part of the answer is there, and the same processes answer the honest statement next."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from pathlib import Path

import pytest

from atoll.core.errors import AtollError
from atoll.runtime.admin import Admin
from atoll.runtime.poc import Poc
from tests.runtime.lying import sitecustomize as lying

pytestmark = pytest.mark.network

UNSIGNED = "the statement is not the one that was signed"
OTHER = "was asked for something else than"
APART = "takes part in the session alone|are to hold the shares|leaves out the rows of south"
SEAL = "does not open: it was altered, or does not match its envelope"
ASKED = {
    "another statement": UNSIGNED,
    "another policy": "and min_count is 2",
    "another order of owners": f"{OTHER}|are to hold the shares",
    "another length of texts": OTHER,
    "fewer rows": "are asked for",
    "an owner left out": APART,
}
CARRIED = {"a message is altered": SEAL, "a message is replayed": SEAL, "a message is dropped": f"{SEAL}|waits? for"}
AGAIN = {"a second set of owners": "has bound itself to something else"}
ENCLAVE = "runs other code, or computes something else than this site is asked for"
ATTACKS: dict[str, dict[str, str]] = {
    "smcql:mode=garbled": {**ASKED, **CARRIED, "an altered part": "labels are none of their wires"},
    "senate": {
        **ASKED, "another division": OTHER, **CARRIED,
        "an altered share": "an opened bit does not have its code", "another input than the committed one": "south showed another input than it had committed to",
        "rows out of order": "south: its rows are not in the order", "an altered part": "a part of a result was altered", **AGAIN,
    },
    "opaque": {
        "another statement": UNSIGNED, "another statement to the enclave": ENCLAVE, "another order of owners": ENCLAVE, "fewer rows": "are asked for", "an owner left out": "takes part in the session alone",
        **CARRIED, "an old quote": "answers another challenge", "a block is replayed": "is an old one: version", "a block is swapped": "was swapped with block", "a block is dropped": "was dropped",
        "rows of an earlier letter": "block 0 of table 0 of south does not open", **AGAIN,
    },
}  # fmt: skip
"""Strategy -> each lie, and what is said of it."""
ROWS = [["A", 2, 5], ["B", 2, 7], ["C", 1, 9]]
KILLED = "south.*(ended|killed)"
TEXT = "SELECT ward, count(*), max(fare) FROM trips GROUP BY ward ORDER BY ward"


BESIDE = {"smcql:mode=garbled": {}, "senate": {"helper": "shares"}, "opaque": {"enclave": "enclave"}}
"""Who takes part beside the sites: name -> what it plays."""


@pytest.mark.parametrize("strategy", [pytest.param(one, marks=() if one == "senate" else pytest.mark.slow) for one in ATTACKS])  # fmt: skip
def test_attacks_are_named_and_the_honest_statement_is_answered_between_them(strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """In one job: all lies, then the honest statement, one lie more, and the end of a site's process in the middle of the next."""
    monkeypatch.setenv("ATOLL_CONFINE", "never")  # so that a job's process sees the folder of its lies
    monkeypatch.setenv("PYTHONPATH", str(Path(lying.__file__).parent))
    monkeypatch.setenv(lying.FOLDER, str(tmp_path))
    rules = "policy: {min_count: 1, enclave: {simulated: true}}\ntables: {trips: {columns: protected}}\n"
    data = {}
    for site, rows in (("north", "A,5\nB,7\n"), ("south", "A,4\nB,1\nC,9\n")):
        (tmp_path / site).mkdir()
        (tmp_path / site / "trips.csv").write_text(f"ward,fare\n{rows}")
        (tmp_path / f"{site}.yaml").write_text(f"path: {tmp_path}/{site}\n{rules}")
        data[site] = [str(tmp_path / f"{site}.yaml")]
    if strategy == "opaque":
        (tmp_path / "enclave.yaml").write_text("policy: {min_count: 1}\n")
        data["enclave"] = [str(tmp_path / "enclave.yaml")]
    helper = "helper: true\n" if strategy == "senate" else ""
    job = tmp_path / "job.yaml"
    job.write_text(f"name: ask\njob: query\nattempts: 1\nstrategy: {strategy}\nsql: {TEXT}\n{helper}")
    lies = list(ATTACKS[strategy])
    (tmp_path / "lies.json").write_text(json.dumps([*lies[:-1], "honest", lies[-1], "killed"]))

    async def play() -> str:
        async with Poc(tmp_path / "trial", data, helpers=BESIDE[strategy]) as poc, Admin(poc.kit("admin"), poc.address) as admin:  # fmt: skip
            asked = (await admin.submit(job))["job"]
            with pytest.raises(AtollError, match="south") as caught:
                await admin.finish(asked)
            with contextlib.suppress(AtollError):  # there is no file of that name
                await admin.result(asked, tmp_path / "none", files=("query.json",))
            return str(caught.value)

    said = asyncio.run(play())
    found = json.loads((tmp_path / "found.json").read_text())
    assert {one: rows for one, rows in found.items() if isinstance(rows, list)} == {"honest": ROWS}
    for lie, words in ATTACKS[strategy].items():
        assert re.search(words, found[lie]), (lie, found[lie])
    assert re.search(KILLED, said), said
    assert not (tmp_path / "none" / "query.json").exists()
