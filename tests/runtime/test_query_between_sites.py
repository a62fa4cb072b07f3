"""A query between organisations: the site's own file says what it allows, and the answer is that of all rows."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import sys
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pytest

import atoll.query
from atoll.cli.app import run
from atoll.core.errors import AtollError
from atoll.core.persistence.named_results import NamedResults
from atoll.query.events import check_events
from atoll.runtime.admin import Admin
from atoll.runtime.poc import Poc
from tests.support.databases import postgres_cluster  # noqa: F401 - a fixture
from tests.support.failing_world import children
from tests.support.waiting import until

pytestmark = pytest.mark.network


def test_sites_answer_sql_over_mutual_tls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "north").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "north" / "visits.csv").write_text("ward,age\nA,3\nB,5\nA,9\n")
    with duckdb.connect(str(tmp_path / "south.duckdb")) as made:
        made.execute("CREATE TABLE visits AS SELECT * FROM (VALUES ('A', 1), ('C', 5)) t(ward, age)")
    rules = "policy: {min_count: 2}\ntables: {visits: {columns: {ward: public, age: {level: private, release: aggregate}}}}\n"
    for name, where in (("north", f"path: {tmp_path}/north"), ("south", f"database: {tmp_path}/south.duckdb")):
        (tmp_path / "data" / f"{name}.yaml").write_text(f"{where}\n{rules}")
    text = "SELECT ward, count(*), avg(age), var_samp(age) FROM visits GROUP BY ward"
    (tmp_path / "job.yaml").write_text(f"name: ask\njob: query\nsql: {text}\n")
    asked = ["poc", str(tmp_path / "job.yaml"), "--data", str(tmp_path / "data"), "--sites", "north,south", "--folder", str(tmp_path / "trial")]  # fmt: skip
    assert run(asked) == 0
    found = json.loads((tmp_path / "trial" / "result" / "query.json").read_text())
    assert found["rows"] == [["A", 3, 13 / 3, pytest.approx(52 / 3)]]
    assert (found["withheld_groups"], found["strategy"], set(found["bytes"]["links"])) == (2, "sums", {"north", "south"})  # fmt: skip
    assert "Traceback" not in capsys.readouterr().err
    folder = next(one.parent for one in (tmp_path / "trial").rglob("results") if (one / "north").is_dir())
    assert run(["events", "--site", str(folder), "--verify"]) == 0
    assert "north: 3 events, none missing or changed" in capsys.readouterr().out
    assert run(["events", "--site", str(folder), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["events"]
    assert [(one["details"]["left"], one["details"]["behind"]) for one in told] == [
        ("2 keys of groups, of public columns", {}), ("the units of 3 groups, masked", {"visits": 3}), ("the sums of 1 groups, masked", {"visits": 2}),
    ]  # fmt: skip
    assert all(one["who"].startswith("admin ") and one["job"] for one in told)


def test_duckdb_sqlite_and_postgresql_sites_answer_alike_by_processes_that_are_ready(
    postgres_cluster: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    """The same rows in three databases, one at a site each: every group is three times its rows. SQLite has a write-ahead log; the second statement is answered by processes that waited for it."""
    made = "CREATE TABLE visits (ward VARCHAR(9), age INTEGER, pay DECIMAL(12,2)); INSERT INTO visits VALUES ('A', 3, 1.10), ('A', NULL, 2.20), ('B', 5, -0.05)"
    with duckdb.connect(str(tmp_path / "north.duckdb")) as duck:
        duck.execute(made)
    (tmp_path / "logged").mkdir()
    with sqlite3.connect(tmp_path / "logged" / "south.sqlite") as lite:
        lite.executescript(f"PRAGMA journal_mode = wal; {made}")
    lite.close()
    name = postgres_cluster.database(made, "site_reader")
    places = {"north": tmp_path / "north.duckdb", "south": tmp_path / "logged" / "south.sqlite", "west": postgres_cluster.uri(name, "site_reader")}  # fmt: skip
    data = {site: [str(tmp_path / f"{site}.yaml")] for site in places}
    for site, place in places.items():
        (tmp_path / f"{site}.yaml").write_text(f"database: {place}\npolicy: {{min_count: 1}}\ntables: {{visits: {{columns: public}}}}\n")  # fmt: skip
    text = "SELECT ward, count(*), sum(age), sum(pay) FROM visits GROUP BY ward ORDER BY ward"
    (tmp_path / "job.yaml").write_text(f"name: ask\njob: query\nsql: {text}\n")

    found, cold = list[Any](), set[str]()

    async def ask() -> None:
        async with Poc(tmp_path / "trial", data) as poc, Admin(poc.kit("admin"), poc.address) as admin:
            daemons = {one: poc.process(one).pid for one in ("server", *places)}

            def started(word: bytes) -> set[str]:
                return {one for one, pid in daemons.items() if any(word in line for line in command_lines(pid))}

            async def watch(ending: asyncio.Task[Any]) -> None:
                await until(lambda: (cold.update(started(b"order.msg")), ending.done())[1])
                await ending

            for number in range(2):
                job = (await admin.submit(tmp_path / "job.yaml"))["job"]
                cold.clear()
                await watch(asyncio.create_task(admin.finish(job)))
                await admin.result(job, tmp_path / f"result{number}", files=("query.json",))
                found.append(json.loads((tmp_path / f"result{number}" / "query.json").read_text())["rows"])
                if not number:
                    assert cold == set(daemons)  # whose first processes have their order from the start
                    await until(lambda: started(b"--ready") == set(daemons))

    asyncio.run(ask())
    assert found == [[["A", 6, 9, "9.90"], ["B", 3, 15, "-0.15"]]] * 2
    assert not cold
    assert not list(Path("/tmp").glob("atoll-db-*"))


def test_an_analyst_asks_the_sites_with_a_kit(tmp_path: Path) -> None:
    """A script of the shell, each statement a job: what there is, an answer in its own types, and an error that points to the place."""
    rules = "policy: {min_count: 2}\ntables: {visits: {columns: {ward: public, pay: {level: private, release: aggregate}}}}\n"
    data = {}
    for name, rows in (("north", "A,1.10\nA,2.20\nB,5.00\n"), ("south", "A,0.05\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "visits.csv").write_text(f"ward,pay\n{rows}")
        with duckdb.connect(str(tmp_path / f"{name}.duckdb")) as made:
            made.execute(f"CREATE TABLE visits AS SELECT ward, CAST(pay AS DECIMAL(9,2)) AS pay FROM '{tmp_path}/{name}/visits.csv'")  # fmt: skip
        (tmp_path / f"{name}.yaml").write_text(f"database: {tmp_path}/{name}.duckdb\n{rules}")
        data[name] = [str(tmp_path / f"{name}.yaml")]
    script = f"\\d\n\\o {tmp_path}/rows.csv\nSELECT ward, sum(pay) AS s FROM visits GROUP BY ward;\nSELECT sum(pya) FROM visits;\n"

    async def ask() -> tuple[bytes, bytes, int | None]:
        async with Poc(tmp_path / "trial", data) as poc:
            kit = ["--kit", str(tmp_path / "trial" / "kits" / "analyst"), "--server", poc.address]
            asked = await asyncio.create_subprocess_exec(sys.executable, "-m", "atoll", "sql", *kit, stdin=-1, stdout=-1, stderr=-1)  # fmt: skip
            return *(await asked.communicate(script.encode())), asked.returncode

    out, err, code = asyncio.run(ask())
    said, wrong = out.decode(), err.decode()
    assert "visits  2        horizontal  rows  2" in said, said + wrong
    assert (tmp_path / "rows.csv").read_text() == '"ward","s"\n"A",3.35\n'
    assert "Did you mean pay?" in wrong
    assert "LINE 1: SELECT sum(pya) FROM visits" in wrong
    assert code == 2


def test_a_table_whose_columns_lie_apart_is_joined_over_mutual_tls(tmp_path: Path) -> None:
    """Each site's file names its own columns alone; rows are in another order, and keys lack at the other site or at all. A key that repeats afterwards ends the statement, and no value of it leaves."""
    parts = {
        "clinic": ("id,age\n1,41\n2,62\n3,35\n,9\n5,\n", "age: protected"),
        "insurer": ("cost,id\n80,3\n120,1\n15,4\n7,\n60,5\n", "cost: {level: private, release: aggregate}"),
    }
    data = {name: [str(tmp_path / f"{name}.yaml")] for name in parts}
    for name, (rows, column) in parts.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "patients.csv").write_text(rows)
        rules = f"tables: {{patients: {{mode: vertical, key: id, columns: {{id: private, {column}}}}}}}"
        (tmp_path / f"{name}.yaml").write_text(f"path: {tmp_path}/{name}\npolicy: {{min_count: 1}}\n{rules}\n")
    text = "SELECT count(*), sum(cost), max(age), count(age) FROM patients WHERE age < 60 OR age IS NULL"
    (tmp_path / "job.yaml").write_text(f"name: ask\njob: query\nsql: {text}\nstrategy: smcql:mode=garbled\n")

    async def ask() -> None:
        async with Poc(tmp_path / "trial", data) as poc, Admin(poc.kit("admin"), poc.address) as admin:
            job = (await admin.submit(tmp_path / "job.yaml"))["job"]
            await admin.finish(job)
            await admin.result(job, tmp_path / "result", files=("query.json",))
            with (tmp_path / "insurer" / "patients.csv").open("a") as file:
                file.write("777,3\n")
            with pytest.raises(AtollError, match=r"a value of patients \(cost\)\.id is in more than 1 row") as caught:
                await admin.finish((await admin.submit(tmp_path / "job.yaml"))["job"])
            assert "777" not in str(caught.value)

    asyncio.run(ask())
    assert json.loads((tmp_path / "result" / "query.json").read_text())["rows"] == [[3, 260, 41, 2]]


