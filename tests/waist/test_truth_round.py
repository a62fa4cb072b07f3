"""Truth discovery on answers that nobody shows: CRH (Li et al. 2014) on shared sums, with users who come late to a step and users who are lost.

The truth of an object is the weighted mean of the answers; a user weighs log(sum of all distances / its own distance), its distance being the mean
squared error of its answers. Every user shares its terms among all (Shamir); the server fixes who was in time; each user who is there adds up the shares
that it holds of those, and any ``THRESHOLD`` of these sums reveal the total. So the server sees totals alone. All follow the protocol.
"""

from __future__ import annotations

import numpy as np
import pytest

import atoll
from atoll.core.requests.cohort import Community
from atoll.testing import Timetable
from tests.support.scales import assert_true_bytes
from tests.support.shamir import PRIME, join, split
from tests.support.worlds import on_every_engine

SCALE, THRESHOLD, USERS, OBJECTS, ROUNDS = 2**40, 4, 7, 3, 4


def distance(answers, truth):
    return float(np.nanmean((answers - truth) ** 2))


def terms_of(answers, weight):
    """What a user adds to the sums of weighted answers and of weights, for each object that it has seen."""
    there = ~np.isnan(answers)
    return np.concatenate([weight * np.where(there, answers, 0.0), weight * there])


def share(island, numbers, names):
    parts = [split(round(float(number) * SCALE), names, THRESHOLD, island.secret) for number in numbers]
    for name in names:
        island.post(name, [part[name] for part in parts])


@atoll.task
def give_distances(island, message):
    share(island, [distance(island.data, message["truth"])], message["names"])


@atoll.task
def give_terms(island, message):
    """All users weigh the same in the first round."""
    first = message["distances"] is None
    weight = 1.0 if first else np.log(message["distances"] / distance(island.data, message["truth"]))
    share(island, terms_of(island.data, weight), message["names"])


@atoll.task
def add_up(island, message):
    letters = [island.inbox[name] for name in message]
    island.state = (island.state or 0) + 1
    return [(sum(map(int.from_bytes, column)) % PRIME).to_bytes(16) for column in zip(*letters, strict=True)]


@atoll.task
def times_served(island, _):
    return island.state or 0


async def shared_sum(fed, givers, task, message, at):
    """The sums over those who gave in time, and who they are."""
    names = fed.parties.names
    given = await fed.exchange(givers, task, {**message, "names": names}, deadline=5.0, quorum=THRESHOLD, at=at)
    in_time = given.senders.names
    terms = {"mail": given.mail.only_from(set(in_time)), "accept": THRESHOLD, "quorum": THRESHOLD, "at": at}
    rows = (await fed.exchange(fed.parties, add_up, in_time, **terms)).by_name()
    totals = [join(dict(zip(rows, column, strict=True)), names) for column in zip(*rows.values(), strict=True)]
    return np.array([(t - PRIME if t > PRIME // 2 else t) / SCALE for t in totals]), given.senders


async def discover(fed):
    state = await fed.restore({"truth": np.zeros(OBJECTS), "rounds": []})
    while len(state["rounds"]) < ROUNDS:
        number, givers, total = len(state["rounds"]), fed.parties, None
        message = {"truth": state["truth"]}
        if number:
            (total,), givers = await shared_sum(fed, givers, give_distances, message, (number, "distances"))
        sums, givers = await shared_sum(fed, givers, give_terms, {**message, "distances": total}, (number, "terms"))
        truth = sums[:OBJECTS] / sums[OBJECTS:]
        fed.record({"truth": truth.tolist(), "distances": total})
        state = {"truth": truth, "rounds": [*state["rounds"], givers.names]}
        await fed.checkpoint(state)
    return {**state, "served": (await fed.ask_all(fed.parties, times_served)).values}


def in_one_place(answers, lost):
    """CRH on all answers of those who can be in each step."""
    truth = np.zeros(OBJECTS)
    for number in range(ROUNDS):
        here = [i for i in answers if i not in lost.get((number, "distances"), [])]
        d = {i: distance(answers[i], truth) for i in here}
        weights = {i: np.log(sum(d.values()) / d[i]) if number else 1.0 for i in here}
        here = [i for i in here if i not in lost.get((number, "terms"), [])]
        matrix, w = np.array([answers[i] for i in here]), np.array([weights[i] for i in here])[:, None]
        truth = np.nansum(w * matrix, axis=0) / (w * ~np.isnan(matrix)).sum(axis=0)
        yield here, truth


TRUTH = np.array([10.0, -4.0, 2.5])
LATE = {"client-2": 7.0, "client-0": 3.0, "client-3": 2.0, "client-5": 4.0}
LOST = {(1, "terms"): [6], (2, "distances"): [4]}


@pytest.mark.quick("inline*", "batched-lost0")
@pytest.mark.parametrize(("engine", "lost"), on_every_engine((LOST,), ({},)), indirect=["engine"])
def test_the_truth_is_that_of_those_in_time(survive, lost):
    rng, spread = np.random.default_rng(0), np.array([0.1, 0.1, 0.1, 0.2, 0.2, 6.0, 0.1])
    answers = TRUTH + rng.normal(size=(USERS, OBJECTS)) * spread[:, None]
    answers[rng.random(answers.shape) < 0.2] = np.nan
    crashes = {f"give_{step}/@{number}/{step}": [f"client-{i}" for i in who] for (number, step), who in lost.items()}
    people, cost = Community(list(answers)), Timetable(LATE, lost={**crashes, "add_up/@2/terms": ["client-1"]})
    life = survive(discover, people, cost=cost, points=6)
    expected = list(in_one_place({i: answers[i] for i in range(USERS) if i != 2}, lost))
    for row, in_time, (here, truth) in zip(life.records["main"], life.result["rounds"], expected, strict=True):
        assert in_time == [f"client-{i}" for i in here]
        np.testing.assert_allclose(row["truth"], truth, atol=1e-6)
    first, last = (np.abs(life.records["main"][i]["truth"] - TRUTH).max() for i in (0, -1))
    assert last < 0.25 < 1.0 < first
    assert life.result["served"] == [1, 6, 0, 7, 7, 0, 7]  # the four fastest of each step; nobody else works
    assert_true_bytes(life, discover, people, cost)
