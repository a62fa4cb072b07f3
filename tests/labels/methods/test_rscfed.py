"""RSCFed: weights of sub-consensus models, a warm teacher that is private state, and its limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll
from atoll import views
from atoll.algorithms import FedAvg, FedProx, Scaffold
from atoll.core.algebra.aggregate import Part
from atoll.core.errors import CompositionError, ConfigError
from atoll.labels import Supervised
from atoll.labels.methods.rscfed import RSCFed, WarmTeacher, consensus_weights, sub_consensus
from atoll.learn.algorithm import RoundInfo
from atoll.reducers import SecureAggregation
from tests.support.killed_trainings import killed_training
from tests.support.label_toys import gap, images, islands, net, trained

WORK: dict[str, Any] = {"lr": 0.1, "steps": 2, "batch_size": 8}
WARPED = views.Translate(1)
numbers = st.lists(st.tuples(st.floats(1, 1000), st.floats(0, 100)), min_size=2, max_size=8)


def rscfed(**settings: Any) -> RSCFed:
    return RSCFed(
        **{
            "tau": 0.3,
            "beta": 10.0,
            "beta_labelled": 1.0,
            "weight": 1.0,
            "weak": None,
            "strong": WARPED,
            **WORK,
            **settings,
        }
    )


@given(numbers, st.floats(0, 1e4))
def test_weights_are_positive_and_add_up_to_1(pairs: Any, beta: float) -> None:
    n, d = np.array(pairs).T
    weights = consensus_weights(d, n, np.full(len(n), beta))
    assert (weights >= 0).all()
    assert weights.sum() == pytest.approx(1.0)
    assert consensus_weights(0 * d, n, np.full(len(n), beta)) == pytest.approx(n / n.sum())


@given(numbers, st.floats(0.1, 50))
def test_an_outlier_weighs_less_the_farther_it_is(pairs: Any, more: float) -> None:
    n, d = np.array(pairs).T
    near, far = (consensus_weights(d + np.eye(len(n))[0] * away, n, np.ones(len(n)) * 3.0) for away in (0.0, more))
    assert far[0] <= near[0]
    assert far[0] < near[0] or not 1e-300 < near[0] < 1 - 1e-9, "rounded to 0 or 1"


def parts(values: Any, examples: Any) -> list[Part]:
    return [Part({"w": np.asarray(v, np.float32)}, float(n)) for v, n in zip(values, examples, strict=True)]


def test_equal_models_and_beta_0_give_the_mean_by_examples() -> None:
    equal = sub_consensus(parts([[1.0, 2.0]] * 3, [1, 5, 9]), np.full(3, 1e4), [[0, 1], [1, 2]])
    assert equal["w"].tolist() == [1.0, 2.0]
    plain = sub_consensus(parts([[1.0], [3.0], [5.0]], [1, 1, 2]), np.zeros(3), [[0, 1, 2]])
    assert plain["w"] == pytest.approx([3.5])
    assert plain["w"].dtype == np.float32


def test_a_stray_model_loses_its_say() -> None:
    models = parts([[1.0], [1.2], [9.0]], [10, 10, 10])
    means = [float(sub_consensus(models, np.full(3, beta), [[0, 1, 2]])["w"][0]) for beta in (0.0, 1.0, 10.0, 1000.0)]
    assert means == sorted(means, reverse=True)
    assert means[-1] < 1.3


def test_each_reply_of_a_subset_has_its_own_beta() -> None:
    """Liang et al. 2022, equation 5, by hand: the subset (0, 2) of three replies, whose betas differ by a factor of 20."""
    models, betas = parts([[1.0], [50.0], [4.0]], [10, 99, 20]), np.array([2.0, 7.0, 40.0])
    plain = (10 * 1.0 + 20 * 4.0) / 30
    raw = np.array([10 * np.exp(-2.0 * abs(1.0 - plain) / 10), 20 * np.exp(-40.0 * abs(4.0 - plain) / 20)])
    expected = float(raw @ [1.0, 4.0] / raw.sum())
    assert sub_consensus(models, betas, [[0, 2]])["w"] == pytest.approx([expected], rel=1e-6)


@pytest.mark.parametrize("beta_labelled", [1.0, None])
def test_a_round_weighs_replies_with_labels_by_their_own_beta(beta_labelled: float | None) -> None:
    """Clients with labels stray most and are few: the authors' beta for them is 100 times smaller. Without one, all have the same."""
    models, known = parts([[0.0], [1.0], [6.0]], [10, 10, 10]), [0.0, 0.0, 1.0]
    method = rscfed(groups=1, size=None, beta=30.0, beta_labelled=beta_labelled)
    sums = {"update": models, "labels": [Part(np.float32(there), 1.0) for there in known]}
    state = method.init({"w": np.zeros(1, np.float32)})
    folded = method.fold(state, sums, RoundInfo(1, 3, 3, 3), "train")["params"]["w"]
    betas = np.array([30.0, 30.0, 30.0 if beta_labelled is None else beta_labelled])
    assert folded == pytest.approx(sub_consensus(models, betas, [[0, 1, 2]])["w"], rel=1e-6)
    others = [sub_consensus(models, np.full(3, beta), [[0, 1, 2]])["w"][0] for beta in (30.0, 1.0, 0.0)]
    assert beta_labelled is None or all(abs(folded[0] - other) > 0.01 for other in others)