def command_lines(pid: int) -> list[bytes]:
    """What the processes that a daemon has started were called with: a job's first process has its order, and one that is ready says so."""
    found = []
    for child in children(pid):
        with contextlib.suppress(OSError):
            found.append(Path(f"/proc/{child}/cmdline").read_bytes())
    return found


def test_ctrl_c_ends_a_statement_at_the_sites(tmp_path: Path) -> None:
    """A statement that would take hours: its job and the sites' processes end at once, and the next one is answered, by processes that are ready."""
    rules = "limits: {seconds: 600}\npolicy: {min_count: 1}\ntables: {v: {columns: public}, r: {mode: replicated, columns: public}}\n"
    data = {}
    for name in ("north", "south"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "v.csv").write_text("k\n" + "".join(f"{k}\n" for k in range(1000)))
        (tmp_path / name / "r.csv").write_text("j\n" + "".join(f"{k}\n" for k in range(4000)))
        (tmp_path / f"{name}.yaml").write_text(f"path: {tmp_path}/{name}\n{rules}")
        data[name] = [str(tmp_path / f"{name}.yaml")]
    slow = "SELECT count(*) FROM v JOIN r a ON a.j >= v.k JOIN r b ON b.j >= a.j - v.k JOIN r c ON c.j >= b.j - v.k WHERE c.j * a.j % 7 = b.j % 5"

    async def ask() -> tuple[int | None, int | None, bytes, list[str]]:
        async with Poc(tmp_path / "trial", data) as poc, Admin(poc.kit("analyst"), poc.address) as admin:
            kit = ["--kit", str(tmp_path / "trial" / "kits" / "analyst"), "--server", poc.address]

            async def begin(text: str) -> Any:
                return await asyncio.create_subprocess_exec(sys.executable, "-m", "atoll", "sql", *kit, "--json", text, stdout=-1, stderr=-1)  # fmt: skip

            def working() -> bool:  # the digests of r have left, and the statement itself is next
                return all(list((tmp_path / "trial" / "run" / name).rglob("query-events-*.msg")) for name in data)

            asked = await begin(slow)
            await until(working)
            asked.send_signal(signal.SIGINT)
            await asked.communicate()
            await until(lambda: not any(b"order.msg" in line for name in data for line in command_lines(poc.process(name).pid)))  # fmt: skip
            daemons = [poc.process(name).pid for name in ("server", *data)]
            await until(lambda: all(any(b"--ready" in line for line in command_lines(pid)) for pid in daemons))
            here = tmp_path / "trial" / "run" / "server"
            waiting = {path.stat().st_ino for path in here.glob("ready/*/state")}
            again = await begin("SELECT count(*) FROM v")
            out, _ = await again.communicate()
            assert waiting & {path.stat().st_ino for path in here.glob("jobs/*/state")}  # the folder has moved
            return asked.returncode, again.returncode, out, [one["state"] for one in await admin.jobs()]

    code, next_code, out, states = asyncio.run(ask())
    assert (code, next_code, states) == (130, 0, ["aborted", "finished"])
    assert json.loads(out)["rows"] == [[2000]]


