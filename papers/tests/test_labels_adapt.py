"""`labels-adapt`: what is judged, from scores; the price of encryption, and the turbines' regression."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from atoll.reproduce import Lab, NotKept, find_entry
from atoll_papers.labels import adapt
from atoll_papers.labels.adapt import VARIANTS, SealedCost, _fitted, _root, domains, exchanging, scores, sealed_costs


def judged(monkeypatch: pytest.MonkeyPatch, right: dict[str, list[float]], seconds: float = 20.0) -> dict[str, str]:
    """Return the verdicts when trainings have these accuracies, by seed; one that is not named has .5, .51, .52."""
    monkeypatch.setattr(adapt, "scores", lambda name, seeds, rounds: right.get(name, [0.5, 0.51, 0.52]))
    monkeypatch.setattr(adapt, "apart", lambda: 1e-7)
    costs = (SealedCost(seconds, 900, 1e-8), SealedCost(1.0, 10, 1e-8))
    monkeypatch.setattr(adapt, "sealed_costs", lambda rows, features: costs)
    return {claim.claim: claim.verdict for claim in find_entry("labels-adapt").run(Lab(Path("nowhere")), True)}


def test_the_surveys_sentences_are_judged_seed_by_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = judged(monkeypatch, {"squared": [0.7, 0.72, 0.73], "CDAN": [0.3, 0.32, 0.33], "FADE": [0.4, 0.6, 0.53]})
    assert found["squaring the adversarial loss helps"] == "holds"
    assert found["conditioning on classes (CDAN) helps"] == "does not hold"
    assert found["FADE gains over the sources alone"] == "undecided"
    assert found["EfficientFDA is 10 to 100 times faster than encrypting every feature"] == "holds"
    exchanged = "FADE, without sharing features, is as good as FADA, which exchanges them"
    assert found[exchanged] == "holds"
    worse = judged(monkeypatch, {"FADA": [0.6, 0.6, 0.6]}, seconds=9.0)
    assert worse[exchanged] == "does not hold"
    assert worse["EfficientFDA is 10 to 100 times faster than encrypting every feature"] == "does not hold"


def test_nothing_runs_if_only_kept_results_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(NotKept, match="labels-adapt"):
        find_entry("labels-adapt").run(Lab(tmp_path, kept=True), False)


def test_fada_has_the_same_rows_as_the_others() -> None:
    parties, one = domains(0)
    made = exchanging(parties)
    rows = np.concatenate([made.shard(0).x, made.shard(1).x, made.others["target"].x])
    np.testing.assert_array_equal(rows, one.pooled().x)
    assert not made.others["target"]["labelled"].any()
    assert made.shard(0)["labelled"].all()


@pytest.mark.quick("FADA")
@pytest.mark.parametrize("name", VARIANTS)
def test_each_variant_trains(name: str) -> None:
    (found,) = scores(name, 1, rounds=2, steps=1)
    assert 0.0 < found < 1.0


def test_both_ways_of_encryption_have_the_same_exact_gap() -> None:
    naive, packed = sealed_costs(2, 3)
    assert naive.error < 1e-6
    assert packed.error < 1e-6
    assert naive.bytes == 6 * packed.bytes, "2 rows of 3 features each on their own, or one sum"


def test_the_regression_finds_a_quadratic_and_alignment_moves_both_moments() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3)) @ rng.normal(size=(3, 3))
    y = 1 + x[:, 0] - 2 * x[:, 1] * x[:, 2]
    assert _fitted(x[:200], y[:200], x[200:], y[200:]) > 0.999
    wanted = np.diag([1.0, 4.0, 9.0])
    moved = (x - x.mean(0)) @ _root(np.cov(x, rowvar=False), -0.5) @ _root(wanted, 0.5)
    np.testing.assert_allclose(np.cov(moved, rowvar=False), wanted, atol=1e-9)
