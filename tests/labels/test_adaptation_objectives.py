"""Losses between domains: against plain loops, libraries and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from atoll.core.errors import ConfigError, DataError
from atoll.labels.objectives import (
    Mixture,
    certainty,
    classifier_discrepancy,
    cluster,
    conditioned,
    coral,
    dispersion,
    domain_loss,
    fit_mixture,
    gain_weights,
    gaussian_mmd,
    linear_mmd,
    projections,
    reverse_gradient,
    sliced_quantiles,
    transfer_bound,
    wasserstein,
)

SEEDS = st.integers(0, 2**32 - 1)


def drawn(seed, *shape, shift=0.0):
    return np.random.default_rng(seed).normal(size=shape) + shift


def tensors(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [torch.tensor(rng.normal(size=shape) * 2.0) for shape in shapes]


# ---------------------------------------------------------------------- adversarial


class _Reversed(torch.autograd.Function):
    """The textbook's gradient reversal layer."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx, slope):
        return -ctx.scale * slope, None


@given(SEEDS, st.floats(0.0, 4.0))
def test_a_reversed_gradient_is_the_textbooks_layer(seed, scale):
    x, w = tensors(seed, (5, 3), (3,))
    one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    made = reverse_gradient(one, scale)
    assert torch.equal(made, x)
    (made.tanh() @ w).sum().backward()
    (_Reversed.apply(other, scale).tanh() @ w).sum().backward()
    torch.testing.assert_close(one.grad, other.grad)


def test_a_reversed_gradient_runs_in_blocks_of_clients():
    x, w = tensors(0, (4, 5, 3), (4, 3))

    def slope(row, weight):
        return torch.func.grad(lambda z: (reverse_gradient(z, 0.5).tanh() @ weight).sum())(row)

    many = torch.vmap(slope)(x, w)
    torch.testing.assert_close(many, torch.stack([slope(*one) for one in zip(x, w, strict=True)]))
    torch.testing.assert_close(many[0], -0.5 * torch.func.grad(lambda z: (z.tanh() @ w[0]).sum())(x[0]))


