"""``atoll sql``: one statement over silos of three kinds, as a person or a script reads it."""

from __future__ import annotations

import csv
import json
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from atoll.cli.app import run
from atoll.core import message as M
from tests.query.test_databases import fill

POLICY = "policy: {min_count: 1}\ntables: {visits: {columns: public}}\n"


@pytest.fixture
def atoll(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run a command; what it printed on stdout and on stderr."""

    def asked(*words: str, expect: int = 0) -> Any:
        assert run(list(words)) == expect
        return capsys.readouterr()

    return asked


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    (tmp_path / "p.yaml").write_text(POLICY)
    silos = [word for name, path in fill(tmp_path).items() for word in ("--silo", f"{name}={path}")]
    return ["sql", *silos, "--policy", str(tmp_path / "p.yaml")]


def test_json_has_the_answer_and_what_it_cost(atoll: Callable[..., Any], words: list[str], tmp_path: Path) -> None:
    text = "SELECT ward, sum(pay) AS total, avg(age) FROM visits WHERE ward < 'Z' GROUP BY ward ORDER BY ward"
    found = json.loads(atoll(*words, "--json", "-o", str(tmp_path / "out.csv"), text).out)
    assert found["columns"] == ["ward", "total", "avg(age)"]
    assert [[row[0], float(row[1]), row[2]] for row in found["rows"]] == [["A", 42.0, 3.0], ["B", -1.0, None]]
    assert set(found) >= {"strategy", "rejected", "plan", "leakage", "rounds", "comparisons", "privacy", "approximate", "withheld_groups"}  # fmt: skip
    assert set(found["seconds"]) == {"total", "local", "secure"}
    assert (found["expected"]["rounds"], found["expected"]["seconds"] > 0) == (found["rounds"], True)
    assert set(found["bytes"]) == {"total", "predicted", "links"}
    assert set(found["bytes"]["links"]) == {"csv", "parquet", "duck", "lite"}
    with (tmp_path / "out.csv").open() as file:
        assert [row["ward"] for row in csv.DictReader(file)] == ["A", "B"]


def test_explain_says_what_leaves_and_asks_no_rows(atoll: Callable[..., Any], words: list[str]) -> None:
    said = atoll(*words, "EXPLAIN SELECT ward, stddev(x) FROM visits GROUP BY ward").out
    assert "strategy sums" in said
    assert "who learns what" in said
    assert "masked" in said
    assert "in 2 rounds: 0.017 s on links of" in said


def test_errors_point_to_the_place(atoll: Callable[..., Any], words: list[str]) -> None:
    failed = atoll(*words, "SELECT wrad FROM visits", expect=2)
    assert "Did you mean ward?" in failed.err
    assert "^" in failed.err
    assert "a statement and -f" in atoll(*words, "SELECT 1", "-f", "x.sql", expect=2).err
    assert "write --silo NAME=PATH" in atoll("sql", "--silo", "north", "SELECT 1", expect=2).err


def test_check_compares_with_all_rows_in_one_place(atoll: Callable[..., Any], words: list[str]) -> None:
    text = "SELECT ward, avg(x), sum(pay), count(*) FROM visits GROUP BY ward"
    assert json.loads(atoll(*words, "--check", "--json", text).out)["check"] == {"equal": True}
    assert "equal to the answer over all rows" in atoll(*words, "--check", text).out
    found = json.loads(atoll(*words, "--strategy", "each", "--check", "--json", text).out)["strategies"]["sums"]
    assert (found["answered"], found["equal"], found["refused"]) == (True, True, None)
    assert found["bytes"] > 0
    rows = json.loads(atoll(*words, "--strategy", "each", "--check", "--json", "SELECT ward FROM visits").out)
    assert (rows["strategies"]["sums"]["answered"], "asks for rows" in rows["strategies"]["sums"]["refused"]) == (False, True)  # fmt: skip
    assert all(set(one) == {"answered", "equal", "refused", "seconds", "bytes"} for one in rows["strategies"].values())
    assert "no epsilon is given" in rows["strategies"]["saqe"]["refused"]
    noisy = json.loads(atoll(*words, "--strategy", "each", "--epsilon", "1", "--json", "SELECT ward FROM visits").out)
    assert "not all sites have a budget" in noisy["strategies"]["saqe"]["refused"]


def test_a_transcript_has_every_message_and_no_cell(atoll: Callable[..., Any], tmp_path: Path) -> None:
    """Planted: a text and a double of 8 bytes of a private column. The coordinator hears group keys, and they are there."""
    for name in ("north", "south"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "visits.csv").write_text(
            f"ward,who,pay\nwardCANARY,canary-{name},1234.5678\nwardCANARY,x,1.0\n"
        )
    (tmp_path / "p.yaml").write_text("policy: {min_count: 2}\ntables: {visits: {columns: {ward: public, pay: {level: private, release: aggregate}}}}\n")  # fmt: skip
    place = tmp_path / "heard"
    asked = ["sql", "--silo", f"north={tmp_path}/north", "--silo", f"south={tmp_path}/south", "--policy", str(tmp_path / "p.yaml")]  # fmt: skip
    atoll(*asked, "--transcript", str(place), "SELECT ward, avg(pay) FROM visits WHERE who <> 'x' OR pay = 1 GROUP BY ward")  # fmt: skip
    names = {path.name for path in place.iterdir()}
    ends = ("coordinator", "north", "south")
    assert names >= {f"{a}--{b}.bin" for a in ends for b in ends if a != b}
    heard = b"".join(path.read_bytes() for path in place.iterdir())
    assert b"wardCANARY" in (place / "north--coordinator.bin").read_bytes()
    assert b"canary-north" not in heard
    assert struct.pack("<d", 1234.5678) not in heard
    words, rest = [], (place / "north--coordinator.bin").read_bytes()
    while rest:
        size = int.from_bytes(rest[:8], "little")
        words.append(M.decode(rest[8 : 8 + size]))
        rest = rest[8 + size :]
    assert {"plain": {"keys": [[["wardCANARY"]]]}} in words  # of the one grouping


def test_a_sites_range_makes_values_outside_it_null(atoll: Callable[..., Any], tmp_path: Path) -> None:
    for name, pay in (("north", "5,900,30"), ("south", "7,-1,20")):
        (tmp_path / f"{name}").mkdir()
        (tmp_path / name / "visits.csv").write_text("pay\n" + pay.replace(",", "\n") + "\n")
    (tmp_path / "p.yaml").write_text("policy: {min_count: 1}\ntables: {visits: {columns: {pay: {level: private, release: aggregate, range: [0, 100]}}}}\n")  # fmt: skip
    asked = ["sql", "--silo", f"north={tmp_path}/north", "--silo", f"south={tmp_path}/south", "--policy", str(tmp_path / "p.yaml")]  # fmt: skip
    found = json.loads(atoll(*asked, "--check", "--json", "SELECT sum(pay), count(pay), count(*) FROM visits").out)
    assert (found["rows"], found["check"]) == ([[62, 4, 6]], {"equal": True})


def test_noise_has_a_budget_that_outlives_a_command(atoll: Callable[..., Any], tmp_path: Path) -> None:
    table = {"unit": "pid", "columns": {"pid": {"level": "private", "join": "local"}, "ward": "public"}}
    policy = {
        "policy": {"privacy": {"people": {"anna": {"epsilon": 4, "delta": 1e-6}, "ben": {"epsilon": 1}}}},
        "tables": {"v": table},
    }
    (tmp_path / "p.yaml").write_text(json.dumps(policy))
    silos = []
    for name in ("north", "south"):
        (tmp_path / name).mkdir()
        rows = "".join(f"{name}{k},A\n" for k in range(300))
        (tmp_path / name / "v.csv").write_text(f"pid,ward\n{rows}")
        silos.append(f"--silo={name}={tmp_path / name}")
    words = ["sql", *silos, f"--policy={tmp_path / 'p.yaml'}", "--analyst=anna", f"--record={tmp_path / 'kept'}", "--json"]  # fmt: skip
    told = [json.loads(atoll(*words, "--epsilon=2.5", "SELECT count(*) FROM v").out) for _ in range(2)]
    assert told[0]["rows"] == told[1]["rows"]
    assert (told[0]["privacy"]["analyst"], told[0]["privacy"]["epsilon"]) == ("anna", 2.5)
    assert "2.5 is spent" in atoll(*words, "--epsilon=2", "SELECT count(*) FROM v WHERE ward = 'A'", expect=10).out
    near = json.loads(atoll(*words, "--epsilon=1.5", "--error=0.1", "--confidence=0.9", "SELECT count(*) AS n FROM v").out)["approximate"]  # fmt: skip
    assert (near["confidence"], near["rate"] < 1, near["intervals"]["n"][0][1] - near["intervals"]["n"][0][0] < 400) == (0.9, True, True)  # fmt: skip
    assert "at confidence 0.95 at most n ±" in atoll(*words[:-1], "--epsilon=1", "SELECT count(*) AS n FROM v WHERE ward < 'B'", "--analyst=ben").out  # fmt: skip
    spent = json.loads(atoll("privacy", "ledger", str(tmp_path / "kept"), "--by=analyst", "--json").out)["analysts"]
    assert [(one["site"], one["analyst"], one["epsilon"]) for one in spent] == [(site, who, cost) for site in ("north", "south") for who, cost in (("anna", pytest.approx(4)), ("ben", 1))]  # fmt: skip
    assert "analyst" in atoll("privacy", "ledger", str(tmp_path / "kept"), "--by=site", expect=2).err


CELL = '=1\x1b]0;owned\x07\x1b[2J\u202e[red]<b>|a,"b\r\n\x9b31m\u2028'


def test_explain_analyze_says_what_it_took_and_explain_does_not(atoll: Callable[..., Any], tmp_path: Path) -> None:
    for name in ("north", "south"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "visits.csv").write_text("ward,pay\nA,1\nB,2\n")
    (tmp_path / "p.yaml").write_text(POLICY)
    asked = ["sql", *(word for name in ("north", "south") for word in ("--silo", f"{name}={tmp_path}/{name}")), "--policy", str(tmp_path / "p.yaml")]  # fmt: skip
    said = " ".join(atoll(*asked, "EXPLAIN ANALYZE SELECT ward, count(*) FROM visits GROUP BY ward").out.split())
    assert re.search(r"it took [\d,]+ bytes \(north [\d,]+, south [\d,]+\), \d+ rounds? and .* s of it for the sites' own queries; 2 rows", said)  # fmt: skip
    assert "it took" not in atoll(*asked, "EXPLAIN SELECT ward, count(*) FROM visits GROUP BY ward").out


def test_escapes_in_cells_print_as_text(atoll: Callable[..., Any], tmp_path: Path) -> None:
    """No cell, and no name of a column, moves the cursor, is markup, or ends a line; files have the cell as it is."""
    for name in ("north", "south"):
        with duckdb.connect(str(tmp_path / f"{name}.duckdb")) as made:
            made.execute("CREATE TABLE visits (ward VARCHAR, pay INT)")
            made.execute("INSERT INTO visits VALUES (?, 1)", [CELL])
    (tmp_path / "p.yaml").write_text(POLICY)
    asked = ["sql", *(word for name in ("north", "south") for word in ("--silo", f"{name}={tmp_path}/{name}.duckdb")), "--policy", str(tmp_path / "p.yaml")]  # fmt: skip
    text = 'SELECT ward AS "w\x1b[2J\x07", sum(pay) AS s FROM visits GROUP BY ward'
    said = atoll(*asked, text).out
    assert all(letter.isprintable() or letter == "\n" for letter in said), said
    assert "=1\\x1b]0;owned\\x07\\x1b[2J\\u202e[red]<b>|a" in said
    assert "2 rows" not in said.splitlines()[1]
    assert "1 row\n" in said
    assert "\x1b" not in atoll(*asked, "--json", text).out
    with_file = atoll(*asked, "-o", str(tmp_path / "out.csv"), text)
    assert "\x1b" not in with_file.out
    with (tmp_path / "out.csv").open(newline="", encoding="utf-8") as file:
        assert list(csv.reader(file))[1:] == [[CELL, "2"]]
    for wrong in ('SELECT "x\x1b[2J" FROM visits', "SELECT '\x1b[2J' + pay FROM visits", "SELECT \x1b[2J FROM visits"):
        assert "\x1b" not in atoll(*asked, wrong, expect=2).err
