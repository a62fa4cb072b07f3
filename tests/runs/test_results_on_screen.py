"""What a person sees who prints a result, a job or islands, or lets a notebook show them."""

from __future__ import annotations

import sys

import pytest

import atoll
from atoll.core.errors import ConfigError, MissingExtraError
from atoll.rounds import each_round
from atoll.rounds.program import ProgramJob

ISLANDS = atoll.data.dirichlet(atoll.data.digits(), parties=6, alpha=0.5, seed=0)


@pytest.fixture(scope="module")
def result():
    job = atoll.Training(model=atoll.models.linear(64, 10), selection=atoll.Everyone(), rounds=3)
    return atoll.simulate(job, ISLANDS, engine="inline")


def test_a_result_prints_as_six_lines(result):
    lines = str(result).splitlines()
    assert lines == repr(result).splitlines()
    assert len(lines) == 6
    assert lines[0] == "Result of Training (FedAvg) on 'digits', 6 clients"
    assert lines[1] == "  rounds    3 of 3; ended: all 3 rounds are done"
    assert f"test/accuracy {result.metrics.last('test/accuracy'):.4g}" in lines[2]
    assert max(map(len, lines)) < 100
    assert len(repr(result.outcome)) < 1000


def test_tables_without_test_rows_say_why_nothing_was_measured():
    """The name of the first table is not that of them all."""
    table = {"x": [[0.0], [1.0]], "y": [0, 1]}
    islands = atoll.data.Islands.from_datasets({name: atoll.data.Dataset(table, name=name) for name in ("north", "south")})  # fmt: skip
    job = atoll.Training(model=atoll.models.linear(1, 2), rounds=1)
    lines = str(atoll.simulate(job, islands, engine="inline", progress=False)).splitlines()
    assert lines[0] == "Result of Training (FedAvg) on 2 clients"
    assert "there are no test rows" in lines[2]
    assert "with_held_out(0.2)" in lines[2]


def test_a_notebook_shows_a_table_whose_text_is_escaped(result):
    shown = result._repr_html_()
    assert shown.count("<tr>") == 5
    assert "&#x27;digits&#x27;" in shown
    assert "<td" in ISLANDS._repr_html_()
    assert "<script>" not in atoll.Training(model=atoll.models.linear(2, 2), loss="<script>")._repr_html_()


def test_a_job_shows_what_is_not_its_default():
    job = atoll.Training(model=atoll.models.linear(64, 10), algorithm=atoll.FedAvg(lr=0.2), rounds=7)
    assert str(job).splitlines()[0] == "Training (FedAvg)"
    assert [line.split()[0] for line in str(job).splitlines()[1:]] == ["model", "algorithm", "rounds"]


def test_completion_offers_what_the_outcome_has(result):
    assert {"params", "model", "round", "metrics", "plot"} <= set(dir(result))


def test_records_become_a_frame(result):
    frame = result.to_pandas()
    assert frame["round"].tolist() == [1, 2, 3]
    assert frame["test/accuracy"].tolist() == result.metrics.column("test/accuracy")


def test_pandas_is_named_when_it_is_missing(result, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match=r"to_pandas needs pandas.*pip install pandas"):
        result.to_pandas()


def test_a_plot_has_the_measured_values(result):
    pytest.importorskip("matplotlib").use("Agg")
    axes = result.plot("test/loss")
    assert axes.lines[0].get_xdata().tolist() == [1, 2, 3]
    assert axes.lines[0].get_ydata().tolist() == result.metrics.column("test/loss")
    assert result.plot("test/accuracy", axes=axes) is axes
    assert [line.get_label() for line in axes.lines] == ["test/loss", "test/accuracy"]
    assert {line.get_label() for line in result.plot().lines} == {"test/loss", "test/accuracy"}
    with pytest.raises(ConfigError, match=r"Did you mean .test/accuracy."):
        result.plot("test/acuracy")


def test_a_program_of_ones_own_prints_too():
    async def program(fed):
        for number in each_round(fed, most=2):
            fed.record({"drift": 0.5 / number})
        return "done"

    shown = str(atoll.simulate(ProgramJob.of(program), ISLANDS, engine="inline"))
    assert "drift 0.25" in shown
    assert len(shown.splitlines()) == 6
