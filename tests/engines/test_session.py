"""Roles that a process plays."""

from __future__ import annotations

import asyncio

from atoll.core.execution.session import LocalPeers
from atoll.engines.worker import Actors, answer_of


async def says(target, message, sent):
    raise AssertionError("nobody speaks here")


async def steps():
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_role_that_is_stopped_as_it_begins_answers_all_the_same():
    async def program():
        actors, answers = Actors(), []

        async def play(session, work):
            answers.append((session, await answer_of(work)))
            actors.end((session, "a"))

        actors.stop(1)  # of which nothing has begun
        for session in (1, 2):
            work = asyncio.get_running_loop().create_future()
            actors.begin((session, "a"), LocalPeers("a", ["b"], says, 0.0), play(session, work))
        actors.stop(1)  # before a first step
        actors.stop(1)
        await steps()
        assert not actors.playing(1)
        assert actors.playing(2)
        work.set_result({"ran": []})
        actors.stop(2)  # its answer is there
        await steps()
        return answers

    (first, stopped), (second, answer) = asyncio.run(program())
    assert (first, second, answer) == (1, 2, {"ran": []})
    assert "another role of the session failed" in str(stopped["error"])
