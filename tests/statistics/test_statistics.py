"""Statistics: the pooled answer, through every way of running a job."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.core.errors import ConfigError, DataError
from atoll.data import Dataset, Islands
from atoll.runs import RunFolder, execute, parse_config
from atoll.statistics import Statistics

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime" / "work"))


def parts() -> dict[str, Dataset]:
    draw = np.random.default_rng(3)
    sizes = {"a": 7, "b": 40, "c": 1}
    rows = {name: draw.normal(1e6, 2.0, (size, 3)).astype(np.float64) for name, size in sizes.items()}
    names = ["p", "q", "r"]
    return {
        name: Dataset({"x": x, "y": draw.normal(size=len(x))}, task="regression", features=names)
        for name, x in rows.items()
    }


def test_it_is_the_answer_of_all_rows_in_one_place() -> None:
    x = np.concatenate([np.asarray(rows["x"], dtype=np.float64) for rows in parts().values()])
    for engine in ("inline", "batched"):
        found = atoll.simulate(Statistics(), Islands.from_datasets(parts()), engine=engine).outcome
        assert found.count == 48
        np.testing.assert_allclose(found.mean, x.mean(axis=0), rtol=1e-12)
        np.testing.assert_allclose(found.std, x.std(axis=0), rtol=1e-9)
        assert list(found.features) == ["p", "q", "r"]


def test_too_few_rows_show_nothing_but_their_number() -> None:
    with pytest.raises(DataError, match=r"all parties together have 48 rows, and min_count is 49"):
        atoll.simulate(Statistics(min_count=49), Islands.from_datasets(parts()))


def test_a_configuration_gives_a_folder_and_a_report(tmp_path: Path) -> None:
    data = {"source": "iris", "partition": {"name": "iid", "parties": 4, "seed": 1}}
    folder = RunFolder(tmp_path / "run")
    result = execute(parse_config({"job": "statistics", "data": data, "min_count": 5}), folder)
    said = json.loads((folder.path / "statistics.json").read_text())
    assert said == folder.manifest()["result"]
    assert said["features"] == result.outcome.table()
    assert [row["contact"] for row in folder.metrics()] == ["counts", "spread"]
    assert folder.config().made() == Statistics(min_count=5)
    assert folder.report_file.exists()


def test_sites_find_what_the_simulation_finds(tmp_path: Path) -> None:
    from work_toys import held, sites_of

    told = held({"job": "statistics"}, sites_of(parts()), tmp_path)
    wanted = atoll.simulate(Statistics(), Islands.from_datasets(parts()), engine="inline").outcome
    assert told["status"] == "finished"
    assert told["result"]["features"] == wanted.table()
    again = held({"job": "statistics"}, sites_of(parts()), tmp_path, resume=True)
    assert (again["result"], again["rounds"]) == (told["result"], 2)


@pytest.mark.parametrize(
    ("made", "error", "match"),
    [
        (lambda: Statistics(min_count=0), ConfigError, "min_count=0"),
        (
            lambda: Statistics().prepare(Islands.from_datasets([Dataset({"x": np.zeros((2, 4, 4)), "y": [0, 1]})])),
            DataError,
            "are not columns of numbers",
        ),
    ],
)
def test_what_cannot_be_summed_up_is_refused(made: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        made()
