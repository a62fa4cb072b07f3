"""The reproductions of Upcycled-FL: their protocol, and that they judge what they ran."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import atoll
from atoll.reproduce import Lab, NotKept, Page, find_entry
from atoll.runs import parse_config
from atoll_papers.upcycled.data import KINDS, divided, islands, logistic
from atoll_papers.upcycled.entries import TABLE_1, TABLE_3
from atoll_papers.upcycled.private import Trial
from atoll_papers.upcycled.table import judge_bases, judge_gains, judge_level, table
from atoll_papers.upcycled.trainings import (
    BASES,
    PairedCells,
    UpcycledCell,
    UpcycledMethod,
    UpcycledProtocol,
    algorithm,
    cell,
    chosen_at,
    decided,
    over_populations,
    settings,
    tries,
    tuned,
)

TINY = UpcycledProtocol(late=0.9, rounds=4, seeds=2, tuning_seeds=1, epochs=2, rows=60)


class Plain(Lab):
    """Trains client by client: on so few rows, to find out what would be faster takes longer than all steps."""

    def train(self, settings):
        return super().train({**settings, "engine": "inline", "compile": "never"})


def test_the_papers_numbers_add_up_to_its_summary():
    # Mean gains by population, computed apart from this code over the bases whose rows are not lost.
    gains = lambda paper, kind: np.mean([b - a for (_, k), (a, b) in paper.items() if k == kind])  # noqa: E731
    assert [gains(TABLE_1, kind) for kind in KINDS] == pytest.approx([0.85, 0.89, 0.92, 1.11], abs=0.006)
    assert [gains(TABLE_3, kind) for kind in KINDS] == pytest.approx([0.68, 0.35, 0.85, 1.11], abs=0.006)
    assert len(TABLE_1) == 6 * 4
    assert len(TABLE_3) == 7 * 4


@pytest.mark.parametrize("kind", KINDS)
def test_validation_rows_are_neither_trained_on_nor_tested(kind):
    train, test = divided(kind, rows=80)
    fit, check = divided(kind, tuning=True, rows=80)
    rows = lambda shard: {row.tobytes() for row in np.asarray(shard.x)}  # noqa: E731
    for i in range(3):
        parts = [rows(p.shard(i)) for p in (fit, check, test)]
        assert parts[0] | parts[1] == rows(train.shard(i))
        assert not (parts[0] & parts[1])
        assert not (parts[0] & parts[2])
        assert not (parts[1] & parts[2])
    assert len(islands(kind, rows=80).test) == sum(test.sizes)


def test_unit_rows():
    train, _ = divided("1,1", rows=60, unit=True)
    assert max(float(np.linalg.norm(np.asarray(train.shard(i).x), axis=1).max()) for i in range(30)) <= 1 + 1e-12


def test_a_base_and_its_upcycled_version_have_the_same_grid():
    for base in BASES:
        for kind in ("qmnist", "tweets", "iid"):
            own, up = (tries(base, way, kind) for way in ("base", "upcycled"))
            assert [method.lr for method in own] == [method.lr for method in up]
            assert all(method.lr * 15 <= 1 for method in own) or base != "pFedMe"
        assert {method.u for method in up} == {0.3}
        for method in (own[0], up[0]):
            made = parse_config(settings(method, "iid", TINY, tuning=False, seed=0))
            assert made.rounds == (8 if method.way == "upcycled" else 4)
            # Tuned at the table's own number of rounds.
            assert parse_config(settings(method, "iid", TINY, tuning=True, seed=0)).rounds == made.rounds
    inner = algorithm(UpcycledMethod("FedAvg", "server", 0.1, 0.5), 0.3)["base"]
    assert inner["server_lr"] == 1.5
    assert inner["stragglers"] == {"probability": 0.3}


@pytest.mark.slow
def test_the_rule_of_selection_is_the_best_mean_on_validation_rows_and_cells_are_kept(tmp_path: Path):
    seen: list[str] = []

    def watch(name, rounds):
        seen.append(name)
        return lambda row: None

    lab, two = Plain(tmp_path, watch=watch), replace(TINY, rounds=2, tuning_seeds=2)
    for way in ("base", "upcycled"):
        means = {
            method: np.mean(
                [lab.train(settings(method, "0,0", two, tuning=True, seed=seed)).last() for seed in (100, 101)]
            )
            for method in tries("FedAvg", way)
        }
        best = tuned(lab, "FedAvg", way, "0,0", two)
        assert means[best] == max(means.values())
        assert best.lr == min(method.lr for method in means if means[method] == means[best])
    assert len(seen) == 2 * 5 * 2
    first = cell(lab, best, "0,0", two)
    assert len(seen) == 20 + 2
    again = Plain(tmp_path, watch=watch, kept=True)
    np.testing.assert_array_equal(first.values, cell(again, best, "0,0", two).values)
    assert 0.5 < first.values.mean() <= 1
    # Where nothing may be trained, a cell has the seeds that were kept, and none is an error.
    assert len(cell(again, best, "0,0", replace(two, seeds=4)).values) == 2
    with pytest.raises(NotKept, match="syn-iid-fedavg-upcycled"):
        cell(again, best, "iid", two)
    assert len(seen) == 22


@pytest.mark.network
def test_personal_models_are_measured_on_the_clients_own_test_rows(tmp_path: Path):
    method = UpcycledMethod("pFedMe", "base", 0.03)
    made = logistic("0,0", rows=60)
    total = sum(made.tests.sizes)
    row = Lab(tmp_path).train(settings(method, "0,0", TINY, tuning=False, seed=0)).rows[-1]
    right = float(row["personal/accuracy"]) * total
    assert right == pytest.approx(round(right), abs=1e-6)
    # The global model, client by client, has the accuracy of the server's test set, which is the same rows.
    assert row["clients/accuracy"] == pytest.approx(row["test/accuracy"])
    assert row["personal/accuracy"] != row["clients/accuracy"]


@pytest.mark.network
def test_the_papers_code_takes_the_softmax_twice():
    """Classes that plain logistic regression fits to any loss stay above ``log(1 + 1/e)`` = 0.3133."""
    kind, rows = "0,0", 60
    data = islands(kind, rows=rows)

    def losses(softmax):
        job = atoll.Training(
            model=logistic(kind, rows=rows, softmax=softmax),
            algorithm=atoll.FedAvg(lr=0.03, batch_size=None, epochs=5),
            rounds=40,
            selection=atoll.Everyone(),
        )
        return [row["loss"] for row in atoll.simulate(job, data, engine="batched", seed=0).metrics]

    once, twice = losses(False), losses(True)
    assert once[-1] < twice[-1] < twice[0] < np.log(2)
    assert min(twice) > np.log(1 + np.exp(-1))
    torch = pytest.importorskip("torch")
    made = logistic(kind, rows=rows, softmax=True).make()
    scores = made(torch.ones(3, 20))
    np.testing.assert_allclose(scores.sum(-1).detach(), 1.0)
    assert logistic(kind, rows=rows).make()(torch.ones(3, 20)).detach().abs().max() == 0


@pytest.mark.slow
def test_a_table_judges_what_it_ran_and_writes_its_page(tmp_path: Path):
    chosen, one_seed = chosen_at({(base, "iid"): (0.03, 0.03) for base in BASES}, 0.5), replace(TINY, seeds=1)
    ran = ("FedAvg", "pFedMe", "Scaffold")
    claims = table(Plain(tmp_path), one_seed, TABLE_1, ("iid",), ran, chosen)
    said = {claim.claim: claim for claim in claims}
    assert len(said) == len(claims)
    fold = said["Upcycled is more than its base with server learning rate 1 + u"]
    assert fold.ours == pytest.approx(0, abs=1e-9)
    assert not fold.holds
    half = next(c for c in claims if "half of the contacts" in c.claim)
    assert half.holds
    assert half.ours[0] == 0.5
    moved = next(claim for claim in claims if "moves the control variate" in claim.claim)
    assert moved.verdict == "undecided"  # one seed, whatever its sign
    level = said["at the base's learning rate: Upcycled-FedAvg is better than FedAvg on Syn(iid)"]
    assert "both at lr=0.03" in level.note
    assert "u=0.3" in level.note
    assert "Upcycled-pFedMe is better than pFedMe on Syn(iid)" in said
    one = said["Upcycled-FedAvg is better than FedAvg on Syn(iid)"]
    assert one.paper == "98.06 -> 98.83"
    # Judged again from what was kept: the same; what was not run is said, more seeds than were kept are not made up.
    kept, more = Plain(tmp_path, kept=True), replace(TINY, seeds=4)
    assert table(kept, one_seed, TABLE_1, ("iid",), ran, chosen) == claims
    again = {claim.claim: claim for claim in table(kept, more, TABLE_1, ("iid",), (*ran, "FedProx"), chosen)}
    assert again["Upcycled-FedAvg is better than FedAvg on Syn(iid)"] == one
    assert again["Upcycled-FedProx is better than FedProx on Syn(iid)"].verdict == "not run"
    # The page has each of them, with its verdict.
    page = Page(tmp_path / "page.md", find_entry("upcycled-table1"))
    page.write({"name": "upcycled-table1", "claims": [claim.plain() for claim in again.values()]})
    lines = page.file.read_text(encoding="utf-8").splitlines()
    for claim in again.values():
        assert sum(line.startswith(f"| {claim.claim} |") and f"| {claim.verdict} |" in line for line in lines) == 1


def test_a_table_of_which_nothing_was_kept_has_no_verdict(tmp_path: Path):
    (claim,) = table(Lab(tmp_path, kept=True), TINY, TABLE_1, ("iid",), ("FedYogi",))
    assert (claim.paper, claim.ours, claim.verdict) == (None, None, "not run")


def test_a_claim_that_does_not_hold_is_said():
    up, down = (np.array(some) for some in ([1.0, 1.2, 1.0, 1.2], [-2.0, -2.1, -2.0, -2.1]))
    gains = {("A", "x"): (up, 0.06), ("B", "x"): (down, 0.03)}
    mean, every, noise = judge_gains(gains, {("A", "x"): (50.0, 51.0), ("B", "x"): (50.0, 50.5)})
    assert (mean.paper, mean.ours, mean.holds) == (0.75, -0.47, False)
    assert (every.paper, every.ours, every.holds) == ("2/2", "1/2", False)
    assert (noise.ours, noise.holds) == ("1/2", False)
    assert "worse: B on (x); better: A on (x)" in noise.note
    bases = judge_bases({**gains, ("B", "y"): (up, 0.06)})
    assert [judge_bases({("A", "x"): (up, 0.06)}, n).verdict for n in (0, 1)] == ["holds", "undecided"]
    assert (bases.ours, bases.holds) == ("A +1.10, B -0.47", False)
    # What was not run leaves open whether all gain, and what the mean is; not that some lose.
    assert [claim.verdict for claim in judge_gains(gains, {}, absent=1)] == [
        "undecided",
        "does not hold",
        "does not hold",
    ]
    assert judge_gains({("A", "x"): (up, 0.06)}, {}, absent=1)[1].verdict == "undecided"
    assert [decided(up, 0.06), decided(down, 0.03), decided(up, 0.6), decided(up[:3], 0.06)] == [
        True,
        False,
        None,
        None,
    ]
    # Two seeds do not say what noise is.
    assert judge_gains({("A", "x"): (up[:2], 0.1)}, {})[2].verdict == "not run"


def test_several_populations_are_decided_by_seeds():
    # A population that gains little in every seed decides; one that swings does not, whatever the mean. Error by hand: sqrt((4 * 0.1^2 / 3) / 4).
    even, swings = np.array([1.0, 1.2, 1.0, 1.2]), np.array([9.0, -8.0, 9.0, -8.0, 50.0])
    gains, error = over_populations([even, even])
    np.testing.assert_allclose(gains, even)
    assert error == pytest.approx(0.1 / 3**0.5)
    assert decided(gains, error)
    gains, error = over_populations([even, swings])  # the seeds that both ran
    np.testing.assert_allclose(gains, [5.0, -3.4, 5.0, -3.4])
    assert decided(gains, error) is None
    assert over_populations([even[:1], swings])[1] == 0.0


def test_bases_are_held_against_the_papers_accuracies():
    near, far = (UpcycledCell(UpcycledMethod("A", "base", 0.1), np.array([value]), 0.0) for value in (0.51, 0.47))
    said = judge_level(
        {("A", "x"): PairedCells(near, near), ("A", "y"): PairedCells(far, far)},
        dict.fromkeys([("A", "x"), ("A", "y")], (50.0, 60.0)),
    )
    assert (said.ours, said.holds) == ("1/2", False)
    assert said.note.endswith("Farthest: A on (y) -3.0, A on (x) +1.0")


@pytest.mark.slow
def test_private_trials_spend_what_they_say(tmp_path: Path):
    from atoll.core.event import Ledger
    from atoll.privacy import spent

    for mechanism in ("output", "objective"):
        trial = Trial(mechanism, "iid", 300.0, True, iterations=4, epochs=1, rows=60)
        lab = Lab(tmp_path / mechanism)
        run = lab.train(trial.settings(tuning=False, seed=0))
        assert len(run.rows) == 4
        found = spent(Ledger(next(run.folder.path.rglob("ledger.jsonl"))), 1e-5, "moments")
        assert len(found) == 30
        assert max(found.values()) == pytest.approx(300.0, rel=1e-6)
    (_, compared) = find_entry("upcycled-privacy").run(Lab(tmp_path / "quick"), True)
    assert compared.verdict == "undecided"  # two seeds do not say what noise is
    assert find_entry("upcycled-privacy").run(Lab(tmp_path / "quick", kept=True), True)[1] == compared
    assert find_entry("upcycled-privacy").run(Lab(tmp_path / "nothing", kept=True), True)[1].verdict == "not run"