NEAREST = {
    "join": ("SELECT a.id, b.id FROM cabs a JOIN cabs b ON kNN(a.place, b.place, 2) WHERE a.id > 4 ORDER BY 1, 2", [(5, 2), (5, 5), (6, 1), (6, 6)]),
    "rows": ("SELECT id FROM cabs WHERE kNN(POINT(0, 0), place, 3) ORDER BY id", [(1,), (2,), (3,)]),
}  # fmt: skip


@pytest.mark.quick("join")
@pytest.mark.parametrize("kind", NEAREST)
def test_the_nearest_rows_of_three_sites_over_mutual_tls_are_those_of_a_simulation(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:  # fmt: skip
    """Ties on a circle, a site without rows, and a join whose relation sites tell each other."""
    (tmp_path / "data").mkdir()
    header, silos = "id,x,y\n", {}
    rows = {"north": [(1, 3, 4), (2, 0, 1), (3, 5, 0)], "south": [], "west": [(4, 4, 3), (5, -3, 4), (6, 90, 90)]}
    rules = "policy: {min_count: 1}\ntables: {cabs: {columns: public, points: {place: {x: x, y: y, extent: 200, precision: 0.01}}}}\n"
    for name, own in rows.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "cabs.csv").write_text(header + "".join(f"{i},{x},{y}\n" for i, x, y in own))
        (tmp_path / "data" / f"{name}.yaml").write_text(f"path: {tmp_path}/{name}\n{rules}")
        silos[name] = str(tmp_path / name)
    (tmp_path / "p.yaml").write_text(rules)
    text, rows_of_all = NEAREST[kind]
    with atoll.query.connect(silos=silos, policy=tmp_path / "p.yaml") as db:
        simulated = db.sql(text, strategy="hufu")
        assert simulated.rows == rows_of_all
        assert db.check(simulated)
    (tmp_path / "job.yaml").write_text(f"name: ask\njob: query\nstrategy: hufu\nsql: {text}\n")
    asked = ["poc", str(tmp_path / "job.yaml"), "--data", str(tmp_path / "data"), "--sites", "north,south,west", "--folder", str(tmp_path / "trial")]  # fmt: skip
    assert run(asked) == 0, capsys.readouterr().err
    found = json.loads((tmp_path / "trial" / "result" / "query.json").read_text())
    assert [tuple(row) for row in found["rows"]] == rows_of_all
    assert (found["strategy"], found["comparisons"]) == ("hufu", simulated.facts()["comparisons"])
    assert abs(found["bytes"]["predicted"] / found["bytes"]["total"] - 1) < 0.1


