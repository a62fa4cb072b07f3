"""Statements that cannot be read, or may not be: the error points to the place, and no silo is asked."""

from __future__ import annotations

import datetime

import pytest

from atoll.core.errors import ConfigError
from atoll.query.statement import Catalog, parse_statement

CATALOG = Catalog(
    {
        "patients": {"Ward": "VARCHAR", "age": "BIGINT", "pay": "DECIMAL(10,2)", "seen": "DATE"},
        "nation": {"k": "INTEGER"},
    }
)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (
            "SELECT wrad FROM patients",
            r"no column wrad in patients\. Did you mean ward\?\nLINE 1: SELECT wrad FROM patients\n               \^",
        ),
        (
            "SELECT count(*)\nFROM patint",
            r"no table patint is at all sites\. Did you mean patients\?\nLINE 2: FROM patint\n             \^",
        ),
        ("SELECT count(*)\nFROM patients wher age > 3", r"LINE 2: FROM patients wher age > 3\n {27}\^"),
        ("SELECT count(*) FROM", r"but got the end\nLINE 1: SELECT count\(\*\) FROM\n {28}\^"),
        ("SELECT sum(ward) FROM patients", r"sum\(VARCHAR\)"),
        ("SELECT 1; SELECT 2", "these are 2 statements"),
        ("", "an empty text is not allowed"),
        ("DROP TABLE patients", "DROP is not allowed"),
        ("INSERT INTO nation VALUES (1)", "INSERT is not allowed"),
        (
            "WITH x AS (DELETE FROM nation RETURNING k) SELECT count(*) FROM x",
            r"DELETE is not allowed|Expected|expected",
        ),
        ("COPY patients TO 'x'", "COPY is not allowed"),
        ("ATTACH 'x'", "ATTACH is not allowed"),
        ("PRAGMA version", "PRAGMA is not allowed"),
        ("SET threads = 3", "SET is not allowed"),
        ("EXPLAIN DROP TABLE nation", "DROP is not allowed"),
        ("SELECT count(*) FROM read_csv('/etc/passwd')", "READCSV is not allowed"),
        ("SELECT count(*) FROM '/etc/passwd'", "no table /etc/passwd"),
        ("SELECT count(*) FROM glob('/*')", "glob is not allowed"),
        ("SELECT count(*) FROM duckdb_settings()", "duckdb_settings is not allowed"),
        ("SELECT count(*) FROM information_schema.tables", r"no table information_schema\.tables"),
        ("SELECT getenv('HOME') FROM nation", "the function getenv is not one"),
        ("SELECT current_setting('memory_limit') FROM nation", "the function current_setting is not one"),
        ("SELECT read_text('/etc/passwd') FROM nation", r"the function read_text is not one|READTEXT"),
        ("SELECT random() FROM nation", "RAND is not allowed"),
        ("SELECT \"current_setting\"('memory_limit') FROM nation", "the function current_setting is not one"),
        ('SELECT "fsum"(age) FROM patients', "the function fsum is not one"),
        ("SELECT product(age) FROM patients", "the function product is not one"),  # sqlglot takes it for one of a row
        ("SELECT ward COLLATE NOCASE FROM patients", "COLLATE is not allowed"),
        ("SELECT ward FROM patients ORDER BY age LIMIT 10%", r"LIMIT 10 PERCENT is no number of rows\nLINE 1: "),
        ("SELECT ward FROM patients ORDER BY age LIMIT (1 + 1)", r"LIMIT \(1 \+ 1\) is no number of rows"),
        ("SELECT count(*) FROM nation WHERE current_date > DATE '2024-01-01'", "CURRENTDATE is not allowed"),
        ("WITH RECURSIVE t AS (SELECT 1 AS a UNION ALL SELECT a FROM t) SELECT count(*) FROM t", "it may never end"),
        ("SELECT count(*) FROM patients WHERE age > ?", r"the parameter \? has no value"),
    ],
)
def test_a_statement_is_refused_at_its_place(text: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        parse_statement(text, CATALOG)


def test_names_and_types_are_duckdbs() -> None:
    found = parse_statement("select Ward, count(*), avg(age), sum(pay) total from patients group by all;", CATALOG)
    assert found.columns == ("Ward", "count_star()", "avg(age)", "total")
    assert found.types == ("VARCHAR", "BIGINT", "DOUBLE", "DECIMAL(38,2)")


def test_parameters_are_values_and_never_text() -> None:
    text = "SELECT count(*) FROM patients WHERE ward = ? AND seen > ?"
    found = parse_statement(text, CATALOG, ["x' OR 1=1 --", datetime.date(2024, 1, 2)])
    assert "'x'' OR 1=1 --'" in found.sql
    assert "CAST('2024-01-02' AS DATE)" in found.sql
    named = parse_statement("SELECT count(*) FROM patients WHERE ward = $w", CATALOG, {"w": "A"})
    assert "ward = 'A'" in named.sql
    with pytest.raises(ConfigError, match="1 params that the statement does not use"):
        parse_statement("SELECT count(*) FROM patients", CATALOG, [1])


def test_explain_is_seen() -> None:
    said = [parse_statement(f"{word} SELECT count(*) FROM nation", CATALOG).explain for word in ("", "explain", "EXPLAIN ANALYZE")]  # fmt: skip
    assert said == ["", "explain", "analyze"]
