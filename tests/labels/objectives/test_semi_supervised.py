"""Losses of semi-supervised learning: closed forms, laws, golden numbers and independent references."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atoll.core.errors import ConfigError, DataError
from atoll.labels import objectives as O
from atoll.labels.objectives.consistency import check_threshold
from atoll.labels.objectives.label_noise import check_priors

Tensor = torch.Tensor


def logits_of(seed: int, rows: int = 12, classes: int = 5, scale: float = 3.0) -> Tensor:
    return torch.randn(rows, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


seeds = st.integers(0, 10_000)


# ---------------------------------------------------------------- pseudo-labels


@given(seeds, st.floats(0.21, 1.0), st.floats(0.21, 1.0))
def test_coverage_does_not_increase_with_the_threshold(seed: int, a: float, b: float) -> None:
    logits, low, high = logits_of(seed), min(a, b), max(a, b)
    few, many = (O.pseudo_labels(logits, tau)[1] for tau in (high, low))
    assert bool((many | ~few).all())


@given(seeds, st.floats(0.3, 0.99))
def test_a_pseudo_label_is_a_label_where_the_teacher_is_sure(seed: int, tau: float) -> None:
    student, teacher = logits_of(seed), logits_of(seed + 1)
    loss = O.pseudo_label(student, teacher, tau)
    for row, p in enumerate(torch.softmax(teacher, 1)):
        expected = -math.log(float(torch.softmax(student[row], 0)[int(p.argmax())])) if float(p.max()) > tau else 0.0
        assert float(loss[row]) == pytest.approx(expected, abs=1e-9)


def test_nothing_is_above_one() -> None:
    sure = torch.tensor([[200.0, 0.0], [0.0, 1.0]])
    assert not O.pseudo_labels(sure, 1.0)[1].any()
    assert O.fixmatch(sure, sure, 1.0).tolist() == [0.0, 0.0]


def test_the_teacher_gets_no_gradient() -> None:
    both = logits_of(3).requires_grad_()
    weak, strong = both, both * 0.5
    for loss in (
        O.fixmatch(strong.detach(), weak, 0.3),
        O.mean_teacher(strong.detach(), weak),
        O.mean_teacher(strong.detach(), weak, "kl"),
    ):
        assert not loss.requires_grad


@pytest.mark.parametrize(
    ("tau", "said"), [(0.2, "every row is kept"), (0.0, "every row"), (1.01, "above 1"), (math.nan, "every row")]
)
def test_thresholds_that_select_nothing_are_refused(tau: float, said: str) -> None:
    with pytest.raises(ConfigError, match=rf"tau={tau} with 5 classes.*{said}.*in here.*above 1/5 = 0.2"):
        check_threshold(tau, 5, "here")
    with pytest.raises(ConfigError, match="with 5 classes"):
        O.fixmatch(logits_of(0), logits_of(0), tau)


# ---------------------------------------------------------------- teachers


def test_distances_to_a_teacher() -> None:
    student, teacher = torch.log(torch.tensor([[0.7, 0.2, 0.1]])), torch.log(torch.tensor([[0.5, 0.25, 0.25]]))
    assert float(O.mean_teacher(student, teacher)) == pytest.approx((0.2**2 + 0.05**2 + 0.15**2) / 3, abs=1e-6)
    kl = 0.5 * math.log(0.5 / 0.7) + 0.25 * math.log(0.25 / 0.2) + 0.25 * math.log(0.25 / 0.1)
    assert float(O.mean_teacher(student, teacher, "kl")) == pytest.approx(kl, abs=1e-6)
    with pytest.raises(ConfigError, match=r"distance='l1' .*use 'mse' or 'kl'"):
        O.mean_teacher(student, teacher, "l1")


@given(seeds, st.floats(0.0, 1.0))
def test_a_moving_average_stays_between_the_two(seed: int, share: float) -> None:
    teacher, student = (
        {"w": logits_of(seed), "b": logits_of(seed + 1)[0]},
        {"w": logits_of(seed + 2), "b": logits_of(seed + 3)[0]},
    )
    made = O.moving_average(teacher, student, share)
    for name, leaf in made.items():
        low, high = torch.minimum(teacher[name], student[name]), torch.maximum(teacher[name], student[name])
        assert leaf.shape == low.shape
        assert bool(((leaf >= low - 1e-9) & (leaf <= high + 1e-9)).all())
    assert O.moving_average(teacher, student, 0) is teacher
    assert O.moving_average(teacher, student, 1) is student


def test_a_share_is_a_share() -> None:
    with pytest.raises(ConfigError, match=r"share=1\.5 .*number in \[0, 1\]"):
        O.moving_average({}, {}, 1.5)


# ---------------------------------------------------------------- VAT


def test_the_worst_change_of_a_softmax_is_its_hessians_first_eigenvector() -> None:
    """KL(p || p of (x + r)) = r' W' (diag p - p p') W r / 2 + o(r^2) for logits W x."""
    generator = torch.Generator().manual_seed(4)
    W = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    rows = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    noise = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    found = O.worst_change(lambda x: x @ W.T, rows, noise, radius=0.01, probe=1e-3, steps=20)
    for row, change in zip(rows, found, strict=True):
        p = torch.softmax(W @ row, 0)
        values, vectors = torch.linalg.eigh(W.T @ (torch.diag(p) - torch.outer(p, p)) @ W)
        assert abs(float(vectors[:, -1] @ change)) == pytest.approx(0.01, rel=1e-3)
        divergence = O.vat(lambda x: x @ W.T, row[None], change[None], radius=0.01, probe=1e-3, steps=20)
        assert float(divergence) == pytest.approx(float(values[-1]) * 0.01**2 / 2, rel=0.02)


def test_no_radius_no_loss_and_bad_settings() -> None:
    rows, noise = torch.ones(2, 3), torch.zeros(2, 3)
    assert O.vat(lambda x: x, rows, noise, radius=0).tolist() == [0.0, 0.0]
    assert O.worst_change(lambda x: 0 * x, rows, noise, radius=1.0).tolist() == [[0.0] * 3] * 2
    for settings in ({"radius": -1.0}, {"radius": 1.0, "probe": 0.0}, {"radius": 1.0, "steps": 0}):
        with pytest.raises(ConfigError, match=r"in vat.*positive probe"):
            O.vat(lambda x: x, rows, noise, **settings)  # type: ignore[arg-type]


# ---------------------------------------------------------------- MixMatch


def distributions(seed: int, rows: int = 6) -> Tensor:
    return torch.softmax(logits_of(seed, rows), 1)


def entropy(p: Tensor) -> Tensor:
    return -(p * torch.log(p)).sum(1)


@given(seeds, st.floats(0.05, 1.0))
def test_sharpening_is_the_power_and_lowers_entropy(seed: int, temperature: float) -> None:
    p = distributions(seed)
    sharp = O.sharpen(p, temperature)
    if temperature > 0.3:  # the formula itself underflows below
        powers = p ** (1 / temperature)
        assert torch.allclose(sharp, powers / powers.sum(1, keepdim=True), atol=1e-9)
    assert torch.allclose(sharp.sum(1), torch.ones(6, dtype=torch.float64))
    clipped = sharp.clamp(min=1e-300)
    assert bool((entropy(clipped) <= entropy(p) + 1e-9).all())
    assert torch.allclose(O.sharpen(p, 1.0), p)


def test_a_guess_is_the_sharpened_mean_of_views() -> None:
    views = [logits_of(1), logits_of(2)]
    assert torch.allclose(
        O.guess(views, 0.5), O.sharpen((torch.softmax(views[0], 1) + torch.softmax(views[1], 1)) / 2, 0.5)
    )


@given(seeds, st.floats(0.0, 1.0))
def test_mixtures_stay_closer_to_the_first(seed: int, share: float) -> None:
    a, b = logits_of(seed, 3).reshape(3, 5, 1), logits_of(seed + 1, 3).reshape(3, 5, 1)
    mixed = O.mixup(a, b, torch.full((3,), share, dtype=torch.float64))
    assert torch.allclose(mixed, O.mixup(a, b, torch.full((3,), 1 - share, dtype=torch.float64)))
    assert bool(((mixed - a).abs() <= (mixed - b).abs() + 1e-9).all())


def test_losses_of_mixtures() -> None:
    logits, target = torch.log(torch.tensor([[0.7, 0.2, 0.1]])), torch.tensor([[0.5, 0.5, 0.0]])
    assert float(O.mixmatch_labelled(logits, target)) == pytest.approx(
        -0.5 * math.log(0.7) - 0.5 * math.log(0.2), abs=1e-6
    )
    assert float(O.mixmatch_unlabelled(logits, target)) == pytest.approx((0.2**2 + 0.3**2 + 0.1**2) / 3, abs=1e-6)
    with pytest.raises(ConfigError, match=r"temperature=0 .*in sharpen"):
        O.sharpen(target, 0)


# ---------------------------------------------------------------- predictions that travel


def test_era_of_the_issue() -> None:
    """The golden row: softmax((5, 3, 2)) = (.84379, .11420, .04201)."""
    golden = O.era(torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64), 0.1)[0].tolist()
    assert golden == pytest.approx([0.8438, 0.1142, 0.0420], abs=5e-5)
    assert golden == pytest.approx((np.exp([5, 3, 2]) / np.exp([5, 3, 2]).sum()).tolist(), abs=1e-12)


