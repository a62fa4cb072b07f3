"""One-shot federated learning by an ensemble (Guha et al. 2019): each party trains alone, one round, and the best models vote.

A model is a decision stump. Single models must be seen, so they travel as ``Parts`` with their accuracy on rows held out; the server keeps the best.
The second step only measures: every party counts on its held-out rows how often the vote is right.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from sklearn.tree import DecisionTreeClassifier

import atoll
from atoll.core.requests.cohort import Community
from atoll.testing import Timetable
from tests.support.scales import assert_true_bytes
from tests.support.worlds import on_every_engine

BEST, CLASSES = 3, 2


def impurity(y):
    """Gini impurity, times the number of rows."""
    counts = np.bincount(y, minlength=CLASSES)
    return len(y) - (counts**2).sum() / max(len(y), 1)


def best_stump(x, y):
    """The split of one feature after which the two sides are purest, and the majority class of each side."""
    places = [(f, (a + b) / 2) for f in range(x.shape[1]) for s in [np.unique(x[:, f])] for a, b in pairwise(s)]
    feature, cut = min(places, key=lambda p: impurity(y[x[:, p[0]] <= p[1]]) + impurity(y[x[:, p[0]] > p[1]]))
    sides = [np.bincount(y[side], minlength=CLASSES).argmax() for side in (x[:, feature] <= cut, x[:, feature] > cut)]
    return {"feature": feature, "cut": float(cut), "classes": np.array(sides)}


def predicted(stump, x):
    return np.where(x[:, stump["feature"]] <= stump["cut"], *stump["classes"])


def vote(stumps, x):
    """The class that most stumps say."""
    ballots = np.stack([predicted(stump, x) for stump in stumps])
    return (ballots[:, :, None] == np.arange(CLASSES)).sum(axis=0).argmax(axis=1)


@atoll.task
def train(island, _):
    x, y, held = island.data["x"], island.data["y"], island.data["held"]
    stump = best_stump(x[~held], y[~held])
    return {"stump": atoll.Parts(stump, examples=float((predicted(stump, x[held]) == y[held]).mean()))}


@atoll.task
def count_right(island, stumps):
    x, y = (island.data[name][island.data["held"]] for name in "xy")
    return {"right": atoll.Sum(np.int64((vote(stumps, x) == y).sum())), "rows": atoll.Sum(np.int64(len(y)))}


async def one_shot(fed):
    state = await fed.restore({"stumps": None})
    if state["stumps"] is None:
        models = await fed.sum(fed.parties, train, deadline=10.0, quorum=BEST)
        ranked = sorted(models["stump"], key=lambda part: (-part.weight, part.sender))[:BEST]
        state = {"stumps": [part.value for part in ranked], "chosen": [part.sender for part in ranked]}
        await fed.checkpoint(state)
    counts = await fed.sum(fed.parties, count_right, state["stumps"], deadline=10.0)
    return {**state, "right": int(counts["right"]), "rows": int(counts["rows"])}


def tables(n):
    rng = np.random.default_rng(1)
    for _ in range(n):
        x = rng.normal(size=(40, 4)).astype(np.float32)
        y = (x[:, 0] + 0.4 * x[:, 1] + 0.3 * rng.normal(size=40) > 0).astype(np.int64)
        yield {"x": x, "y": y, "held": rng.random(40) < 0.3}


def oracle(data, trained, measured):
    """The same in one place, with trees of scikit-learn."""
    trees = {}
    for i in trained:
        one = data[i]
        tree = DecisionTreeClassifier(max_depth=1, random_state=0).fit(one["x"][~one["held"]], one["y"][~one["held"]])
        trees[i] = tree, tree.score(one["x"][one["held"]], one["y"][one["held"]])
    chosen = sorted(trees, key=lambda i: (-trees[i][1], i))[:BEST]
    x, y = (np.concatenate([data[i][name][data[i]["held"]] for i in measured]) for name in "xy")
    ballots = np.stack([trees[i][0].predict(x) for i in chosen])
    winners = np.array([np.bincount(ballot).argmax() for ballot in ballots.T])
    return {"chosen": chosen, "right": int((winners == y).sum()), "rows": len(y)}


LOST = {":train/": ["client-2"], ":count_right/": ["client-0", "client-5"]}


@pytest.mark.parametrize(("engine", "lost"), on_every_engine((LOST,), ({},)), indirect=["engine"])
def test_the_vote_is_that_of_trees_trained_one_by_one(survive, lost):
    data = list(tables(7))
    people, cost = Community(data), Timetable({"client-4": 60.0}, lost=lost)  # client 4 is always too late
    life = survive(one_shot, people, cost=cost)
    trained, measured = (
        [i for i in range(7) if i != 4 and f"client-{i}" not in lost.get(step, [])]
        for step in (":train/", ":count_right/")
    )
    expected = oracle(data, trained, measured)
    assert {name: life.result[name] for name in expected} == expected
    assert expected["right"] > 0.75 * expected["rows"]
    assert_true_bytes(life, one_shot, people, cost)