def test_sizes_with_noise_are_charged_at_each_site_over_mutual_tls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    """Two sites and a helper without a file of its own: tables are cut, the answer is exact, and each site's record has what it cost."""
    (tmp_path / "data").mkdir()
    rules = "policy: {min_count: 1, privacy: {people: {anna: {epsilon: 9, delta: 0.01}}}}\ntables: {trips: {columns: {card: {level: protected, at_most: 2}, fare: protected}}}\n"
    for site, first in (("north", 0), ("south", 100)):
        (tmp_path / site).mkdir()
        (tmp_path / site / "trips.csv").write_text("card,fare\n" + "".join(f"{first + k // 2},{k % 8}\n" for k in range(24)))  # fmt: skip
        (tmp_path / "data" / f"{site}.yaml").write_text(f"path: {tmp_path}/{site}\n{rules}")
    text = "SELECT count(*) FROM trips a JOIN trips b ON a.card = b.card WHERE a.fare = 2 AND b.fare = 3"
    (tmp_path / "job.yaml").write_text(f"name: ask\njob: query\nstrategy: shrinkwrap:split=uniform\nepsilon: 8\ndelta: 0.001\nanalyst: anna\nhelper: true\nsql: {text}\n")  # fmt: skip
    asked = ["poc", str(tmp_path / "job.yaml"), "--data", str(tmp_path / "data"), "--sites", "north,south", "--folder", str(tmp_path / "trial")]  # fmt: skip
    assert run(asked) == 0, capsys.readouterr().err
    found = json.loads((tmp_path / "trial" / "result" / "query.json").read_text())
    assert (found["strategy"], found["rows"], found["privacy"]["epsilon"]) == ("shrinkwrap", [[6]], 8.0)
    assert len(found["privacy"]["sizes"]) == 3
    capsys.readouterr()
    records = sorted((tmp_path / "trial").rglob("results"))
    spent = []
    for folder in records:
        assert run(["privacy", "ledger", str(folder), "--by", "analyst", "--json"]) == 0
        spent += json.loads(capsys.readouterr().out)["analysts"]
    assert [(one["site"], one["analyst"], one["epsilon"]) for one in spent] == [("north", "anna", 8.0), ("south", "anna", 8.0)]  # fmt: skip