@given(seeds, st.floats(0.3, 3.0))
def test_era_lowers_the_entropy_where_one_class_leads(seed: int, scale: float) -> None:
    p = torch.softmax(logits_of(seed, 30, scale=scale), 1)
    first, second = p.sort(1, descending=True).values[:, :2].T
    leads = (first - second >= 0.1) & (first <= 0.99)
    assert bool((entropy(O.era(p, 0.1)) < entropy(p))[leads].all())


def test_era_at_other_temperatures_and_between_equals() -> None:
    p = distributions(0)
    assert torch.allclose(O.era(p, 1.0), torch.softmax(p, 1))
    assert torch.allclose(O.era(p, 1e9), torch.full_like(p, 0.2))
    tied = torch.tensor([[0.5, 0.5, 0.0, 0.0, 0.0]], dtype=torch.float64)
    assert float(entropy(O.era(tied, 0.1))) > math.log(2), "a softmax gives no class 0"


def test_before_and_after_the_mean() -> None:
    agreed = torch.tensor([[[0.9, 0.1]], [[0.4, 0.6]]], dtype=torch.float64)
    before, after = (O.mean_prediction(agreed, 0.1, order)[0, 0] for order in ("before", "after"))
    assert float(after) == pytest.approx(1 / (1 + math.exp(-3.0)))
    assert float(before) == pytest.approx((1 / (1 + math.exp(-8.0)) + 1 / (1 + math.exp(2.0))) / 2)
    assert torch.allclose(O.mean_prediction(agreed, 0.1, "never"), torch.tensor([[0.65, 0.35]], dtype=torch.float64))
    one = agreed[:1]
    assert torch.equal(O.mean_prediction(one, 0.1, "before"), O.mean_prediction(one, 0.1, "after"))
    with pytest.raises(ConfigError, match=r"order='middle' .*'before', 'after' or 'never'"):
        O.mean_prediction(agreed, 0.1, "middle")


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ([[0.5, 0.5]], r"have shape \(1, 2\), not \(2, 2\)"),
        ([[0.5, 0.5], [1.5, -0.5]], "row 1 of the predictions has 1.5: not a probability"),
        ([[0.5, math.nan], [0.5, 0.5]], "row 0 of the predictions has nan"),
        ([[0.5, 0.5], [0.9, 0.9]], "row 1 of the predictions adds up to 1.8, not to 1"),
    ],
)
def test_predictions_off_the_simplex_name_the_party(sent: Any, said: str) -> None:
    with pytest.raises(DataError, match=rf"{said}.*\(in clinic-3\).*softmax"):
        O.check_predictions(torch.tensor(sent), "clinic-3", (2, 2))
    O.check_predictions(torch.tensor([[0.25, 0.75], [0.0, 1.0]]), "clinic-3", (2, 2))