def test_with_all_labels_one_group_and_no_beta_it_is_the_algorithm_inside() -> None:
    known = islands(images(share=2.0))
    limit = rscfed(groups=1, size=None, beta=0.0, beta_labelled=None)
    assert gap(trained(limit, known), trained(Supervised(**WORK), known)) < 1e-6


@pytest.mark.quick("client")
@pytest.mark.parametrize("memory", ["client", "round"])
def test_blocks_of_clients_train_as_single_ones(memory: str) -> None:
    method = rscfed(memory=memory)
    assert gap(trained(method), trained(method, engine="batched")) < 1e-5


@pytest.mark.quick("base1")
@pytest.mark.parametrize("base", [FedAvg(**WORK), FedProx(mu=0.5, **WORK), Scaffold(**WORK)])
def test_it_goes_around_other_algorithms(base: Any) -> None:
    method = RSCFed(base=base, tau=0.3, weight=1.0, beta=10.0, weak=None, strong=WARPED)
    assert gap(trained(method), trained(replace(method, weight=0.0))) > 1e-5, "unlabelled rows count"


def test_sums_that_hide_single_replies_are_refused() -> None:
    with pytest.raises(
        CompositionError, match=r"RSCFed weighs each client by the distance of its own model.*SecureAggregation"
    ):
        trained(rscfed(), reducer=SecureAggregation())


def test_a_teacher_follows_closely_at_first() -> None:
    stream, params = WarmTeacher(name="teacher", keep=0.8), {"w": np.array([1.0])}
    copy, seen = stream.of({"w": np.array([0.0])}), []
    for _ in range(6):
        copy = stream.move_copy(copy, params)
        seen.append(1 - float(copy["at"]["w"][0]))
    kept = [1 - max(1 / (n + 1), 0.2) for n in range(1, 7)]
    assert seen == pytest.approx(np.cumprod(kept))


def test_a_killed_run_resumes_to_the_bit(tmp_path: Any) -> None:
    """The teacher is private state."""
    job = atoll.Training(model=net(), algorithm=rscfed(steps=1), rounds=3)
    killed_training(job, islands(), tmp_path, points=5)


@pytest.mark.parametrize(
    "settings", [{"groups": 0}, {"size": 0}, {"beta": -1.0}, {"beta_labelled": -2.0}, {"tau": 0.0}, {"weight": -1.0}]
)
def test_settings_without_sense_are_refused(settings: dict[str, Any]) -> None:
    name, value = next(iter(settings.items()))
    with pytest.raises(ConfigError, match=rf"{name}={value}.*RSCFed"):
        RSCFed(**settings)
