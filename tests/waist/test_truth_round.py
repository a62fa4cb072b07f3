"""Truth discovery on shared answers: a weighted mean whose terms nobody sees, with users who come late to a step.

Weights follow the distance to the last truth (CRH, Li et al. 2014). Every user shares its term among all (Shamir); the server fixes who was in time;
each user who is there adds up the shares it holds of those, and any ``THRESHOLD`` of the sums reveal the total.
"""

from __future__ import annotations

import numpy as np
from shamir import PRIME, join, split

from atoll.core.cohort import Community
from atoll.core.task import task
from atoll.testing import Timetable

SCALE, THRESHOLD, USERS = 2**30, 4, 7


def weight(x, truth):
    return 1.0 / (0.1 + (x - truth) ** 2)


@task
def give(island, message):
    w = weight(island.data, message["truth"])
    names = message["names"]
    parts = [split(round(term * SCALE), names, THRESHOLD, island.secret) for term in (w * island.data, w)]
    for name in names:
        island.post(name, [part[name] for part in parts])


@task
def add_up(island, message):
    letters = [island.inbox[name] for name in message]
    island.state = (island.state or 0) + 1
    return [(sum(int.from_bytes(letter[i]) for letter in letters) % PRIME).to_bytes(16) for i in range(2)]


@task
def rounds_served(island, message):
    return island.state or 0


def opened(sums, names, which):
    total = join({name: row[which] for name, row in list(sums.items())[:THRESHOLD]}, names)
    return (total - PRIME if total > PRIME // 2 else total) / SCALE


async def discover(fed):
    state = await fed.restore({"truth": 0.0, "rounds": []})
    names = fed.parties.names
    while len(state["rounds"]) < 4:
        number = len(state["rounds"])
        terms = {"quorum": THRESHOLD, "at": number}
        message = {"truth": state["truth"], "names": names}
        shared = await fed.exchange(fed.parties, give, message, deadline=5.0, **terms)
        in_time = shared.senders.names
        mail = shared.mail.only_from(set(in_time))
        sums = await fed.exchange(fed.parties, add_up, in_time, mail=mail, accept=THRESHOLD, **terms)
        truth = opened(sums.by_name(), names, 0) / opened(sums.by_name(), names, 1)
        fed.record({"truth": truth})
        state = {"truth": truth, "rounds": [*state["rounds"], in_time]}
        await fed.checkpoint(state)
    return {**state, "served": (await fed.ask_all(fed.parties, rounds_served)).values}


def test_the_truth_is_that_of_those_in_time(survive):
    answers = np.array([9.5, 10.5, 10.0, 9.8, 30.0, -11.25, 10.2])
    late = {"client-2": 7.0, "client-0": 3.0, "client-3": 2.0, "client-5": 4.0}
    lost = {"give/@1": ["client-6"], "add_up/@2": ["client-1"]}
    life = survive(discover, Community(answers.tolist()), cost=Timetable(late, lost=lost))
    truth = 0.0
    for number, in_time in enumerate(life.result["rounds"]):
        here = [i for i in range(USERS) if i != 2 and not (number == 1 and i == 6)]
        assert in_time == [f"client-{i}" for i in here]
        w = weight(answers[here], truth)
        truth = float((w * answers[here]).sum() / w.sum())
        assert abs(life.records["main"][number]["truth"] - truth) < 1e-6
    assert 9 < life.result["truth"] < 11
    assert life.result["served"] == [1, 3, 0, 4, 4, 0, 4]  # the four fastest of each round; nobody else works