@pytest.mark.slow  # `test_sizes_with_noise_are_charged_at_each_site_over_mutual_tls` computes on shares with a helper in place of the third site
def test_three_sites_share_rows_over_mutual_tls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A strategy under shares by its name: with three sites no helper is asked for."""
    (tmp_path / "data").mkdir()
    rules = (
        "policy: {min_count: 1}\ntables: {trips: {columns: {card: {level: protected, at_most: 2}, fare: protected}}}\n"
    )
    for site, rows in (("north", "1,5\n2,7\n"), ("south", "1,4\n"), ("west", "2,1\n3,9\n")):
        (tmp_path / site).mkdir()
        (tmp_path / site / "trips.csv").write_text(f"card,fare\n{rows}")
        (tmp_path / "data" / f"{site}.yaml").write_text(f"path: {tmp_path}/{site}\n{rules}")
    text = (
        "SELECT a.card, count(*) FROM trips a JOIN trips b ON a.card = b.card AND a.fare > b.fare GROUP BY 1 ORDER BY 1"
    )
    (tmp_path / "job.yaml").write_text(f"name: ask\njob: query\nstrategy: smcql\nsql: {text}\n")
    asked = ["poc", str(tmp_path / "job.yaml"), "--data", str(tmp_path / "data"), "--sites", "north,south,west", "--folder", str(tmp_path / "trial")]  # fmt: skip
    assert run(asked) == 0, capsys.readouterr().err
    found = json.loads((tmp_path / "trial" / "result" / "query.json").read_text())
    assert (found["strategy"], found["rows"]) == ("smcql", [[1, 1], [2, 1]])


@pytest.mark.slow  # `query/test_opaque.py` verifies quotes and sealed rows in one process
def test_an_enclave_gets_sealed_rows_over_mutual_tls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two sites and an enclave: quotes are verified between processes, and the answer is that of all rows."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "enclave.yaml").write_text("policy: {min_count: 1}\n")
    rules = "policy: {min_count: 1, enclave: {simulated: true}}\ntables: {trips: {columns: protected}}\n"
    for site, rows in (("north", "1,5\n2,7\n"), ("south", "1,4\n2,1\n3,9\n")):
        (tmp_path / site).mkdir()
        (tmp_path / site / "trips.csv").write_text(f"card,fare\n{rows}")
        (tmp_path / "data" / f"{site}.yaml").write_text(f"path: {tmp_path}/{site}\n{rules}")
    text = "SELECT a.card, max(b.fare) FROM trips a JOIN trips b ON a.card = b.card AND a.fare > b.fare GROUP BY 1 ORDER BY 1"  # fmt: skip
    (tmp_path / "job.yaml").write_text(f"name: ask\njob: query\nstrategy: opaque:mode=oblivious-pad\nsql: {text}\n")
    asked = ["poc", str(tmp_path / "job.yaml"), "--data", str(tmp_path / "data"), "--sites", "north,south", "--folder", str(tmp_path / "trial")]  # fmt: skip
    assert run(asked) == 0, capsys.readouterr().err
    found = json.loads((tmp_path / "trial" / "result" / "query.json").read_text())
    assert (found["strategy"], found["rows"]) == ("opaque", [[1, 4], [2, 1]])


@pytest.mark.anew  # it looks for the process among those that its daemon has started
def test_a_process_that_is_killed_ends_the_statement_and_costs_once(tmp_path: Path) -> None:
    """One site's process dies once all have been charged: the error names the site, nothing of the answer is there, and the same statement is answered next, for nothing more."""
    rules = "policy: {min_count: 1, privacy: {people: {anna: {epsilon: 9, delta: 0.01}}}}\ntables: {trips: {columns: {card: {level: protected, at_most: 2}, fare: protected}}}\n"
    data, sites = {}, ("north", "south", "west")
    for number, site in enumerate(sites):
        (tmp_path / site).mkdir()
        (tmp_path / site / "trips.csv").write_text("card,fare\n" + "".join(f"{100 * number + k // 2},{k % 8}\n" for k in range(24)))  # fmt: skip
        (tmp_path / f"{site}.yaml").write_text(f"path: {tmp_path}/{site}\n{rules}")
        data[site] = [str(tmp_path / f"{site}.yaml")]
    text = "SELECT count(*) FROM trips a JOIN trips b ON a.card = b.card WHERE a.fare = 2 AND b.fare = 3"
    (tmp_path / "job.yaml").write_text(f"name: ask\njob: query\nattempts: 1\nstrategy: shrinkwrap:split=uniform\nepsilon: 8\ndelta: 0.001\nanalyst: anna\nsql: {text}\n")  # fmt: skip
    run_at = tmp_path / "trial" / "run"

    def charged(site: str) -> bool:
        return bool(list((run_at / site).rglob("query-noised.msg")))

    async def play() -> tuple[str, list[str], dict[str, Any]]:
        async with Poc(tmp_path / "trial", data) as poc, Admin(poc.kit("admin"), poc.address) as admin:
            job = (await admin.submit(tmp_path / "job.yaml"))["job"]
            await until(lambda: all(map(charged, sites)))
            guardian = children(poc.process("south").pid)[0]
            os.kill(min(children(guardian), default=guardian), signal.SIGKILL)
            with pytest.raises(AtollError, match="south") as caught:
                await admin.finish(job)
            with contextlib.suppress(AtollError):  # there is no file of that name
                await admin.result(job, tmp_path / "none", files=("query.json",))
            again = (await admin.submit(tmp_path / "job.yaml"))["job"]
            await admin.finish(again)
            await admin.result(again, tmp_path / "result", files=("query.json",))
            found = json.loads((tmp_path / "result" / "query.json").read_text())
            return str(caught.value), [one["state"] for one in await admin.jobs()], found

    error, states, found = asyncio.run(play())
    assert "south" in error
    assert states == ["failed", "finished"]
    assert not (tmp_path / "none" / "query.json").exists()
    assert (found["rows"], found["privacy"]["epsilon"]) == ([[9]], 8.0)
    for site in sites:
        kept = NamedResults(next(iter((run_at / site).rglob("query-noised.msg"))).parent.parent)
        assert [one["epsilon"] for one in kept.get(site, "query-noised")["answers"]] == [8.0]
        # The killed site's first charge may have had no event yet: the second run's tells of it, as `check_events` asks.
        assert check_events(partial(kept.get, site), site).number >= 4 + (site != "south")


