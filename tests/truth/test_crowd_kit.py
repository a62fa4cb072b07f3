"""`fit_predict` next to crowd-kit's own: the same Series, labels, probabilities and matrices. It runs where crowd-kit is: ``pip install --no-deps crowd-kit==1.4.2``."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest

from atoll.truth import GLAD, MACE, DawidSkene, MajorityVote, OneCoin
from tests.truth.test_oracles import FRAME, TRUTH

pytestmark = pytest.mark.filterwarnings("ignore")  # crowd-kit calls pandas as it was


@pytest.fixture(scope="module")
def aggregation() -> Iterator[Any]:
    """crowd-kit's models; its aggregation of texts loads libraries that nothing here uses."""
    absent = [name for name in ("nltk", "nltk.translate", "nltk.translate.gleu_score", "transformers") if name not in sys.modules]  # fmt: skip
    for name in absent:
        made: Any = types.ModuleType(name)
        made.PreTrainedModel = made.PreTrainedTokenizer = made.GenerationConfig = object
        sys.modules[name] = made
    try:
        yield pytest.importorskip("crowdkit.aggregation", reason="pip install --no-deps crowd-kit==1.4.2")
    finally:
        for name in absent:
            del sys.modules[name]


def shuffled(frame: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    """Rows in another order, under numbers of rows that are not counted."""
    return frame.sample(frac=1.0, random_state=seed)


NUMBERED = FRAME.assign(task=FRAME.task.str[1:].astype(int), label=FRAME.label.str[1:].astype(int))
"""Tasks and labels are numbers, and stay numbers."""


@pytest.mark.parametrize(
    "frame", [FRAME, shuffled(FRAME), shuffled(NUMBERED, 1)], ids=["sorted", "shuffled", "numbers"]
)
def test_the_series_has_crowd_kits_index_name_and_values(aggregation: Any, frame: pd.DataFrame) -> None:
    pairs = [
        (DawidSkene(iterations=5, tolerance=0), aggregation.DawidSkene(n_iter=5, tol=-1e9)),
        (OneCoin(iterations=5, tolerance=0), aggregation.OneCoinDawidSkene(n_iter=5, tol=-1e9)),
    ]
    for ours, theirs in pairs:
        found, wanted = ours.fit_predict(frame), theirs.fit_predict(frame)
        pd.testing.assert_index_equal(found.index, wanted.index)
        assert found.name == wanted.name
        assert found.dtype == wanted.dtype
        assert found.to_dict() == wanted.to_dict()
        there = ours.probas_.loc[wanted.index, theirs.probas_.columns]
        np.testing.assert_allclose(there, theirs.probas_, atol=1e-8)
        np.testing.assert_allclose(ours.priors_[theirs.priors_.index], theirs.priors_, atol=1e-8)
        matrix = theirs.errors_ if hasattr(theirs, "errors_") and isinstance(theirs.errors_, pd.DataFrame) else None
        if matrix is not None and matrix.index.nlevels == 2:
            np.testing.assert_allclose(ours.errors_.loc[matrix.index, matrix.columns], matrix, atol=1e-8)


def test_a_fit_ends_where_crowd_kit_ends(aggregation: Any) -> None:
    ours, theirs = DawidSkene(), aggregation.DawidSkene(n_iter=100)
    assert ours.fit_predict(FRAME).to_dict() == theirs.fit_predict(FRAME).to_dict()
    assert ours.n_iter_ == len(theirs.loss_history_) + 1
    np.testing.assert_allclose(
        ours.probas_.loc[theirs.probas_.index, theirs.probas_.columns], theirs.probas_, atol=1e-8
    )


def test_votes_and_models_that_search_otherwise_find_as_much(aggregation: Any) -> None:
    """Of a tie, crowd-kit's vote takes a label by chance, so only the index is compared; GLAD and MACE climb by other ways."""
    for ours, theirs in ((MajorityVote(), aggregation.MajorityVote()), (GLAD(), aggregation.GLAD(n_iter=30)), (MACE(), aggregation.MACE(n_restarts=1, random_state=0))):  # fmt: skip
        found, wanted = ours.fit_predict(FRAME), theirs.fit_predict(FRAME)
        assert set(found.index) == set(wanted.index)
        assert found.name == wanted.name
        right = [sum(one[task] == label for task, label in TRUTH.items()) for one in (found, wanted)]
        assert right[0] >= right[1] - 1
