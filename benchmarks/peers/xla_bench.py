"""One hand-written XLA program: a whole federated round as a single compiled JAX function.

The data and the plan live on the device; a round gathers its cohort, scans the SGD steps of every
client and averages. `--set block=` is the number of clients vectorised together (0: all); blocks
follow one another in a scan that adds their parameters up, so that a block stays in cache.
`--set unroll=` is the number of SGD steps unrolled. With two "processes" it stays one process, and
the cohort is split over two XLA host devices (`shard_map`).
"""

from __future__ import annotations

import os
import sys

# The device count and thread pool are fixed when JAX is imported, so they are read from argv here.
PROCESSES = int(sys.argv[sys.argv.index("--processes") + 1]) if "--processes" in sys.argv else 1
FLAGS = f"--xla_force_host_platform_device_count={PROCESSES}"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}".strip()

import time
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from peers.contract import Stopwatch, arguments, report
from workloads import Plan, Workload, load

Params = tuple[jax.Array, ...]


def loss(params: Params, x: jax.Array, y: jax.Array) -> jax.Array:
    """Return the mean cross-entropy of a linear model, or of one hidden ReLU layer."""
    *hidden, weight, bias = params
    if hidden:
        x = jax.nn.relu(x @ hidden[0].T + hidden[1])
    logits = jax.nn.log_softmax(x @ weight.T + bias)
    return -(jax.nn.one_hot(y, weight.shape[0]) * logits).sum(axis=1).mean()


def client(w: Workload, unroll: int, params: Params, x: jax.Array, y: jax.Array, order: jax.Array):
    """Run one client's local training; `order` is [steps, batch]."""

    def step(params: Params, index: jax.Array) -> tuple[Params, None]:
        gradient = jax.grad(loss)(params, x[index], y[index])
        return tuple(p - w.lr * g for p, g in zip(params, gradient, strict=True)), None

    return lax.scan(step, params, order, unroll=unroll)[0]


def layout(w: Workload, block: int, unroll: int) -> Callable[..., Params]:
    """Return a function from (params, x, y, order) of many clients to the sum of their parameters."""
    one = partial(client, w, unroll)

    def summed(params: Params, *data: jax.Array) -> Params:
        def body(total: Params, part: tuple[jax.Array, ...]) -> tuple[Params, None]:
            if block == 1:
                trained = one(params, *(a[0] for a in part))
            else:
                each = jax.vmap(one, in_axes=(None, 0, 0, 0))(params, *part)
                trained = tuple(p.sum(axis=0) for p in each)
            return tuple(t + p for t, p in zip(total, trained, strict=True)), None

        parts = tuple(a.reshape(-1, block or len(a), *a.shape[1:]) for a in data)
        return lax.scan(body, tuple(map(jnp.zeros_like, params)), parts)[0]

    return summed


def compiled_round(plan: Plan, block: int, unroll: int):
    """Place the data on the device(s) and compile one round; return it with its inputs."""
    w = plan.workload
    mesh = Mesh(np.array(jax.devices()), ("cohort",))
    everywhere = NamedSharding(mesh, PartitionSpec())
    summed = layout(w, block, unroll)

    def shard(params: Params, x, y, clients, order) -> Params:
        total = summed(params, x[clients], y[clients], order)
        return jax.tree.map(lambda p: lax.psum(p, "cohort") / w.cohort, total)

    split = PartitionSpec("cohort")
    none = PartitionSpec()
    whole = jax.shard_map(shard, mesh=mesh, in_specs=(none, none, none, split, split), out_specs=none, check_vma=False)

    def fn(params: Params, x, y, schedule, order, number) -> Params:
        steps = order[number].reshape(w.cohort, w.steps, w.batch)
        return whole(params, x, y, schedule[number], steps)

    place = partial(jax.device_put, device=everywhere)
    data = tuple(map(place, (plan.x, plan.y.astype(np.int32), plan.schedule, plan.order)))
    params = tuple(place(p) for p in plan.initial)
    number = place(np.int32(0))
    begun = time.perf_counter()
    program = jax.jit(fn, donate_argnums=0).lower(params, *data, number).compile()
    seconds = time.perf_counter() - begun
    return program, params, data, place, seconds


def main() -> None:
    """Run the peer."""
    args = arguments(__doc__ or "")
    plan = load(args.workload)
    w = plan.workload
    if w.model == "cnn":
        raise SystemExit("the XLA program is written for LR and MLP only")
    block = int(args.options.get("block", DEFAULTS[w.name][0]))
    unroll = int(args.options.get("unroll", DEFAULTS[w.name][1]))
    program, params, data, place, seconds = compiled_round(plan, block, unroll)
    numbers = [place(np.int32(i)) for i in range(args.rounds)]
    jax.block_until_ready(numbers)
    watch = Stopwatch()
    for number in numbers:
        params = jax.block_until_ready(program(params, *data, number))
        watch.lap()
    report(
        peer="XLA",
        version=f"jax {jax.__version__}",
        workload=w,
        processes=args.processes,
        laps=watch.laps,
        weights=[np.asarray(p) for p in params],
        out=args.out,
        compile_seconds=seconds,
        notes=f"block={block} unroll={unroll}",
    )


# Block and unrolling: the fastest found for each workload on two cores.
DEFAULTS = {"lr": (0, 5), "mlp": (1, 5), "silos": (1, 5)}

if __name__ == "__main__":
    main()
