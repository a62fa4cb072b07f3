"""Forward correction: its limits to the bit, transition matrices against those that spoilt the labels, and all of it on every engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import atoll
from atoll.algorithms import FedAvg, FedProx, Scaffold
from atoll.core.errors import ConfigError
from atoll.data import Islands
from atoll.labels import ForwardCorrection, Guard, Supervised
from atoll.labels.objectives import estimate_transition, forward_corrected, label_triples
from tests.support.label_toys import CLASSES, gap, images, islands, net, same, trained

WORK: dict[str, Any] = {"lr": 0.1, "steps": 3, "batch_size": 8}
PAIRS = 0.6 * np.eye(CLASSES) + 0.4 * np.roll(np.eye(CLASSES), 1, axis=1)
SYMMETRIC = 0.6 * np.eye(CLASSES) + 0.4 / (CLASSES - 1) * (1 - np.eye(CLASSES))
KINDS = pytest.mark.parametrize("truth", [PAIRS, SYMMETRIC, np.eye(CLASSES)], ids=["pairs", "symmetric", "right"])


def drawn(truth: Any, classes: Any, seed: int) -> Any:
    """Return a label of each class, as the matrix says."""
    above = np.random.default_rng(seed).random(len(classes))[:, None] > np.cumsum(truth[classes], axis=1)
    return np.minimum(above.sum(axis=1), CLASSES - 1)


def history(algorithm: Any, data: Islands, rounds: int, **more: Any) -> Any:
    job = atoll.Training(model=net(), algorithm=algorithm, rounds=rounds, **more)
    return atoll.simulate(job, data, engine="inline", seed=3, progress=False)


# --- the loss ------------------------------------------------------------------------------------------------------------------


def test_the_loss_is_the_likelihood_of_the_label() -> None:
    logits = torch.randn(5, CLASSES, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    target = torch.tensor([0, 1, 2, 3, 0])
    p = logits.softmax(1).numpy()
    wanted = [-np.log(sum(p[i, c] * PAIRS[c, y] for c in range(CLASSES))) for i, y in enumerate(target.tolist())]
    np.testing.assert_allclose(forward_corrected(logits, target, torch.from_numpy(PAIRS)), wanted, rtol=1e-12)
    plain = forward_corrected(logits, target, torch.eye(CLASSES))
    assert torch.equal(plain, F.cross_entropy(logits, target, reduction="none"))


def test_a_label_that_no_class_has_teaches_nothing() -> None:
    logits = torch.zeros(2, 2, requires_grad=True)
    loss = forward_corrected(logits, torch.tensor([1, -1]), torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
    loss.sum().backward()
    assert loss.tolist() == [0.0, 0.0]
    assert torch.equal(logits.grad, torch.zeros(2, 2))


# --- how labels go wrong -------------------------------------------------------------------------------------------------------


def test_triples_are_those_of_a_loop() -> None:
    rng = np.random.default_rng(1)
    x, y, counts = rng.normal(size=(20, 3)), rng.integers(0, 3, 20), rng.random(20) < 0.8
    wanted = np.zeros((3, 3, 3))
    for i in np.flatnonzero(counts):
        others = [j for j in np.flatnonzero(counts) if j != i]
        first, second = sorted(others, key=lambda j: float(((x[i] - x[j]) ** 2).sum()))[:2]
        wanted[y[i], y[first], y[second]] += 1
    found = label_triples(torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(counts), 3)
    np.testing.assert_array_equal(found, wanted)
    few = torch.arange(20) < 2
    assert not label_triples(torch.from_numpy(x), torch.from_numpy(y), few, 3).any()  # one row has one neighbour


@KINDS
def test_the_matrix_that_spoilt_the_labels_is_found_though_a_tenth_of_the_neighbours_is_of_another_class(
    truth: Any,
) -> None:
    rng = np.random.default_rng(5)
    classes = rng.choice(CLASSES, 6000, p=[0.4, 0.3, 0.2, 0.1])
    counts = np.zeros((CLASSES,) * 3)
    near = [np.where(rng.random(6000) < 0.1, rng.integers(0, CLASSES, 6000), classes) for _ in range(2)]
    np.add.at(counts, tuple(drawn(truth, c, seed) for seed, c in enumerate([classes, *near])), 1.0)
    assert np.abs(estimate_transition(counts) - truth).max() < 0.06


def test_nothing_counted_is_the_identity_and_a_class_without_rows_keeps_its_label() -> None:
    assert np.array_equal(estimate_transition(np.zeros((3, 3, 3))), np.eye(3))
    counts = np.zeros((3, 3, 3))
    counts[0, 0, 0] = counts[1, 1, 1] = 50.0
    found = estimate_transition(counts)
    np.testing.assert_allclose(found.sum(axis=1), 1.0)
    assert found.argmax(axis=1).tolist() == [0, 1, 2]
    assert found[0, 0] > 0.97


# --- the method ----------------------------------------------------------------------------------------------------------------


@pytest.mark.quick("base0")
@pytest.mark.parametrize("base", [FedAvg(**WORK), FedProx(mu=0.5, **WORK), Scaffold(**WORK)])
def test_if_no_label_goes_wrong_it_is_the_training_on_labelled_rows_to_the_bit(base: Any) -> None:
    identity = np.eye(CLASSES).tolist()
    told = {"base": base, "after": 0}
    assert same(trained(ForwardCorrection(transition=identity, **told)), trained(Supervised(base=base)))
    assert not same(trained(ForwardCorrection(transition=PAIRS.tolist(), **told)), trained(Supervised(base=base)))


def test_the_first_rounds_count_and_train_as_if_no_label_were_wrong() -> None:
    one, two = (trained(ForwardCorrection(after=after, **WORK), rounds=3) for after in (2, 3))
    plain = trained(Supervised(**WORK), rounds=3)
    assert same(two, plain)
    assert not same(one, plain)


@pytest.mark.quick("base0")
@pytest.mark.parametrize("base", [FedAvg(**WORK), Scaffold(**WORK)])
def test_blocks_of_clients_count_and_train_as_single_ones(base: Any) -> None:
    one, many = (trained(ForwardCorrection(base=base, after=1), engine=engine) for engine in ("inline", "batched"))
    assert gap(one, many) < 1e-5


def test_what_a_hidden_label_holds_is_out_of_reach() -> None:
    one, two = (trained(ForwardCorrection(after=1, **WORK), islands(images(garbage=seed))) for seed in (5, 6))
    assert same(one, two)


@pytest.mark.slow
@pytest.mark.quick("pairs")
@KINDS
def test_it_learns_the_classes_from_labels_of_which_many_are_wrong(truth: Any) -> None:
    clean = images(300, share=2.0)
    given = drawn(truth, clean.y, 4)
    data = islands(clean.with_columns({"y": given})).with_test(images(200, share=2.0, seed=9))
    reached = {}
    work: dict[str, Any] = {"lr": 0.1, "steps": 10, "batch_size": 20}
    for name, method in {"believed": Supervised(**work), "corrected": ForwardCorrection(after=2, **work)}.items():
        reached[name] = history(method, data, 5).metrics.last("test/accuracy")
    assert reached["corrected"] > 0.95
    if truth is PAIRS:
        assert reached["corrected"] > reached["believed"] + 0.1


@pytest.mark.slow
def test_a_guard_and_secure_sums_go_around_it() -> None:
    data = islands(images(90, share=2.0))
    method = ForwardCorrection(after=1, **WORK)
    plain = history(method, data, 3).params
    masked = history(method, data, 3, reducer=atoll.SecureAggregation(least=2)).params
    assert gap(plain, masked) < 1e-4
    held = history(Guard(base=method, plain=Supervised(**WORK), share=0.3, after=1, z=9.0), data, 3)
    assert held.metrics.last("guard_on") is not None


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"sample": 2}, "sample=2"),
        ({"keep": 1.0}, r"keep=1\.0"),
        ({"after": -1}, "after=-1"),
        ({"transition": [[0.5, 0.5]]}, r"transition of shape \(1, 2\)"),
        ({"transition": [[1.0, 0.0], [0.5, 0.6]]}, r"row 1 of transition is \[0\.5, 0\.6\]"),
        ({"transition": [[1.0], "no"]}, "transition is no matrix"),
    ],
)
def test_settings_without_sense_are_refused(settings: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        ForwardCorrection(**settings)


def test_a_matrix_for_another_number_of_classes_is_refused() -> None:
    with pytest.raises(ConfigError, match="a transition of 2 classes for a model with 4 outputs"):
        trained(ForwardCorrection(transition=np.eye(2).tolist(), **WORK))
