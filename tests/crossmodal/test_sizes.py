"""What peers learn of a party's number of rows: all of it, it with noise, or nothing."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import atoll
from atoll.core.errors import ConfigError
from atoll.core.requests.island import Island
from atoll.crossmodal import Crossmodal, FrameCNN, TablePlan, Utterances, join_table
from atoll.crossmodal import parties as parties_of_a_job
from atoll.crossmodal.parties import count_noisily
from atoll.privacy import epsilon_of
from atoll.secure.keystream import NoiseStream
from tests.crossmodal.helpers import made_side

pytest.importorskip("torch")

JOB = Crossmodal(
    speech=FrameCNN(filters=4, widths=(3,)), text=FrameCNN(filters=4, widths=(1,)), rounds=1, iterations=2, pretrain=0, batch=8, hidden=4, width=4, least=1,
)  # fmt: skip
SIZES = {"south": 24, "north": 40}


def posted(monkeypatch, job, **options):
    """The letters of each party: those with a share of the table, and those with a copy."""
    letters, post = [], Island.post

    def keep(self, to, letter):
        letters.append((self.name, letter))
        post(self, to, letter)

    parties = {"south": made_side("speech", 24, 1), "north": made_side("text", 40, 2)}
    with monkeypatch.context() as patch:
        patch.setattr(Island, "post", keep)
        found = atoll.simulate(job, parties, engine="inline", progress=False, **options)
    tables = [letter for _, letter in letters if "sums" in letter]
    return found, tables, {name: letter["rows"] for name, letter in letters if "values" in letter}


def test_peers_learn_counts_exactly_or_not_at_all(monkeypatch):
    _, tables, rows = posted(monkeypatch, JOB)
    assert set(rows) == {"north", "south"}
    assert rows["north"] > rows["south"] > 8
    assert tables[0]["counts"].max() > 1
    found, tables, rows = posted(monkeypatch, replace(JOB, weights="equal"))
    assert rows == {"north": 1, "south": 1}
    assert set(tables[0]["counts"].tolist()) <= {0.0, 1.0}
    assert not {"words", "unknown"} & set(found.outcome.sides["north"])


def test_a_table_without_counts_is_the_mean_that_one_with_counts_is():
    rows = made_side("speech", 30, 4)
    for least in (1, 4):
        shares = [TablePlan(least, 1.0, 0.0, hidden=hidden).build(rows) for hidden in (False, True)]
        tables = [join_table([share], 39, 6) for share in shares]
        assert np.allclose(*tables, atol=1e-6)
        assert tables[0].any()
    # Twice the utterances with the same sound are the same letter.
    twice = Utterances("speech", [*rows.inputs] * 2, [*rows.phones] * 2, [*rows.labels] * 2)
    plan = TablePlan(1, 1.0, 0.0, hidden=True)
    one, other = plan.build(rows), plan.build(twice)
    assert np.array_equal(one.counts, other.counts)
    assert np.allclose(one.sums, other.sums, atol=1e-12)


def test_a_promise_covers_the_number_of_rows_by_which_a_party_plans(monkeypatch, tmp_path):
    """The noise of its copies and the chance of a row follow from the noisy number alone, or they would tell the exact one."""
    asked = []

    def count_seven(rows, noise, stream):
        asked.append((rows, noise))
        return 16

    monkeypatch.setattr(parties_of_a_job, "count_noisily", count_seven)
    job = replace(JOB, epsilon=6.0)
    found, _, rows = posted(monkeypatch, job, ledger=tmp_path / "ledger.jsonl")
    assert rows == {"north": 16, "south": 16}
    assert {noise for _, noise in asked} == {job.size_event.noise_multiplier}
    assert len({count for count, _ in asked}) == 2
    lines = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line.get("count") == job.iterations]
    assert {(line["sampling"], line["noise_multiplier"]) for line in steps} == {(0.5, job.noise_multiplier(16))}
    told = {name: side["epsilon"] for name, side in found.outcome.sides.items()}
    assert told["north"] < told["south"] <= 6.0
    assert told["south"] == pytest.approx(job.spent(16, "speech", 1))
    # Whatever is drawn, the whole costs what was promised.
    for size in (1, 3000):
        events = ((job.size_event, 1), (job.table_plan.event, 1), (job.step_event(size), job.rounds))
        assert 5.9 < epsilon_of(events, job.delta, "rdp") <= 6.0
    assert posted(monkeypatch, replace(job, weights="equal"))[2] == {"north": 1, "south": 1}


def test_the_noise_of_a_count_has_its_deviation_and_leaves_a_row_at_least():
    streams = [NoiseStream(number.to_bytes(32, "little")) for number in range(400)]
    drawn = np.array([count_noisily(500, 12.0, stream) for stream in streams])
    assert abs(drawn.mean() - 500) < 3 * 12 / 20
    assert abs(drawn.std() / 12 - 1) < 3 / np.sqrt(800)
    assert min(count_noisily(1, 50.0, stream) for stream in streams[:50]) == 1


def test_noisy_weights_need_a_promise_and_exact_ones_are_said():
    for settings in ({}, {"epsilon": 2.0, "shared_loss": "fused"}):
        with pytest.raises(ConfigError, match=r"noisy weights without noise.*weights='equal'"):
            replace(JOB, weights="noisy", **settings)
    assert (JOB.weighing, replace(JOB, epsilon=2.0).weighing) == ("rows", "noisy")
    for job, said in ((JOB, True), (replace(JOB, epsilon=6.0, weights="rows"), True), (replace(JOB, weights="equal"), False)):  # fmt: skip
        told = str(job.explain(clients=2).exposures)
        assert ("number of rows" in told) == said
    assert "number of rows, with noise" in str(replace(JOB, epsilon=6.0).explain(clients=2).exposures)
