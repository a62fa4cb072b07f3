"""Every algorithm under a secure reducer: the plain training to rounding, or refused before anyone is contacted because single replies are needed."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from double_masked import DoubleMasked
from test_compositions import SETTINGS, two_classes

import atoll
from atoll.core.algebra import tree as T
from atoll.core.errors import CompositionError, ConfigError
from atoll.learn import Evaluation, Everyone, Training, Uniform
from atoll.learn.algorithm import Algorithm
from atoll.learn.catalogue import example, facts, kinds
from atoll.learn.wrapped import Wrapped

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


@pytest.mark.parametrize("name", kinds())
def test_any_algorithm_is_masked_or_refused(name: str) -> None:
    model, islands, _ = two_classes(name)
    algorithm = in_batches(name)
    selection = Everyone() if algorithm.card.everyone else Uniform(4)
    job = Training(model=model, algorithm=algorithm, selection=selection, rounds=3, evaluation=Evaluation(server=False))

    def trained(engine: str = "inline", **changes: Any) -> Any:
        return atoll.simulate(job.replace(**changes), islands, engine=engine, secret_seed=7)

    if not facts((name,))[0].secure:
        with pytest.raises(
            CompositionError, match="is not summable: its encodings cannot be added up, and DoubleMasked"
        ):
            trained(reducer=DoubleMasked())
        return
    plain = trained()
    right = np.concatenate([np.ravel(leaf) for leaf in T.leaves(plain.params)])
    assert np.abs(right).max() > 1e-3, "it has learnt something"
    for engine in ("inline", "batched"):  # client by client, and below halves in blocks
        masked = trained(engine, reducer=DoubleMasked())
        found = np.concatenate([np.ravel(leaf) for leaf in T.leaves(masked.params)])
        np.testing.assert_allclose(found, right, rtol=1e-6, atol=1e-6, err_msg=engine)
        assert masked.metrics.column("replied") == plain.metrics.column("replied")


@pytest.mark.parametrize("name", WHOLE)
def test_those_without_mini_batches_refuse_them(name: str) -> None:
    model, islands, _ = two_classes(name)

    def composed() -> None:
        algorithm = replace(example(kinds()[name]), batch_size=4)
        Training(model=model, algorithm=algorithm, rounds=1).learner(islands)

    with pytest.raises((ConfigError, CompositionError), match="batch_size=4"):
        composed()