def test_one_backward_pass_trains_both_sides_of_the_game():
    """The discriminator descends its loss, the features ascend it: the two gradients of separate passes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        f, d = nn.Linear(4, 3).double(), nn.Linear(3, 1).double()
        x, source = torch.randn(8, 4).double(), torch.tensor([1.0, 0.0] * 4).double()
    domain_loss(d(reverse_gradient(f(x).tanh(), 0.3)), source).mean().backward()
    plain = F.binary_cross_entropy_with_logits(d(f(x).tanh()).squeeze(1), source)
    for_f, for_d = torch.autograd.grad(plain, [f.weight, d.weight])
    torch.testing.assert_close(f.weight.grad, -0.3 * for_f)
    torch.testing.assert_close(d.weight.grad, for_d)


@given(SEEDS)
def test_domain_losses_are_powers_of_the_cross_entropy(seed):
    (scores,) = tensors(seed, (6,))
    source = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 0.0])
    plain = F.binary_cross_entropy_with_logits(scores, source.double(), reduction="none")
    torch.testing.assert_close(domain_loss(scores.unsqueeze(1), source), plain)
    torch.testing.assert_close(domain_loss(scores, source, power=2), plain**2 / 2)
    held = scores.clone().requires_grad_()
    domain_loss(held, source, power=2).sum().backward()
    torch.testing.assert_close(held.grad, plain * (scores.sigmoid() - source))


def test_the_squared_loss_in_numbers():
    """An undecided discriminator: L = ln 2, and L^2/2 = .2402265."""
    assert domain_loss(torch.zeros(1), torch.ones(1)).item() == pytest.approx(math.log(2))
    assert domain_loss(torch.zeros(1), torch.ones(1), power=2).item() == pytest.approx(0.2402265, abs=1e-7)


@given(SEEDS)
def test_a_conditional_discriminator_sees_every_class_times_every_feature(seed):
    features, logits = tensors(seed, (4, 3), (4, 2))
    logits.requires_grad_()
    made = conditioned(features.requires_grad_(), logits)
    p, z = logits.detach().softmax(1).numpy(), features.detach().numpy()
    by_hand = [[p[b, c] * z[b, d] for c in range(2) for d in range(3)] for b in range(4)]
    np.testing.assert_allclose(made.detach(), by_hand)
    made.sum().backward()
    assert logits.grad is None  # probabilities pass no gradient on
    torch.testing.assert_close(features.grad, torch.ones(4, 3).double())  # they add up to 1


def test_sure_predictions_weigh_twice_and_even_ones_little_more_than_once():
    logits = torch.tensor([[0.0, 0.0, 0.0], [60.0, 0.0, 0.0]])
    np.testing.assert_allclose(certainty(logits), [1 + 1 / 3, 2.0], rtol=1e-6)  # exp(-ln 3) and exp(0)


# ---------------------------------------------------------------------- discrepancy


@given(SEEDS)
def test_the_discrepancy_is_the_mean_difference_of_probabilities(seed):
    first, second = tensors(seed, (5, 4), (5, 4))
    p, q = first.softmax(1).numpy(), second.softmax(1).numpy()
    by_hand = [np.abs(a - b).sum() / 4 for a, b in zip(p, q, strict=True)]
    made = classifier_discrepancy(first, second)
    np.testing.assert_allclose(made, by_hand)
    assert ((made >= 0) & (made <= 2 / 4)).all()
    assert (
        not classifier_discrepancy(first, first + 3.0).abs().max() > 1e-12
    )  # logits shifted alike: the same classifier


# ---------------------------------------------------------------------- moments


@given(SEEDS)
@settings(max_examples=20)
def test_moments_are_those_of_numpy(seed):
    s, t = drawn(seed, 6, 3), drawn(seed + 1, 4, 3, shift=0.5)
    one, other = torch.tensor(s), torch.tensor(t)
    assert linear_mmd(one, other).item() == pytest.approx(((s.mean(0) - t.mean(0)) ** 2).sum())
    gap = np.cov(s, rowvar=False) - np.cov(t, rowvar=False)
    assert coral(one, other).item() == pytest.approx((gap**2).sum() / (4 * 9))

    def kernel(x, y):
        return sum(math.exp(-((x - y) ** 2).sum() / (2 * b * b)) for b in (0.5, 2.0))

    def mean(a, b):
        return np.mean([[kernel(x, y) for y in b] for x in a])

    assert gaussian_mmd(one, other, (0.5, 2.0)).item() == pytest.approx(mean(s, s) + mean(t, t) - 2 * mean(s, t))


def test_moments_are_zero_for_equal_batches_and_see_what_they_say():
    x = torch.tensor(drawn(0, 40, 3))
    for distance in (linear_mmd, gaussian_mmd, coral):
        assert distance(x, x).item() == pytest.approx(0.0, abs=1e-12)
    assert linear_mmd(x, x + torch.tensor([3.0, 0.0, 0.0])).item() == pytest.approx(9.0)
    assert coral(x, x + 3.0).item() == pytest.approx(0.0, abs=1e-12)  # a shift moves no covariance
    wider = (x - x.mean(0)) * 3.0 + x.mean(0)
    assert linear_mmd(x, wider).item() == pytest.approx(0.0, abs=1e-12)  # a spread moves no mean
    assert gaussian_mmd(x, wider).item() > 0.05
    assert coral(x, wider).item() > 1.0


# ---------------------------------------------------------------------- Wasserstein


@given(SEEDS)
@settings(max_examples=20)
def test_along_one_direction_it_is_the_exact_distance(seed):
    from scipy.stats import wasserstein_distance

    a, b = drawn(seed, 12), drawn(seed + 1, 12, shift=1.0) * 2.0
    one, other = (sliced_quantiles(x[:, None], np.ones((1, 1)), 12) for x in (a, b))
    assert wasserstein(one, other, 1) == pytest.approx(wasserstein_distance(a, b))


def test_many_directions_estimate_the_distance_of_the_optimal_assignment():
    """It is exact for a shift, and between 0 and the truth otherwise, up to the noise of the directions."""
    from scipy.optimize import linear_sum_assignment

    directions = projections(3, 4000, np.random.default_rng(0))
    np.testing.assert_allclose(np.linalg.norm(directions, axis=0), 1.0)
    a, shift = drawn(1, 30, 3), np.array([1.0, -2.0, 2.0])

    def estimate(x, y):
        return wasserstein(*(sliced_quantiles(z, directions, 30) for z in (x, y)), 3)

    assert estimate(a, a + shift) == pytest.approx(3.0, rel=0.03)  # its length
    b = drawn(2, 30, 3) * [0.2, 1.0, 3.0]
    costs = np.linalg.norm(a[:, None] - b[None], axis=2)
    truth = costs[linear_sum_assignment(costs)].mean()
    assert 0.5 * truth < estimate(a, b) < 1.03 * truth


@given(SEEDS, st.integers(1, 9))
@settings(max_examples=20)
def test_a_quantile_stands_for_an_equal_share_of_the_rows(seed, levels):
    x = drawn(seed, 11, 2)
    made = sliced_quantiles(x, np.eye(2), levels)
    np.testing.assert_allclose(made.mean(axis=0), x.mean(axis=0))
    assert (np.diff(made, axis=0) >= -1e-12).all()
    expected = np.repeat(np.sort(x, axis=0), levels, axis=0).reshape(levels, 11, 2).mean(axis=1)
    np.testing.assert_allclose(made, expected)


def test_no_quantile_of_few_rows_is_told():
    with pytest.raises(DataError, match="9 rows for 2 levels of at least 5 rows"):
        sliced_quantiles(drawn(0, 9, 2), np.eye(2), 2, least=5)


def test_the_bound_of_a_transfer():
    assert transfer_bound(0.25, 0.5, lipschitz=2.0, scale=3.0) == pytest.approx(3 * (0.25 + 2 * 2 * 0.5))
    with pytest.raises(ConfigError, match=r"distance=-1\.0"):
        transfer_bound(0.1, -1.0)


# ---------------------------------------------------------------------- gap statistic


@given(SEEDS)
@settings(max_examples=20)
def test_squared_the_dispersion_is_the_scatter_around_the_centre(seed):
    x, owner = drawn(seed, 9, 2), np.array([0, 0, 0, 1, 1, 1, 1, 2, 2])
    pairs = sum(
        sum(np.linalg.norm(x[i] - x[j]) ** 2 for i in range(9) for j in range(9) if owner[i] == owner[j] == r)
        / (2 * (owner == r).sum())
        for r in range(3)
    )
    scatter = sum(((x[owner == r] - x[owner == r].mean(axis=0)) ** 2).sum() for r in range(3))
    assert dispersion(x, owner, squared=True) == pytest.approx(scatter) == pytest.approx(pairs)


def test_the_dispersion_as_printed_adds_distances():
    """Two rows 5 apart: 1/(2 * 2) (5 + 5) = 2.5; squared 12.5. A row alone adds nothing."""
    x = np.array([[0.0, 0.0], [3.0, 4.0], [9.0, 9.0]])
    assert dispersion(x, [0, 0, 1]) == pytest.approx(2.5)
    assert dispersion(x, [0, 0, 1], squared=True) == pytest.approx(12.5)


def test_clusters_are_found_and_tighter_features_disperse_less():
    centres = np.repeat(np.eye(3) * 10, 20, axis=0)
    found = cluster(centres + drawn(0, 60, 3) * 0.1, 3, np.random.default_rng(0))
    assert all(len(set(found[at : at + 20])) == 1 for at in (0, 20, 40))
    assert len(set(found)) == 3
    tight, loose = (dispersion(centres + drawn(0, 60, 3) * spread, found) for spread in (0.1, 1.0))
    assert tight < loose


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=6), st.floats(-5, 5))
def test_gains_are_weights(gains, level):
    weights = gain_weights(np.array(gains) + level, np.full(len(gains), level))
    assert weights.sum() == pytest.approx(1.0)
    assert (weights > 0).all()
    np.testing.assert_allclose(weights, np.exp(gains) / np.exp(gains).sum(), rtol=1e-9)
    np.testing.assert_allclose(gain_weights(np.full(3, level), np.zeros(3)), 1 / 3)  # equal gains


# ---------------------------------------------------------------------- mixtures


def clouds(seed, centres, rows=60):
    return np.concatenate([drawn(seed + i, rows, len(c)) * 0.7 + np.array(c) for i, c in enumerate(centres)])


def test_the_mixture_is_that_of_scikit_learn():
    from sklearn.mixture import GaussianMixture

    x = clouds(0, [(0, 0), (4, 1), (-3, 3)])
    ours = fit_mixture(x, 3, np.random.default_rng(1), iterations=200)
    theirs = GaussianMixture(3, covariance_type="diag", random_state=0, tol=1e-3, max_iter=200).fit(x)
    order, their_order = np.argsort(ours.means[:, 0]), np.argsort(theirs.means_[:, 0])
    np.testing.assert_allclose(ours.shares[order], theirs.weights_[their_order], atol=0.02)
    np.testing.assert_allclose(ours.means[order], theirs.means_[their_order], atol=0.05)
    np.testing.assert_allclose(ours.variances[order], theirs.covariances_[their_order], atol=0.05)
    same = GaussianMixture(3, covariance_type="diag")
    same.weights_, same.means_, same.covariances_ = ours.shares, ours.means, ours.variances
    same.precisions_cholesky_ = 1 / np.sqrt(ours.variances)
    np.testing.assert_allclose(ours.log_density(x), same.score_samples(x), rtol=1e-9)


def test_rows_like_a_partys_own_weigh_more_than_far_ones():
    own, far = clouds(0, [(0, 0), (4, 1)]), clouds(9, [(20, 20)])
    mixture = fit_mixture(own, 2, np.random.default_rng(0))
    weights = mixture.weights(np.concatenate([clouds(5, [(0, 0), (4, 1)]), far]))
    assert weights.mean() == pytest.approx(1.0)
    assert weights[:120].min() > 10 * weights[120:].max()


def test_a_mixture_travels_and_a_broken_one_is_refused():
    mixture = fit_mixture(clouds(0, [(0, 0), (4, 1)]), 2, np.random.default_rng(0))
    again = Mixture.of(mixture.message())
    assert np.array_equal(again.means, mixture.means)
    for change in ({"variances": np.zeros((2, 2))}, {"means": np.full((2, 2), np.nan)}, {"shares": np.ones(3)}):
        with pytest.raises(DataError, match="no mixture"):
            Mixture.of({**mixture.message(), **change})


# ---------------------------------------------------------------------- what does not fit

X = torch.zeros(4, 3)
REFUSED = {
    "power": (lambda: domain_loss(torch.zeros(4), torch.ones(4), power=0), "power=0"),
    "scores": (lambda: domain_loss(torch.zeros(4, 2), torch.ones(4)), r"scores \(4, 2\) for 4 rows"),
    "conditioned": (lambda: conditioned(X, X[:2]), r"features \(4, 3\) and logits \(2, 3\)"),
    "classifiers": (lambda: classifier_discrepancy(X, X[:, :2]), r"logits \(4, 3\) and \(4, 2\)"),
    "features": (lambda: linear_mmd(X, X[:, :2]), r"features \(4, 3\) and \(4, 2\)"),
    "no rows": (lambda: gaussian_mmd(X, X[:0]), "batches of 4 and 0 rows"),
    "one row": (lambda: coral(X, X[:1]), "batches of 4 and 1 rows"),
    "directions": (lambda: sliced_quantiles(np.zeros((4, 3)), np.eye(2), 1), "along directions of 2 numbers"),
    "quantiles": (lambda: wasserstein(np.zeros((2, 2)), np.zeros((3, 2)), 2), r"quantiles \(2, 2\) and \(3, 2\)"),
    "clusters": (lambda: cluster(np.zeros((4, 3)), 5, np.random.default_rng(0)), "5 clusters of 4 rows"),
    "owners": (lambda: dispersion(np.zeros((4, 3)), [0, 1]), r"in clusters \(2,\)"),
    "gains": (lambda: gain_weights([1.0, np.nan], [0.0, 0.0]), "gains"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(name):
    call, said = REFUSED[name]
    with pytest.raises((ConfigError, DataError), match=said):
        call()
