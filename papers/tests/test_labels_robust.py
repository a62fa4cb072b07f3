"""`labels-robust`: the attack against its definition, what is judged, and poisoned clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import atoll
from atoll.core.errors import AtollError
from atoll.data import Dataset, Islands
from atoll.labels import RobustSelfTraining
from atoll.labels.evaluators import accuracy_under_attack
from atoll.labels.methods.robust_self_training import RobustLoss
from atoll.labels.objectives import attacked_rows
from atoll.reproduce import Interrupted, Lab, find_entry
from atoll.runs import Stopping
from atoll_papers.labels import robust
from atoll_papers.labels.robust import POISONS, RobustTrial, robust_scores
from atoll_papers.labels.semi import TrialSize

SCALE = TrialSize(rows=40, parties=10, cohort=2, rounds=1, seeds=1, warm_up=0)
WEIGHT = torch.tensor([[1.0, -2.0, 0.0], [-1.0, 2.0, 0.0]])


def linear(x: torch.Tensor, params: Any = None, *, training: bool = True) -> torch.Tensor:
    return x @ WEIGHT.T


def test_the_attack_takes_the_step_that_raises_a_linear_loss_most() -> None:
    """For a linear model of two classes the gradient's sign is that of the difference of the rows of weights."""
    x, y = torch.full((2, 3), 0.5), torch.tensor([0, 1])
    made = attacked_rows(linear, x, y, torch.zeros(2, 3), 0.1, 0.1)
    assert torch.allclose(made[0], torch.tensor([0.4, 0.6, 0.5]))
    assert torch.allclose(made[1], torch.tensor([0.6, 0.4, 0.5]))
    edge = attacked_rows(linear, torch.tensor([[0.05, 0.95, 0.5]]), y[:1], torch.full((1, 3), 0.1), 0.1, 1.0)
    assert torch.allclose(edge, torch.tensor([[0.0, 1.0, 0.6]])), "within the radius and within 0 and 1"


def loss(radius: float, weight: float, target: list[int], labelled: list[bool]) -> float:
    rows = torch.tensor([[0.9, 0.1, 0.5], [0.2, 0.8, 0.5], [0.5, 0.4, 0.5]])
    made = RobustLoss(None, radius, 0.6, weight)(
        model=linear, x=rows, target=torch.tensor(target), labelled=torch.tensor(labelled), keys=torch.arange(3), real=torch.ones(3), broadcast={"params": {}}
    )  # fmt: skip
    return float(made)


def test_without_radius_and_weight_it_is_cross_entropy_of_labelled_rows() -> None:
    rows = torch.tensor([[0.9, 0.1, 0.5], [0.2, 0.8, 0.5]])
    plain = nn.functional.cross_entropy(linear(rows), torch.tensor([0, 0]))
    assert loss(0.0, 0.0, [0, 0, 1], [True, True, False]) == pytest.approx(float(plain), rel=1e-6)
    assert loss(0.1, 0.0, [0, 0, 1], [True, True, False]) > float(plain)
    hidden = [loss(0.1, 1.0, [0, 0, y], [True, True, False]) for y in (0, 1)]
    assert hidden[0] == hidden[1], "hidden labels are out of reach"


