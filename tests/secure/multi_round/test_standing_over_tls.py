"""Masked sums with standing keys between processes over mutual TLS: kill -9 of the sites and of the server's program in the middle of many sums, and a server that lies after it."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import numpy as np
import pytest

from atoll.core.algebra.aggregate import Sum
from atoll.core.errors import PolicyError, QuorumError
from atoll.core.federation.federation import run_program
from atoll.core.requests.cohort import Community
from atoll.core.requests.task import task
from atoll.core.time.clock import Clock, run
from atoll.core.world import World
from atoll.reducers import MultiRound
from atoll.secure.masking.party_steps import label_of
from atoll.secure.multi_round import masked, reveal, vote

# Each has a quick sibling in one process, in `test_multi_round`.
pytestmark = pytest.mark.slow
PARTIES = 6
WHOLE = (np.arange(4) * 21.0).tolist()


@task
def squares(island, message):
    return {"x": Sum(np.arange(4) * island.data * message)}


async def sums(fed, count=4):
    """Sums one after another, each with a checkpoint; how many set-ups they took."""
    state = await fed.restore({"done": 0, "set_ups": 0})
    for i in range(int(state["done"]), count):
        got = await fed.sum(fed.parties, squares, 1.0, reducer=MultiRound(), at=i)
        assert (got["x"].tolist(), got.n) == (WHOLE, PARTIES)
        state = {"done": i + 1, "set_ups": int(state["set_ups"]) + got.counts["key_set_ups"]}
        await fed.checkpoint(state)
    return int(state["done"]), int(state["set_ups"])


@pytest.fixture(scope="module")
def bridge(tmp_path_factory):
    from tests.support.bridge import Bridge
    from tests.support.certificates import authority

    made = Bridge(tmp_path_factory.mktemp("bridge"), "tcp", authority())
    yield made
    made.close()


def under(bridge, lies=None, program=sums, **kept):
    engine = bridge.engine()
    if lies is not None:
        engine.__class__ = type("Lying", (lies, type(engine)), {})
    people = Community([float(i + 1) for i in range(PARTIES)])
    world = World(people, engine, clock=Clock(virtual=False), sealing="real", **kept)
    return run(run_program(world, program), virtual=False)[0]


def test_one_set_up_serves_the_sums_of_an_honest_server(bridge):
    assert under(bridge) == (4, 1)


@pytest.mark.parametrize("step", [masked.name, vote.name, reveal.name], ids=["masked", "vote", "reveal"])
def test_killed_in_the_middle_it_goes_on_under_the_same_keys_and_tells_nothing_twice(bridge, tmp_path, step):
    """In the third sum all sites are killed right after a step, and the program of the server with them. It resumes; the sums go on, and seeds of another set of the third are refused."""
    asked, answers = [], []

    class Killing:
        async def run(self, request, positions):
            return self.ended(request, await super().run(request, positions))

        async def fold(self, request, positions, *more):
            return self.ended(request, await super().fold(request, positions, *more))

        def ended(self, request, found):
            if "squares/@2/" in request.id and request.task.name in (vote.name, reveal.name):
                asked.append(request)
            if "squares/@2/" in request.id and request.task.name == step:
                for process in self.processes:
                    os.kill(process.pid, signal.SIGKILL)
                raise RuntimeError("all sites are killed")
            return found

    with pytest.raises(RuntimeError, match="all sites are killed"):
        under(bridge, Killing, folder=tmp_path)

    async def again(fed):
        for request in asked:
            kept = list(request.message["kept"])
            other = {**request.message, "kept": kept[:-1], "lost": [kept[-1]]}
            label = label_of(other["kept"], other["lost"])
            lie = replace(request, id=f"{request.id.rpartition('@')[0]}@{label}", message=other)
            answers.extend(await fed.world.engine.run(lie, fed.parties.positions[:-1]))
        return await sums(fed)

    assert under(bridge, program=again, folder=tmp_path, resume=True) == (4, 1)
    assert len(answers) == len(asked) * (PARTIES - 1)
    assert all(isinstance(answer.error, PolicyError) for answer in answers)


def test_other_models_to_some_give_noise_and_the_next_sum_has_new_keys(bridge):
    class TwoModels:
        def launch(self, request, positions, push):
            from tests.secure.masking.test_attacks_over_tls import telling_one_site

            if request.wraps is None or "squares/@1/" not in request.id:
                return super().launch(request, positions, push)
            with telling_one_site(self, positions, replace(request, wraps=replace(request.wraps, message=1.5))):
                return super().launch(request, positions, push)

    found = []

    async def program(fed):
        for i in range(3):
            try:
                got = await fed.sum(fed.parties, squares, 1.0, reducer=MultiRound(), at=i)
                found.append(np.abs(got["x"] - WHOLE).max())
            except QuorumError as error:
                found.append(np.inf if "masks of the sum did not cancel" in str(error) else str(error))

    under(bridge, TwoModels, program)
    assert found[0] < 1e-6
    assert found[1] > 1e3
    assert found[2] < 1e-6
