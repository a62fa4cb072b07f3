"""What decides whether a reply is in a sum decides the same for single replies and for blocks."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

from atoll.core.algebra.aggregate import Mean
from atoll.core.execution.sum_builder import describe_refusal, oversize, unfit, unfit_total
from atoll.core.requests.cohort import Community
from atoll.core.requests.policy import SitePolicy
from atoll.core.requests.task import Batch, Task
from atoll.core.world import World
from atoll.engines.inline import Inline
from atoll.stages import Clip
from atoll.testing import live

VALUES = np.array([[1.0, 2.0], [np.nan, 1.0], [3.0, 4.0], [1.0, np.inf]])


class InBlocks(Inline):
    """Inline, with the blocks of a task's ``many``."""

    vectorised: ClassVar[bool] = True


def _one(island, message):
    return {"u": Mean(VALUES[island.party.position], examples=1.0)}


def _many(cohort, message):
    yield Batch(np.arange(len(cohort)), {"u": Mean(VALUES[cohort.positions], examples=np.ones(len(cohort)))})


def outcome(engine, uplink, policy):
    """``(positions in the sum, why others are not)``."""
    task = Task("t:some", _one, many=_many)
    world = World(Community([None] * len(VALUES)), engine(), policy=policy, registry={"t:some": task})

    async def program(fed):
        got = await fed.sum(fed.parties, task, uplink=uplink, quorum=0)
        return list(got.senders.names), got.rejected

    return live(world, program).result


@pytest.mark.parametrize("uplink", [(), (Clip(1.0),)], ids=["plain", "clipped"])
@pytest.mark.parametrize("largest", [None, 1, 10_000])
@pytest.mark.parametrize("stages", [(), (Clip(0.5),)], ids=["any", "stricter"])
def test_single_replies_and_blocks_are_kept_out_for_the_same_reasons(uplink, largest, stages):
    policy = SitePolicy(stages=stages, largest_reply=largest)
    assert outcome(Inline, uplink, policy) == outcome(InBlocks, uplink, policy)


def test_the_words_of_a_refusal():
    reply = Mean({"w": np.array([1.0, np.nan])}, examples=1.0)
    assert unfit("u", reply) == "u/w is not finite"
    assert unfit("u", reply, encoded=True) == unfit_total("u", reply.total()) == "u/w is not finite once encoded"
    assert unfit("u", Mean(np.ones(2), examples=np.inf)) == "u is not finite"
    assert unfit("u", Mean(np.ones(2), examples=1.0)) == ""
    error = oversize(11, 10)
    assert error is not None
    assert describe_refusal(error).startswith("refused by its policy: a reply of 11 bytes is larger than 10")
    assert oversize(10, 10) is oversize(10**9, None) is None
