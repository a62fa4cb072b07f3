"""The public laws pass for parts that keep them and name what is broken in parts that do not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from atoll.algorithms import FedAvg, FedSGD
from atoll.core import message as M
from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Mean
from atoll.core.requests.chain import Chain
from atoll.core.requests.cohort import Community
from atoll.core.requests.stage import Identity, Stage
from atoll.core.requests.task import Batch, task
from atoll.engines import Inline
from atoll.stages import Clip
from atoll.testing import check_algorithm, check_engine, check_stage, check_task_many
from atoll.testing.conformance.tasks import Dither, scale


@dataclass(frozen=True)
class Rounding(Stage):
    """Rounds at random, up or down, so that the mean is kept."""

    step: float = 0.5
    linear: ClassVar[bool] = False

    def encode(self, value, context):
        draw = context.rng.generator()

        def one(leaf):
            low = np.floor(leaf / self.step)
            return ((low + (draw.random(leaf.shape) < leaf / self.step - low)) * self.step).astype(leaf.dtype)

        return T.map(one, value)


@dataclass(frozen=True)
class Floor(Rounding):
    def encode(self, value, context):
        return T.map(lambda leaf: (np.floor(leaf / self.step) * self.step).astype(leaf.dtype), value)


@dataclass(frozen=True)
class Forgets(Identity):
    def decode(self, total, public, n):
        return T.map(lambda leaf: leaf / n, total)


@dataclass(frozen=True)
class Spoils(Identity):
    def encode(self, value, context):
        value["w"] *= 2
        return value


@dataclass(frozen=True)
class Widens(Identity):
    def decode(self, total, public, n):
        return T.map(lambda leaf: leaf.astype(np.float64), total)


@dataclass(frozen=True)
class Leaks(Identity):
    def sensitivity(self, before):
        return 1.0


@dataclass(frozen=True)
class WrongBlock(Identity):
    def encode_block(self, block, context):
        return T.map(lambda leaf: leaf[::-1], block)


@dataclass(frozen=True)
class Written(Identity):
    """Sends one piece of bytes, as a compressor does, without saying so."""

    def encode(self, value, context):
        return {"like": value, "raw": M.encode(value)}

    def decode(self, total, public, n):
        return M.decode(total["raw"])


@pytest.mark.parametrize("stage", [Identity(), Clip(0.5), Dither(0.1), Rounding(), Rounding(0.01)])
def test_good_stages(stage):
    check_stage(stage)


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        (Floor(), "says it is unbiased"),
        (Forgets(), "says it is summable"),
        (Spoils(), "encodes differently|changes the value"),
        (Widens(), "comes back as float64"),
        (Leaks(), "bounds changes by 1.0 and lets"),
        (WrongBlock(), "row 0 of a block"),
        (Written(), "something else than numbers at the same places; set packs = True"),
    ],
)
def test_bad_stages(stage, words):
    with pytest.raises(AssertionError, match=words):
        check_stage(stage)


def blocks(cohort, message, factor=1.0, keep_state=True) -> Iterator[Batch]:
    rows = np.arange(len(cohort))
    x = np.array([cohort.shard(i) for i in rows]) * factor
    states = {"x": x} if keep_state else None
    yield Batch(rows, {"x": Mean({"x": x + message}, examples=x)}, states)


@task(many=blocks)
def plus(island, message):
    island.state = {"x": np.float64(island.data)}
    return {"x": Mean({"x": np.float64(island.data + message)}, examples=island.data)}


PEOPLE = Community([1.0, 2.0, 5.0, 7.0])


def test_good_tasks():
    check_task_many(plus, PEOPLE, 3.0)
    check_task_many(scale, PEOPLE, {"w": np.arange(3.0) - 1})
    check_task_many(scale, PEOPLE, {"w": np.ones(3)}, uplink=Chain([Dither(0.5)]))


def test_bad_tasks():
    wrong = replace(plus, many=lambda cohort, message: blocks(cohort, message, 1.01))
    with pytest.raises(AssertionError, match=r"cohort 'everyone', round 1: sums/x/value/x: .* is not"):
        check_task_many(wrong, PEOPLE, 3.0)
    forgets = replace(plus, many=lambda cohort, message: blocks(cohort, message, keep_state=False))
    with pytest.raises(AssertionError, match="states of"):
        check_task_many(forgets, PEOPLE, 3.0)
    with pytest.raises(AssertionError, match="offers no `many`"):
        check_task_many(replace(plus, many=None), PEOPLE, 3.0)


class Grows(FedAvg):
    def fold(self, state, sums, info, phase):
        return {
            **super().fold(state, sums, info, phase),
            "params": T.add(state["params"], T.scale(sums["update"], -5.0)),
        }


class Mutates(FedAvg):
    def fold(self, state, sums, info, phase):
        state["params"]["bias"] += 1.0
        return super().fold(state, sums, info, phase)


class Wide(FedAvg):
    def fold(self, state, sums, info, phase):
        params = T.map(lambda leaf: leaf * np.float64(1.0), super().fold(state, sums, info, phase)["params"])
        return {"params": params, "lr": state["lr"]}


class Mute(FedAvg):
    def broadcast(self, state, phase):
        return {"weights": state["params"], "lr": self.lr}


@pytest.mark.parametrize("algorithm", [FedAvg(lr=0.1), FedAvg(lr=0.05, epochs=3, decay=0.9), FedSGD(lr=0.1)])
def test_good_algorithms(algorithm):
    check_algorithm(algorithm)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Grows, "the loss went from"),
        (Mutates, "from a checkpoint|changes what"),
        (Wide, "float64"),
        (Mute, "no 'params'"),
    ],
)
def test_bad_algorithms(kind, words):
    with pytest.raises(AssertionError, match=words):
        check_algorithm(kind(lr=0.1))


class Loses(Inline):
    async def fold(self, request, positions):
        return await super().fold(request, positions[:-1])


class ForgetsState(Inline):
    async def commit(self, slot, generation, *, full=False):
        return []


class Repeats(Inline):
    async def run(self, request, positions):
        self.host.journal._kept.clear()
        return await super().run(request, positions)


@pytest.mark.every(2)
@pytest.mark.parametrize("kind", [Loses, ForgetsState, Repeats])
def test_bad_engines(kind):
    with pytest.raises(AssertionError, match=r"sum|private|result|different answers|spent"):
        check_engine(kind)
