"""What the cut of a split network tells: attacks that find it, defences that hide it, and distance correlation's laws."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll
from atoll.core.algebra.rng import Rng
from atoll.core.errors import AtollError, ConfigError, DataError
from atoll.core.requests.island import Secret
from atoll.trees.tree import auc
from atoll.vertical import IsotropicNoise, MaxNorm, SplitNet, SunModules, Vertical, distance_correlation, read_leaks
from atoll.vertical.split.attacks import LabelLeaks, complete_model, invert_embeddings
from atoll.vertical.split.defences import HostModules, correlate_distances

torch = pytest.importorskip("torch")


def correlate_by_hand(a, b):
    """Definition 3 of Székely et al., a pair of rows at a time."""
    n, centred = len(a), []
    for each in (a, b):
        d = [[math.dist(p, q) for q in each] for p in each]
        rows = [sum(row) / n for row in d]
        total = sum(rows) / n
        centred.append([[d[i][j] - rows[i] - rows[j] + total for j in range(n)] for i in range(n)])

    def mean(one, other):
        return sum(p * q for r, s in zip(one, other, strict=True) for p, q in zip(r, s, strict=True)) / n**2

    x, y = centred
    return math.sqrt(max(0.0, mean(x, y)) / math.sqrt(mean(x, x) * mean(y, y)))


@given(st.integers(0, 10**6), st.integers(2, 12), st.integers(1, 4), st.floats(1e-3, 1e3), st.floats(-1e3, 1e3))
def test_distance_correlation_is_its_definition_and_knows_no_place_size_or_turn(seed, rows, columns, scale, shift):
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(rows, columns)), rng.normal(size=(rows, 2))
    found = distance_correlation(a, b)
    assert found == pytest.approx(correlate_by_hand(a.tolist(), b.tolist()), abs=1e-7)
    assert 0 <= found <= 1 + 1e-12
    assert distance_correlation(b, a) == pytest.approx(found, abs=1e-9)
    turned = np.linalg.qr(rng.normal(size=(columns, columns)))[0]
    moved = scale * a @ turned + shift
    assert distance_correlation(moved, b) == pytest.approx(found, abs=1e-6)
    assert distance_correlation(a, moved) == pytest.approx(1, abs=1e-9)
    assert distance_correlation(a, np.ones(rows)) == 0


@pytest.mark.parametrize(("a", "b"), [([1.0], [2.0]), ([1.0, 2.0], [1.0]), ([1.0, np.nan], [1.0, 2.0]), (3.0, [1.0, 2.0])])  # fmt: skip
def test_measurements_without_a_correlation_are_refused(a, b):
    with pytest.raises(DataError, match="distance_correlation"):
        distance_correlation(a, b)


def draw_gradients(rows=40, width=6, seed=0):
    rng = np.random.default_rng(seed)
    labels = (rng.random(rows) < 0.3).astype(float)
    labels[:2] = 1, 0
    chance = np.clip(0.3 + 0.1 * rng.normal(size=rows), 0.05, 0.9)
    along = rng.normal(size=width)
    gradients = (chance - labels)[:, None] * (along + 0.1 * rng.normal(size=(rows, width)))
    return torch.from_numpy(gradients), labels


def test_norm_and_direction_are_areas_under_the_curve_of_the_rows_that_the_attacker_does_not_know():
    leaks = LabelLeaks(("norm", "direction"), 1, 40, 6)
    expected = []
    for seed in range(3):
        gradients, labels = draw_gradients(seed=seed)
        leaks.note(0, gradients, gradients, labels, np.arange(40))
        g = gradients.numpy()
        known = int(np.flatnonzero(labels)[0])
        others = [i for i in range(40) if i != known]
        cosine = [g[i] @ g[known] / math.sqrt((g[i] @ g[i]) * (g[known] @ g[known])) for i in others]
        expected.append((auc(labels, np.linalg.norm(g, axis=1)), auc(labels[others], np.array(cosine))))
    found = leaks.result(labels)
    assert found == pytest.approx(dict(zip(("norm", "direction"), np.mean(expected, axis=0), strict=True)))
    assert found["direction"] == 1
    again = LabelLeaks(("norm", "direction"), 1, 40, 6, leaks.state())
    assert again.result(labels) == found


def test_a_host_that_sees_fewer_batches_is_judged_by_its_own():
    rng = np.random.default_rng(0)
    labels, at = np.arange(20) % 2, np.arange(20)
    gradients = torch.from_numpy(rng.normal(size=(20, 3)) * (1 + labels[:, None]))
    lone, both = (LabelLeaks(["norm", "direction"], hosts, 20, 3) for hosts in (1, 2))
    lone.note(0, gradients, gradients, labels, at)
    for _ in range(3):
        both.note(1, gradients, gradients, labels, at)
    assert both.result(labels) == pytest.approx(lone.result(labels))


def test_batches_of_one_class_tell_nothing():
    leaks = LabelLeaks(("norm", "direction"), 2, 40, 6)
    gradients, _ = draw_gradients()
    leaks.note(0, gradients, gradients, np.zeros(40), np.arange(40))
    assert leaks.result(np.zeros(40)) == {"norm": 0.5, "direction": 0.5}


def test_maxnorm_keeps_the_mean_and_gives_all_rows_one_expected_norm():
    gradients, _ = draw_gradients(rows=8)
    gradients[3] = 0
    drawn = MaxNorm().hide(gradients.repeat(20_000, 1), Secret(0)).view(20_000, 8, 6)
    most = gradients.norm(dim=1).max()
    np.testing.assert_allclose((drawn**2).sum(dim=2).mean(dim=0) / most**2, 1, atol=0.06)
    np.testing.assert_allclose(drawn.mean(dim=0) / most, gradients / most, atol=0.03)
    at = int(gradients.norm(dim=1).argmax())
    torch.testing.assert_close(drawn[0, at], gradients[at])


def test_isotropic_noise_has_the_size_that_it_says():
    gradients, _ = draw_gradients(rows=8)
    drawn = IsotropicNoise(scale=2.0).hide(gradients.repeat(4000, 1), Secret(0)).view(4000, 8, 6) - gradients
    most = gradients.norm(dim=1).max()
    assert float((drawn**2).sum(dim=2).mean() / most**2) == pytest.approx(4, rel=0.05)
    np.testing.assert_allclose(drawn.std(dim=0).numpy(), np.full((8, 6), 2 * float(most) / 6**0.5), rtol=0.1)


def test_the_modules_of_a_host_are_their_sum_and_their_gradient_reaches_the_embedding():
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(20, 3)))
    h = torch.from_numpy(rng.normal(size=(20, 4))).requires_grad_()
    weights = {"reconstruction": 0.3, "noise": 0.5, "distance": 0.7}

    def penalty(**more):
        none = dict.fromkeys(weights, 0.0)
        made = HostModules(SunModules(**{**none, **more}), 4, 3, Rng.of(0), Secret(0), np.float64, None)
        return made.penalty(x, h)

    apart = [penalty(**{name: value}) for name, value in weights.items()]
    together = penalty(**weights)
    assert float(together.detach()) == pytest.approx(sum(float(one.detach()) for one in apart), abs=1e-9)
    assert float(apart[2].detach()) == pytest.approx(0.7 * math.log(distance_correlation(x, h.detach())))
    for one in apart:
        (slope,) = torch.autograd.grad(one, h, retain_graph=True)
        assert float(slope.abs().max()) > 0


def test_distance_correlation_has_its_numerical_gradient():
    rng = np.random.default_rng(1)
    x, h = (torch.from_numpy(rng.normal(size=(7, k))) for k in (2, 3))
    h.requires_grad_()
    assert torch.autograd.gradcheck(lambda one: correlate_distances(x, one), (h,), atol=1e-6)


def test_attackers_with_networks_find_what_is_there_and_no_more():
    rng = np.random.default_rng(0)
    h = rng.normal(size=(600, 5))
    y = (h[:, 0] > 0).astype(float)
    assert complete_model(h, y) > 0.9
    assert complete_model(rng.normal(size=(600, 5)), y) < 0.65
    x = h @ rng.normal(size=(5, 3))
    assert invert_embeddings(h, x / x.std(axis=0)) > 0.9
    assert invert_embeddings(rng.normal(size=(600, 5)), x / x.std(axis=0)) < 0.1


def parties(rows=700):
    rng = np.random.default_rng(0)
    ids, x = np.arange(rows), rng.normal(size=(rows, 8)).astype(np.float32)
    y = (x.sum(axis=1) + rng.normal(size=rows) > 2).astype(int)
    bank = {"id": ids, **{f"a{i}": x[:, i] for i in range(4)}, "y": y}
    return {"bank": bank, "shop": {"id": ids, **{f"b{i}": x[:, 4 + i] for i in range(4)}}}


def train(defence, audit, **more):
    model = SplitNet(epochs=4, rate=0.01, defence=defence, audit=audit, **more)
    return atoll.simulate(Vertical(model=model), parties(), engine="inline", progress=False, secret_seed=1)


def test_maxnorm_hides_labels_and_a_host_cannot_tell_them_by_direction():
    bare, hidden = (train(defence, ("norm", "direction")) for defence in ([], [MaxNorm()]))
    before, after = read_leaks(bare), read_leaks(hidden)
    assert before["direction"] > 0.95
    assert after["direction"] < 0.75
    assert after["norm"] < before["norm"] - 0.2
    assert hidden.scores["test/federated/auc"] > bare.scores["test/federated/auc"] - 0.03
    assert "tells much of the labels" in "".join(bare.learns["shop"])
    assert "one expected norm" in "".join(hidden.learns["shop"])


def test_uncorrelated_embeddings_hide_columns():
    bare, hidden = (train(defence, ("inversion",)) for defence in ([], [SunModules(distance=2.0)]))
    assert read_leaks(hidden)["inversion"] < read_leaks(bare)["inversion"] - 0.2
    assert "reconstruction" in "".join(hidden.learns["bank"])


@pytest.mark.parametrize(
    ("made", "match"),
    [(lambda: SplitNet(audit=["magic"]), "audit="), (lambda: SplitNet(defence=["maxnorm"]), "CutDefence"), (lambda: IsotropicNoise(scale=0.0), "scale="), (lambda: SunModules(noise=-1.0), "noise="),
     (lambda: SunModules(reconstruction=0.0, noise=0.0, distance=0.0), "no module")],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(made, match):
    with pytest.raises(AtollError, match=match):
        made()


def test_attacks_on_two_classes_need_two():
    three = parties()
    three["bank"]["y"] = np.arange(700) % 3
    with pytest.raises(ConfigError, match="audit='norm' with labels"):
        atoll.simulate(Vertical(model=SplitNet(audit=["norm"])), three, engine="inline", progress=False)
