"""Measures what a reducer's half costs on the MLP cohort: one that does nothing and one that masks, next to the plain sum, one after another in each round.

    python benchmarks/wrapped.py
    python benchmarks/wrapped.py --workload lr --rounds 200

`idle` hands on the totals of a block, `idle, one by one` those of one client after another. `masked` adds its own mask
and subtracts the previous client's in a ring, both 64-bit words drawn from a seed that travels in a letter: the server
sees only sums of words. `SecureAggregation, virtual masks` has the words, steps and bytes of the
real protocol. `client by client` are the same halves on the inline engine. A line gives medians over the
rounds, wall time and processor time; every reducer must give the same update.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass
from typing import Any, ClassVar

import atoll
import numpy as np
from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Sum, Total
from atoll.core.algebra.rng import Rng
from atoll.core.federation.reducer import Plain, Reducer
from atoll.core.requests.party import Parties
from atoll.core.requests.request import Reduced
from atoll.core.requests.task import Batch, task
from atoll.core.world import World
from atoll.engines import Batched
from atoll.learn.learner import LearnerSettings
from atoll.simulation import run_in
from atoll.torch.learner import adapt

from peers import torch_model
from peers.atoll_bench import islands
from workloads import load

BITS = 24


def _idle_many(cohort: Any, message: Any) -> Any:
    for block in cohort.totals():
        reply = {f"{name}/value": Sum(total.value, role=total.role) for name, total in block.totals.items()}
        weights = {f"{name}/weight": Sum(total.weight) for name, total in block.totals.items()}
        yield Batch(block.positions, {**reply, **weights})


@task(many=_idle_many)
async def idle(island: Any, message: Any) -> Any:
    """Return its totals."""
    totals = await island.totals()
    reply = {f"{name}/value": Sum(total.value, role=total.role) for name, total in totals.items()}
    return {**reply, **{f"{name}/weight": Sum(total.weight) for name, total in totals.items()}}


@task
async def alone(island: Any, message: Any) -> Any:
    """Do the same, without a `many`."""
    return await idle.run(island, message)


def total_of(name: str, value: Any, weight: float, n: int) -> Total:
    """Return the total that the training expects."""
    return Total("mean", value, float(weight), n, "metric" if name == "loss" else "update")


@dataclass(frozen=True)
class Idle(Reducer):
    """A half that does nothing."""

    single: bool = False

    async def reduce(self, reduction: Any) -> Reduced:
        found = await reduction.fold(alone if self.single else idle)
        names = [name.removesuffix("/value") for name in found.totals if name.endswith("/value")]
        made = {
            name: total_of(
                name,
                found.totals[f"{name}/value"].value,
                found.totals[f"{name}/weight"].value,
                found.totals[f"{name}/value"].n,
            )
            for name in names
        }
        return Reduced(made, found.senders, rejected=found.rejected)


@task
def seed_for_next(island: Any, names: Any) -> Any:
    """Send a seed to the next client in the ring."""
    seed = island.secret.bytes(32)
    island.post(names[(names.index(island.name) + 1) % len(names)], seed)
    island.state = {"seed": seed}


def words(seed: bytes, size: int) -> Any:
    """Return a mask."""
    return np.random.Philox(np.random.SeedSequence(int.from_bytes(seed, "little"))).random_raw(size)


def _flat(totals: Any, i: int) -> Any:
    leaves = [leaf[i] for total in totals.values() for leaf in [*T.leaves(total.value), total.weight]]
    return np.concatenate([np.ravel(np.asarray(leaf, dtype=np.float64)) for leaf in leaves])


def _hidden(flat: Any, island: Any) -> Any:
    word = np.round(flat * 2**BITS).astype(np.int64).view(np.uint64)
    word += words(island.state["seed"], word.size)
    for seed in island.inbox.values():
        word -= words(seed, word.size)
    return word


def _masked_many(cohort: Any, message: Any) -> Any:
    for block in cohort.totals():
        rows = [_hidden(_flat(block.totals, row), cohort.island(int(i))) for row, i in enumerate(block.positions)]
        yield Batch(block.positions, {"word": Sum(np.stack(rows))})


@task(many=_masked_many)
async def masked(island: Any, message: Any) -> Any:
    """Return its totals under masks that cancel in the sum."""
    totals = {
        name: Total(t.kind, T.map(lambda leaf: np.asarray(leaf)[None], t.value), np.array([t.weight]), 1)
        for name, t in (await island.totals()).items()
    }
    return {"word": Sum(_hidden(_flat(totals, 0), island))}


@dataclass(frozen=True)
class Masked(Reducer):
    """Masks in a ring; every client must answer.

    Attributes:
        form: a reply of zeros: aggregate -> value.
    """

    form: Any = None
    secure: ClassVar[bool] = True

    async def reduce(self, reduction: Any) -> Reduced:
        names = reduction.parties.names
        first = await reduction.exchange(reduction.parties, seed_for_next, names, quorum=len(names))
        found = await reduction.fold(masked, mail=first.mail)
        flat = found.totals["word"].value.view(np.int64) / 2**BITS
        made, at = {}, 0
        for name, shape in self.form.items():
            leaves = []
            for leaf in T.leaves(shape):
                leaves.append(flat[at : at + leaf.size].reshape(leaf.shape).astype(leaf.dtype))
                at += leaf.size
            made[name] = total_of(name, T.rebuild(shape, leaves), flat[at], len(found.senders))
            at += 1
        return Reduced(made, found.senders)


def main() -> None:
    """Measure and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="mlp")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--every", type=int, default=6, help="one round in so many also runs client by client")
    parser.add_argument("--workers", type=int)
    args = parser.parse_args()
    plan = load(args.workload, mode="r")
    w = plan.workload
    model = torch_model.build(w)
    torch_model.load(model, plan.initial)
    algorithm = atoll.FedAvg(lr=w.lr, epochs=w.epochs, batch_size=w.batch)
    data = islands(plan)
    learner = adapt(model, LearnerSettings(algorithm=algorithm, compile="always"), data)
    params = learner.init(Rng.of(0))
    broadcast = {"params": params, "lr": w.lr}
    message = {"broadcast": broadcast, "phase": algorithm.phases[-1]}
    zeros = T.map(lambda leaf: np.zeros_like(np.asarray(leaf)), params)
    masks = Masked({"update": zeros, "loss": np.zeros(())})
    reducers = {
        "plain": Plain(),
        "idle": Idle(),
        "idle, one by one": Idle(single=True),
        "masked": masks,
        "SecureAggregation, virtual masks": atoll.SecureAggregation(masks="virtual"),
    }
    slow = {"idle, client by client": Idle(), "masked, client by client": masks}
    wall: dict[str, list[float]] = {name: [] for name in (*reducers, *slow)}
    work: dict[str, list[float]] = {name: [] for name in wall}

    def result(reducer: Reducer) -> Any:
        """Return the result of one sum, whose clients draw the same mini-batches under every reducer."""

        async def once(fed: Any) -> Any:
            got = await fed.sum(fed.parties[: w.cohort], learner.train, message, reducer=reducer)
            return np.concatenate([np.ravel(leaf) for leaf in T.leaves(got["update"])])

        return run_in(World(data, Batched(args.workers), registry={learner.train.name: learner.train}), once)[0]

    async def program(fed: Any) -> None:
        for number in range(args.rounds + 1):
            cohort = Parties(fed.world.roster, np.asarray(plan.schedule[number % len(plan.schedule)], dtype=np.int64))
            some = {**reducers, **slow} if number % args.every == 0 else reducers
            for name in [*list(some)[number % len(some) :], *list(some)[: number % len(some)]]:
                fed.world.engine.host.executor.vectorised = name not in slow
                began, cpu = time.perf_counter(), time.process_time()
                await fed.sum(cohort, learner.train, message, reducer=some[name], at=(name, number))
                if number:  # the first round compiles
                    wall[name].append(1e3 * (time.perf_counter() - began))
                    work[name].append(1e3 * (time.process_time() - cpu))

    world = World(data, Batched(args.workers), registry={learner.train.name: learner.train})
    run_in(world, program)
    line: dict[str, Any] = {"workload": args.workload, "choices": world.engine.choices.get("workers")}
    expected = result(Plain())
    for name, reducer in reducers.items():
        gap = float(np.abs(result(reducer) - expected).max())
        if gap > 1e-6:
            raise SystemExit(f"{name}: an entry of the update is {gap} from the plain one")
    for name in wall:
        ms, cpu = statistics.median(wall[name]), statistics.median(work[name])
        plain, own = statistics.median(wall["plain"]), statistics.median(work["plain"])
        line[name] = {
            "ms": round(ms, 2),
            "cpu_ms": round(cpu, 2),
            "ratio": round(ms / plain, 2),
            "cpu_ratio": round(cpu / own, 2),
            "rounds": len(wall[name]),
        }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