def test_accuracy_under_attack_falls_with_the_radius() -> None:
    model = nn.Linear(3, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(WEIGHT)
    x = torch.tensor([[0.9, 0.1, 0.5], [0.45, 0.2, 0.5]])
    y = torch.tensor([0, 0])
    assert accuracy_under_attack(model, x, y, 0.0) == (1.0, 1.0)
    assert accuracy_under_attack(model, x, y, 0.1) == (1.0, 0.5)


@pytest.fixture
def squares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bright bars in place of MNIST."""

    def rows(scale: TrialSize, seed: int) -> Islands:
        draw = np.random.default_rng(seed)
        y = draw.integers(0, 10, scale.rows)
        x = 0.2 * draw.random((scale.rows, 1, 28, 28))
        x[np.arange(scale.rows), 0, 2 * y] += 0.7
        data = Dataset({"x": x.astype(np.float32), "y": y}, classes=10)
        return atoll.data.iid(data, parties=scale.parties, seed=seed).with_test(data)

    monkeypatch.setattr(robust, "digits", rows)


def test_poisoned_clients_are_three_of_ten(squares: None) -> None:
    clean, flipped, noise = (RobustTrial("labels", poison, labels=30).islands(SCALE, 0) for poison in POISONS)
    moved = [not np.array_equal(a["y"], b["y"]) for a, b in zip(clean, flipped, strict=True)]
    spoilt = [not np.array_equal(a["x"], b["x"]) for a, b in zip(clean, noise, strict=True)]
    assert (sum(moved), sum(spoilt)) == (3, 3)
    for one, other in zip(clean, flipped, strict=True):
        assert np.array_equal(one["labelled"], other["labelled"])


@pytest.mark.quick("attacked guesses")
@pytest.mark.parametrize(
    "method", ["labels", "guesses", "attacked labels", "attacked guesses", "FixMatch", "SemiFL", "RSCFed"]
)
def test_each_training_runs_and_is_kept(squares: None, tmp_path: Path, method: str) -> None:
    trial = RobustTrial(method, "clean", labels=20)
    (made,) = robust_scores(Lab(tmp_path), trial, SCALE) or []
    assert 0.0 <= made["attacked"] <= 1.0
    assert robust_scores(Lab(tmp_path, kept=True), trial, SCALE) == [made]
    stopping = Stopping()
    stopping.ask()
    with pytest.raises(Interrupted, match="labels-flipped-20-40-1-0"):
        robust_scores(Lab(tmp_path, stopping), RobustTrial("labels", "flipped", labels=20), SCALE)


def judged(monkeypatch: pytest.MonkeyPatch, scores: dict[tuple[str, str], list[float]]) -> dict[str, Any]:
    def found(lab: Lab, trial: RobustTrial, scale: TrialSize) -> list[dict[str, float]]:
        return [{"plain": value, "attacked": value} for value in scores.get((trial.method, trial.poison), [0.5, 0.5])]

    monkeypatch.setattr(robust, "robust_scores", found)
    return {claim.claim: claim for claim in find_entry("labels-robust").run(Lab(Path("nowhere")), False)}


def test_the_survey_sentence_needs_three_points(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "pseudo-labels of unlabelled rows boost robustness by 3-5 % over adversarial training on labels alone"
    for gains, verdict in {
        (0.04, 0.05): "holds",
        (0.01, 0.02): "does not hold",
        (0.06, -0.01): "undecided",
        (0.01, 0.04): "undecided",
    }.items():
        found = judged(monkeypatch, {("attacked guesses", "clean"): [0.5 + gain for gain in gains]})
        assert found[name].verdict == verdict, gains
    flipped = "RSCFed loses less than FixMatch where clients have the next class on each of their labels"
    found = judged(monkeypatch, {("RSCFed", "flipped"): [0.45, 0.45], ("FixMatch", "flipped"): [0.3, 0.3]})
    assert found[flipped].verdict == "holds"
    assert judged(monkeypatch, {})[flipped].verdict == "undecided"


def test_nothing_is_judged_that_is_not_kept(tmp_path: Path) -> None:
    claims = find_entry("labels-robust").run(Lab(tmp_path, kept=True), False)
    assert {claim.verdict for claim in claims} == {"not run"}
    assert len(claims) == 12


@pytest.mark.slow
def test_blocks_of_clients_are_attacked_as_single_ones(squares: None) -> None:
    """A quicker sibling of another method: tests/labels/test_fedsr.py."""
    data = RobustTrial("labels", labels=20).islands(SCALE, 0)
    method = RobustSelfTraining(tau=0.2, lr=0.05, steps=1, batch_size=4)
    job = atoll.Training(model=robust.network, algorithm=method, selection=atoll.Uniform(2), rounds=1, compile="never")
    one, many = (
        atoll.simulate(job, data.with_test(None), engine=engine, seed=0, progress=False).params
        for engine in ("inline", "batched")
    )
    assert all(np.allclose(one[name], many[name], atol=1e-4) for name in one)


def test_settings_that_make_no_sense_are_refused() -> None:
    for settings, said in {
        ("radius", 1.0): "radius=1.0",
        ("tau", 0.0): "tau=0.0",
        ("weight", -1.0): "weight=-1.0",
    }.items():
        with pytest.raises(AtollError, match=said):
            RobustSelfTraining(**dict([settings]))
