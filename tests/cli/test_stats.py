"""``atoll stats``: files of several sites, described as their federation would."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

Typed = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    found = []
    for k, rows in enumerate((120, 80, 12)):
        draw = np.random.default_rng(k)
        frame = pd.DataFrame({"age": draw.normal(50 + k, 9, rows), "ward": draw.choice(["surgery", "internal"], rows)})
        frame.loc[::10, "age"] = np.nan
        found.append(tmp_path / f"site{k}.csv")
        frame.to_csv(found[-1], index=False)
    return found


def test_it_is_what_pooled_rows_give(files: list[Path], typed: Typed) -> None:
    code, found, _ = typed("stats", *files, "--bins", "5", "--quantiles", "0.25,0.5,0.75")
    assert code == 0
    pooled = pd.concat(map(pd.read_csv, files))
    x = pooled.age.dropna()
    one = found["global"]["age"]
    assert (one["count"], one["missing"]) == (len(x), len(pooled) - len(x))
    np.testing.assert_allclose(
        [one[n] for n in ("mean", "std", "min", "max")], [x.mean(), x.std(ddof=0), x.min(), x.max()]
    )
    assert one["histogram"]["counts"] == np.histogram(x, 5)[0].tolist()
    np.testing.assert_allclose(list(one["quantiles"].values()), np.quantile(x, [0.25, 0.5, 0.75]), rtol=1e-15)
    assert found["global"]["ward"]["values"] == pooled.ward.value_counts().sort_index().to_dict()
    assert list(found["sites"]) == ["site0", "site1", "site2"]
    assert found["sites"]["site2"]["age"]["count"] == 10
    assert found["max_error"] < 1e-9
    assert found["withheld"] == []


def test_sums_alone_and_minimum_counts_and_noise(files: list[Path], typed: Typed) -> None:
    code, found, _ = typed("stats", *files, "--secure", "--categories", "ward=surgery,internal", "--quantiles", "0.5")
    assert (code, found["sites"]) == (0, {})
    assert found["max_error"] < 1e-9
    _, few, _ = typed("stats", *files, "--min-count", "20", "--by", "ward", "--quantiles", "0.5")
    assert few["sites"]["site2"] == {}
    assert any(line.startswith("site2: all rows") for line in few["withheld"])
    assert few["max_error"] < 1e-9
    _, noisy, _ = typed("stats", *files, "--epsilon", "5", "--columns", "age", "--range", "age=0:100")
    assert noisy["privacy"]["epsilon"] == 5.0
    assert noisy["max_error"] > 0


def test_a_second_request_that_singles_out_rows_is_refused(files: list[Path], typed: Typed, tmp_path: Path) -> None:
    records = ("--records", tmp_path / "records", "--min-count", "5", "--columns", "ward")
    assert typed("stats", *files[:2], *records, "--request", "all")[0] == 0
    most = pd.read_csv(files[0]).age.fillna(0).sort_values().iloc[-2]
    code, found, _ = typed("stats", *files[:2], *records, "--where", f"age <= {most}")
    assert code == 0  # those without an age make the difference large
    code, found, _ = typed("stats", *files[:2], *records, "--where", f"age < {most}")
    assert code == 10
    assert "of the earlier request 'statistics' is fewer than min_count=5" in found["error"]["what"]


def test_people_read_tables_and_mistakes_are_named(
    files: list[Path], typed: Typed, capsys: pytest.CaptureFixture[str]
) -> None:
    from atoll.cli import run

    assert run(["stats", *map(str, files), "--quantiles", "0.5", "--drift", "--by", "ward", "--sketch"]) == 0
    said = capsys.readouterr().out
    assert "q0.5" in said
    assert "Largest error against pooled rows" in said
    for words, match in (
        (["--range", "age"], "COLUMN=LOW:HIGH"),
        (["--where", "age"], "write a condition"),
        (["--where", "age > old"], "'old' is not a number"),
        (["--quantiles", "half"], "'half' is not a number"),
        (["--categories", "ward"], "COLUMN=VALUE"),
    ):
        code, found, _ = typed("stats", *files, *words)
        assert code != 0
        assert match in json.dumps(found["error"])
    code, found, _ = typed("stats", files[0], files[0])
    assert "a file is given twice" in found["error"]["what"]
    code, found, _ = typed("stats", files[0].with_name("none.csv"))
    assert "there is no such file" in found["error"]["what"]


@pytest.mark.parametrize("command", [("stats",), ("fit", "glm"), ("trees",)])
def test_a_site_whose_column_is_in_another_unit_is_named(
    files: list[Path], typed: Typed, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files[0].parent)
    for k, file in enumerate(files):
        ages = pd.read_csv(file).age.fillna(50) * (1000 if k == 1 else 1)
        pd.DataFrame({"age": ages, "y": np.arange(len(ages)) % 2}).to_csv(file, index=False)
    label = () if command == ("stats",) else ("--label", "y")
    code, found, noted = typed(*command, *files, *label, *(("--rounds", "1") if command == ("trees",) else ()))
    assert code == 0
    said = next(line for line in found["notices"] if "column 'age'" in line)
    assert "10^3 times larger" in said
    assert "client 'site1'" in said
    assert "is it in another unit?" in " ".join(noted.split())


def test_a_condition_that_no_row_meets_is_refused_with_the_values_that_there_are(
    files: list[Path], typed: Typed
) -> None:
    """It was a table of 0 rows and nan."""
    code, found, _ = typed("stats", *files, "--where", "ward == surgry")
    assert (code, found["error"]["remedy"]) == (2, "the values are «internal», «surgery»")
    assert "no site has 'surgry' in column 'ward'. Did you mean 'surgery'" in found["error"]["what"]
    pooled = pd.concat(map(pd.read_csv, files))
    for condition in ("ward == surgery", "ward == 'surgery'", 'ward == "surgery"'):
        _, found, _ = typed("stats", *files, "--where", condition)
        assert found["global"]["ward"]["count"] == (pooled.ward == "surgery").sum()
    code, found, _ = typed("stats", *files, "--where", "age > 500")
    assert (code, found["error"]["what"]) == (3, "no row meets age > 500.0")


def test_what_agreed_values_leave_out_and_what_is_infinite_is_said(files: list[Path], typed: Typed) -> None:
    pooled = pd.concat(map(pd.read_csv, files))
    others = int((pooled.ward != "surgery").sum())
    _, found, said = typed("stats", *files, "--categories", "ward=surgery")
    assert found["global"]["ward"]["values"] == {"surgery": len(pooled) - others}
    told = f"{others} of {len(pooled)} values of ward are not among the agreed ones: see categories"
    assert told in found["notices"]
    assert told in said
    rows = pd.read_csv(files[0])
    rows.loc[1:3, "age"] = np.inf
    rows.to_csv(files[0], index=False)
    _, found, _ = typed("stats", *files)
    assert "column 'age' has 3 infinite values at client 'site0': they count as missing" in found["notices"]
