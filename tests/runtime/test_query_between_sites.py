"""A query between organisations: the site's own file says what it allows, and the answer is that of all rows."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pytest

from atoll.cli.app import run

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