# ---------------------------------------------------------------- positive and unlabelled rows

PRIORS = torch.tensor([0.1, 0.4, 0.3, 0.2], dtype=torch.float64)
POSITIVE = torch.tensor([True, False, True, False])
MODEL = logits_of(7, 2, 4, 1.0)  # from two features to four classes
CENTRES = logits_of(8, 4, 2, 1.0)


def mixture(rng: np.random.Generator, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of four normal clouds; one in three rows of classes 0 and 2 is labelled, no other row is."""
    y = torch.from_numpy(rng.choice(4, rows, p=PRIORS.numpy()))
    x = CENTRES[y] + torch.from_numpy(rng.normal(size=(rows, 2)))
    labelled = POSITIVE[y] & torch.from_numpy(rng.random(rows) < 1 / 3)
    return x @ MODEL, torch.where(labelled, y, -1), labelled


def full_risk() -> float:
    """The risk with every label known, from 100,000 rows of each class."""
    rng, total = np.random.default_rng(0), 0.0
    for c in range(4):
        p = torch.softmax((CENTRES[c] + torch.from_numpy(rng.normal(size=(100_000, 2)))) @ MODEL, 1)
        likelihood = p[:, c] if POSITIVE[c] else p[:, ~POSITIVE].sum(1)
        total += float(PRIORS[c]) * float(-likelihood.log().mean())
    return total


def test_the_risk_is_unbiased_and_cross_entropy_alone_is_not() -> None:
    rng, truth = np.random.default_rng(1), full_risk()
    shares = torch.where(POSITIVE, PRIORS / 3, 0.0)
    estimates, naive = [], []
    for _ in range(800):
        logits, y, labelled = mixture(rng, 256)
        estimates.append(float(O.positive_unlabelled(logits, y, labelled, PRIORS, POSITIVE, shares).mean()))
        ones = torch.ones(4, dtype=torch.bool)
        naive.append(float(O.positive_unlabelled(logits, y, labelled, shares * 3, ones, shares).mean()))
    error = np.std(estimates) / math.sqrt(len(estimates))
    assert abs(np.mean(estimates) - truth) < 3 * error + 0.004  # and the truth is a sample as well
    assert abs(np.mean(naive) - truth) > 20 * error
    assert error < 0.02 * truth


def test_shares_of_the_batch_converge_to_the_same_risk() -> None:
    logits, y, labelled = mixture(np.random.default_rng(2), 60_000)
    assert float(O.positive_unlabelled(logits, y, labelled, PRIORS, POSITIVE).mean()) == pytest.approx(
        full_risk(), rel=0.02
    )


def test_with_every_label_it_is_cross_entropy_to_the_bit() -> None:
    logits = logits_of(9).float()
    y = torch.arange(12) % 5
    shares = torch.tensor([3, 3, 2, 2, 2]) / 12
    made = O.positive_unlabelled(
        logits, y, torch.ones(12, dtype=torch.bool), shares, torch.ones(5, dtype=torch.bool), shares
    )
    logs = torch.log_softmax(logits, 1)
    assert torch.equal(made, -logs[torch.arange(12), y])


def test_gradients_are_finite_and_padding_changes_nothing() -> None:
    logits, y, labelled = mixture(np.random.default_rng(3), 16)
    for positive in (POSITIVE, torch.ones(4, dtype=torch.bool), torch.zeros(4, dtype=torch.bool)):
        for nonnegative in (False, True):
            own = logits.clone().requires_grad_()
            made = O.positive_unlabelled(own, y, labelled, PRIORS, positive, nonnegative=nonnegative)
            made.mean().backward()  # type: ignore[no-untyped-call]
            assert own.grad is not None
            assert bool(own.grad.isfinite().all())
            real = torch.cat([torch.ones(16), torch.zeros(4)])
            wide = torch.cat([logits, logits[:4] * 100])
            padded = O.positive_unlabelled(
                wide,
                torch.cat([y, y[:4]]),
                torch.cat([labelled, labelled[:4]]),
                PRIORS,
                positive,
                real=real,
                nonnegative=nonnegative,
            )
            assert torch.allclose(padded[:16], made)


def test_a_negative_estimate_of_a_loss_is_replaced_by_nothing() -> None:
    """Labelled rows of class 0 look like other classes and the other rows like class 0: E[l_N] - pi_0 E_0[l_N] is below 0."""
    other, own = torch.tensor([0.0, 4.0]), torch.tensor([4.0, 0.0])
    logits = torch.stack([other, other, own, own]).flip(1)
    y, labelled = torch.tensor([0, 0, -1, -1]), torch.tensor([True, True, False, False])
    priors, positive = torch.tensor([0.9, 0.1]), torch.tensor([True, False])
    plain = O.positive_unlabelled(logits, y, labelled, priors, positive)
    held = O.positive_unlabelled(logits, y, labelled, priors, positive, nonnegative=True)
    log = math.log1p(math.exp(-4.0))  # -log of the sure class, which is 4 less than that of the other
    assert float(plain.mean()) == pytest.approx(0.9 * log + (4 + log + log) / 2 - 0.9 * (4 + log), abs=1e-6)
    assert float(held.mean()) == pytest.approx(0.9 * log, abs=1e-6)


def test_priors_are_a_distribution() -> None:
    with pytest.raises(ConfigError, match=r"class priors \[0.5, 0.2\] add up to 0.7 \(in clinic"):
        check_priors(torch.tensor([0.5, 0.2]), "clinic")
    with pytest.raises(ConfigError, match="class priors"):
        check_priors(torch.tensor([1.2, -0.2]))
    check_priors(PRIORS)
