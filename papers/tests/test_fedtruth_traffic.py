"""The reproduction with taxis: its campaigns are the models' own, side by side, and the stand-in table comes back."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from atoll.truth import Shamir, Virtual, blend_broadcast
from atoll_papers import fedtruth_traffic
from atoll_papers.fedtruth_traffic import ITERATIONS, MODELS, STAND_IN, draw_reports, play_campaigns, run_campaign


@pytest.mark.parametrize(
    "case",
    [
        (60, 0.15, "logistic"),
        pytest.param((60, 0.05, "logistic"), marks=pytest.mark.slow),
        pytest.param((60, 0.05, "sum"), marks=pytest.mark.slow),
    ],
)
def test_the_stand_in_table_comes_back(case: tuple[int, float, str]) -> None:
    """Digest 1.4: within .01 for 60 users and more, 200 seeds."""
    users, loss, name = case
    ours = fedtruth_traffic._accuracies(users, loss, name, 200, forget=True)
    np.testing.assert_allclose(ours, STAND_IN[case], atol=0.01)


@pytest.mark.parametrize("name", ["logistic", "sum"])
def test_campaigns_side_by_side_are_those_alone(name: str) -> None:
    """Without losses; and each is what the model finds by its own loop."""
    model, (reports, truth) = MODELS[name], draw_reports(20, [4, 9])
    found = play_campaigns(model, reports, truth, 20, 0.0, 3)
    for place, seed in enumerate((4, 9)):
        alone, known = draw_reports(20, [seed])
        assert play_campaigns(model, alone, known, 20, 0.0, None).tolist() == [found[place]]
        state, broadcast = model.start_workers(alone.layout, 20), model.start(alone.layout)
        for _ in range(ITERATIONS):
            sums = model.contribute("truth", state, alone, broadcast)
            broadcast = blend_broadcast(model.combine("truth", alone.layout, sums, broadcast), broadcast, 1.0)
            state = model.learn("truth", state, alone, broadcast)
        assert float(((broadcast["truth"] >= 0.5) == known).mean()) == found[place]


def test_the_job_finds_what_the_arithmetic_finds() -> None:
    """Under the protocol that counts letters: the accuracy of one campaign, and more bytes than the bare shares, all of which the paper sends."""
    reports, truth = draw_reports(60, [2])
    result, accuracy = run_campaign(2, Virtual(of=Shamir(seeds=False)))
    assert accuracy == play_campaigns(MODELS["logistic"], reports, truth, 60, 0.0, 3)[0]
    assert 60 * 96 * 8 < result.bytes_up < 2 * 60 * 96 * 8


def test_who_is_lost_counts_no_more() -> None:
    """With a loss of nearly one nobody is there: the confidence stays one half, which says that every event is true."""
    reports, truth = draw_reports(20, range(3))
    found = play_campaigns(MODELS["logistic"], reports, truth, 20, 1.0 - 1e-12, 3)
    np.testing.assert_array_equal(found, truth.reshape(3, -1).mean(axis=1))


def test_taxis_that_stop_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two taxis stop at one place, one of them also elsewhere; one drives, and one has no coordinates."""
    rows = ["a,40.0001,116.0001,0", "b,40.0002,116.0002,0", "a,40.1,116.1,0", "c,40.1,116.1,30", "d,0,0,0"]
    (tmp_path / "geo").mkdir()
    text = "taxi_id,lat,lon,speed\n" + "\n".join(rows) + "\n"
    (tmp_path / "geo" / "beijing_taxi_traces.csv.gz").write_bytes(gzip.compress(text.encode()))
    monkeypatch.setenv("ATOLL_DATA", str(tmp_path))
    assert [events.tolist() for events in fedtruth_traffic.read_stops()] == [[0, 1], [0]]