@pytest.mark.slow  # `query/test_kept.py` keeps, reads, loses and drops relations in one process
def test_a_relation_stays_shared_while_sites_start_anew(tmp_path: Path) -> None:
    """Two sites and a helper keep a relation; a site and the helper start anew, and a later statement is answered from their shares. Nothing of a row is left when the connection ends."""
    rules = "limits: {kept: 10MiB}\npolicy: {min_count: 1}\ntables: {trips: {columns: {card: {level: protected, at_most: 2}, fare: protected}}}\n"
    data = {}
    for site, rows in (("north", "1,5\n2,7\n3,2\n"), ("south", "1,4\n2,1\n")):
        (tmp_path / site).mkdir()
        (tmp_path / site / "trips.csv").write_text(f"card,fare\n{rows}")
        (tmp_path / f"{site}.yaml").write_text(f"path: {tmp_path}/{site}\n{rules}")
        data[site] = [str(tmp_path / f"{site}.yaml")]
    pairs = (
        "SELECT a.card, a.fare AS high, b.fare AS low FROM trips a JOIN trips b ON a.card = b.card AND a.fare > b.fare"
    )

    async def play() -> tuple[Any, ...]:
        loop = asyncio.get_running_loop()
        async with Poc(tmp_path / "trial", data, helpers={"third": "shares"}) as poc, Admin(poc.kit("analyst"), poc.address) as anna:  # fmt: skip
            db = atoll.query.connection.JobConnection(lambda body: asyncio.run_coroutine_threadsafe(body(anna), loop).result(), "project", helper=True)  # fmt: skip
            made = await asyncio.to_thread(db.sql, f"CREATE TEMP TABLE pairs AS {pairs}")
            await asyncio.gather(*(poc.process(name).stop() for name in ("north", "third")))
            await asyncio.gather(*(poc.start(name) for name in ("north", "third")))
            first = await asyncio.to_thread(db.sql, "SELECT card, high - low AS saved FROM pairs ORDER BY saved, card")
            kept = rows_at(tmp_path)
            await asyncio.to_thread(db.close)
            return made, first, kept, rows_at(tmp_path)

    made, first, kept, left = asyncio.run(play())
    assert (made.rows, made.kept["parties"], made.kept["rows"]) == ([], ["north", "south", "helper"], 12)
    assert first.rows == [(1, 1), (2, 6)]
    assert [len(one["columns"]) for one in kept] == [6] * 3
    assert left == [{}] * 3


def rows_at(folder: Path) -> list[Any]:
    """What the parties keep of relations."""
    return [
        NamedResults(path.parent.parent).get(path.parent.name, path.stem)
        for path in folder.rglob("query-kept-*-rows.msg")
    ]
