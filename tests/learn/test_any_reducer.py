"""Every algorithm under a secure reducer: the plain training to rounding, or refused before anyone is contacted because single replies are needed."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.core.algebra import tree as T
from atoll.core.errors import CompositionError, ConfigError
from atoll.learn import Evaluation, Everyone, Training, Uniform
from atoll.learn.algorithm import Algorithm
from atoll.learn.catalogue import example, facts, kinds
from atoll.learn.wrapped import Wrapped
from tests.learn.test_compositions import SETTINGS, two_classes
from tests.support.double_masked import DoubleMasked

WHOLE = ("DANE", "DINGO", "FLECS", "FLECSPP", "FedNL", "FedSGD", "GIANT", "LocalSAGA", "SufficientStatistics")
"""They take no mini-batches."""


def in_batches(name: str) -> Algorithm:
    """The algorithm of the catalogue with mini-batches of four rows, so that it draws, if it can have any."""
    algorithm, options = example(kinds()[name]), dict(SETTINGS.get(name, {}))
    options.pop("compressor", None)  # the catalogue says of the method's own whether a secure reducer takes it
    if name in WHOLE:
        return replace(algorithm, **options)
    if isinstance(algorithm, Wrapped) and "batch_size" not in {f.name for f in fields(algorithm) if f.init}:
        options["base"] = replace(options.get("base", algorithm.base), batch_size=4, lr=0.05)
    else:
        options["batch_size"] = 4
    return replace(algorithm, **options)


OF_LINEAR_MODELS = ("SufficientStatistics", "ObjectivePerturbation")
BLOCKS = pytest.param("batched", marks=pytest.mark.slow)


@pytest.mark.every(2)
@pytest.mark.parametrize("engine", ["inline", BLOCKS])
@pytest.mark.parametrize("name", kinds())
def test_any_algorithm_is_masked_or_refused(name: str, engine: str) -> None:
    """A linear model client by client, and a network whose clients train in blocks below the half."""
    model, islands, _ = two_classes(name)
    if engine == "batched" and name not in OF_LINEAR_MODELS:
        model = atoll.models.mlp(3, 2, hidden=(4,))
    algorithm = in_batches(name)
    selection = Everyone() if algorithm.card.everyone else Uniform(4)
    job = Training(
        model=model,
        algorithm=algorithm,
        selection=selection,
        rounds=3,
        evaluation=Evaluation(server=False),
        compile="never",
    )

    def trained(**changes: Any) -> Any:
        return atoll.simulate(job.replace(**changes), islands, engine=engine, secret_seed=7)

    if not facts((name,))[0].secure:
        with pytest.raises(
            CompositionError, match="is not summable: its encodings cannot be added up, and DoubleMasked"
        ):
            trained(reducer=DoubleMasked())
        return
    plain, masked = trained(), trained(reducer=DoubleMasked())
    found, right = (np.concatenate([np.ravel(leaf) for leaf in T.leaves(run.params)]) for run in (masked, plain))
    assert np.abs(right).max() > 1e-3, "it has learnt something"
    close = 1e-6 if right.dtype == np.float64 else 1e-4  # second-order methods amplify the rounding of float32
    np.testing.assert_allclose(found, right, rtol=close, atol=close)
    assert masked.metrics.column("replied") == plain.metrics.column("replied")


@pytest.mark.parametrize("name", WHOLE)
def test_those_without_mini_batches_refuse_them(name: str) -> None:
    model, islands, _ = two_classes(name)

    def composed() -> None:
        algorithm = replace(example(kinds()[name]), batch_size=4)
        Training(model=model, algorithm=algorithm, rounds=1).learner(islands)

    with pytest.raises((ConfigError, CompositionError), match="batch_size=4"):
        composed()
