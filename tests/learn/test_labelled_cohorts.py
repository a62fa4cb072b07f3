"""A selection that guarantees clients with labels, and a training without any."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.core.algebra.rng import Rng
from atoll.core.errors import AtollError, CompositionError, ConfigError, DataError, QuorumError
from atoll.core.requests.party import Roster
from atoll.data import label_map, unlabel
from atoll.selection import Candidates, Everyone, FixedSample, Schedule, Selection, Uniform, WithLabels


def candidates(there: list[int], population: int, number: int = 1, seed: int = 0) -> Candidates:
    return Candidates(Roster(population).all()[np.array(there)], number, Rng.of(seed).child("select", number))


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_every_cohort_has_labels_and_the_size_of_the_rule(data: st.DataObject) -> None:
    population = data.draw(st.integers(3, 12))
    labelled = data.draw(st.sets(st.integers(0, population - 1), min_size=1))
    least = data.draw(st.integers(1, len(labelled)))
    count = data.draw(st.integers(least, population))
    there = sorted(data.draw(st.sets(st.integers(0, population - 1), min_size=count)))
    rule = WithLabels(Uniform(count), sorted(labelled), least=least)
    asked = candidates(there, population, seed=data.draw(st.integers(0, 99)))
    if len(set(there) & labelled) < least:
        with pytest.raises(QuorumError, match="clients with labels are available, and a cohort must have"):
            rule.invite(asked, count, None)
        return
    found = rule.invite(asked, count, None)
    assert len(set(found.tolist())) == count
    assert len({there[i] for i in found} & labelled) >= least
    plain = Uniform(count).invite(asked, count, None)
    if len({there[i] for i in plain} & labelled) >= least:
        assert found.tolist() == plain.tolist()  # the base's cohort, to the bit


def test_how_often_a_client_with_labels_is_invited() -> None:
    rule, hits = WithLabels(Uniform(2), [0, 1]), np.zeros(6)
    for seed in range(4000):
        hits[rule.invite(candidates(list(range(6)), 6, seed=seed), 2, None)] += 1
    none = (4 * 3) / (6 * 5)  # neither place goes to one of the two
    want = np.array([2 / 6 + none / 2] * 2 + [2 / 6 - none / 4] * 4)
    np.testing.assert_allclose(hits / 4000, want, atol=4 * np.sqrt(0.25 / 4000))


def test_a_training_meets_labels_in_every_round() -> None:
    few = unlabel(atoll.data.iid(atoll.data.iris(), parties=10, seed=0), keep=1, at="parties", seed=0)
    at = label_map(few).positions
    assert len(at) == 1
    job = atoll.Training(
        model=atoll.models.linear(4, 3), selection=WithLabels(Uniform(2), at), rounds=5,
        evaluation=atoll.Evaluation(participants=True),
    )  # fmt: skip
    rows = atoll.simulate(job, few, engine="inline").metrics
    assert all(at[0] in row["selected_clients"] for row in rows)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: WithLabels(Uniform(2), []), ConfigError, "least=1 of 0 clients with labels"),
        (lambda: WithLabels(Uniform(2), [0], least=2), ConfigError, "least=2 of 1"),
        (lambda: WithLabels(FixedSample(2), [0]), ConfigError, "FixedSample decides by chance"),
        (lambda: WithLabels(Uniform(2), [7]).check([np.arange(4)]), ConfigError, "client 7 of 4"),
        (
            lambda: WithLabels(Uniform(2), [0]).check([np.arange(2), np.arange(2, 4)]),
            CompositionError,
            "group 1 has 0 clients with labels",
        ),
    ],
)
def test_what_cannot_be_guaranteed_is_refused(make: Any, error: type[AtollError], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_it_passes_on_what_the_base_needs() -> None:
    for base in (Everyone(), Schedule([[0, 1], [1, 2]]), atoll.selection.AFL(2), atoll.selection.Oort(2)):
        rule: Selection = WithLabels(base, [0])
        assert (rule.reports, rule.needs) == (base.reports, base.needs)


def test_a_training_without_any_label_is_refused_and_names_the_parties() -> None:
    data = atoll.data.iid(atoll.data.iris(), parties=2, seed=0)
    job = atoll.Training(model=atoll.models.linear(4, 3), rounds=1)
    with pytest.raises(DataError, match=r"no client has a label: client-0, client-1.*see atoll\.labels"):
        atoll.simulate(job, unlabel(data, at="none"))
    with pytest.raises(DataError, match="labels are at labels"):
        atoll.simulate(job, unlabel(data, keep=9, at="server"))


def test_rows_without_a_label_do_not_train_other_jobs_either() -> None:
    """Trees over half of the labels are those of the labelled rows alone; a column of labels is described with holes."""
    from atoll.statistics import Statistics
    from atoll.trees import Trees

    data = atoll.data.iid(atoll.data.breast_cancer(), parties=2, seed=0)
    few = unlabel(data, keep=200, at="rows", seed=0)
    known = atoll.data.Islands.from_datasets([shard.dataset().take(shard["labelled"]) for shard in few])
    job = Trees(rounds=2)
    ours, theirs = (atoll.simulate(job, found.with_test(data.test), engine="inline").outcome for found in (few, known))
    np.testing.assert_array_equal(ours.predict(data.test.x), theirs.predict(data.test.x))
    summary = atoll.simulate(Statistics(), few, engine="inline").outcome
    assert summary["y"].missing == int(few.sizes.sum()) - 200


def test_the_report_says_who_has_labels_and_what_became_of_pseudo_labels(tmp_path: Path) -> None:
    from atoll.labels.evaluators import PseudoLabels

    few = unlabel(atoll.data.iid(atoll.data.digits(), parties=25, seed=0), keep=40, at="rows", seed=0)
    job = atoll.Training(
        model=atoll.models.linear(64, 10), rounds=3, selection=Uniform(5),
        evaluation=atoll.Evaluation(metrics=[PseudoLabels(0.5)]),
    )  # fmt: skip
    result = atoll.simulate(job, few, engine="inline")
    section = next(one for one in result.prepared.sections(result.outcome) if one["title"] == "Labels")
    assert section["text"].startswith("40 of 1,437 rows at clients have a label")
    holders, seen = section["tables"]
    assert len(holders["rows"]) == 20 + 1 + 1  # clients, the test rows, the rest
    assert holders["rows"][-1][0] == "5 more"
    assert any(row[0] == "server" for row in seen["rows"])
    shares = {figure["name"]: figure["series"][0]["values"] for figure in section["figures"]}
    assert shares["Share of rows with a pseudo-label (test)"] == [row["test/coverage"] for row in result.metrics]
    page = result.report(tmp_path / "page.html").read_text()
    assert "<h2>Labels</h2>" in page
    assert "atoll labels compare" in page
    whole = atoll.simulate(job, atoll.data.iid(atoll.data.digits(), parties=25, seed=0), engine="inline")
    assert not whole.prepared.sections(whole.outcome)


def test_a_measured_gain_has_a_row_of_its_own() -> None:
    from atoll.data.labels.shown import labels_section

    few = unlabel(atoll.data.iid(atoll.data.iris(), parties=2, seed=0), keep=2, at="server", seed=0)
    section = labels_section(label_map(few), [], [], {"gain": 0.08, "interval": (0.02, 0.14)})
    assert section["tables"][1]["rows"] == [["+0.080", "+0.020 to +0.140", "accuracy"]]
    assert "2 labelled rows are at the helper party labels. Nobody has a label of" in section["text"]
    assert "atoll labels compare" not in section["text"]
