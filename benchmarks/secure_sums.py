"""The cost of masks: 100 clients x 1M parameters, 10 % of them lost, next to the raw keystream and to Flower's SecAgg+.

    python benchmarks/secure_sums.py [--clients 100] [--size 1000000] [--neighbours 24] [--flower PYTHON] [--keystream]
    python benchmarks/secure_sums.py --bounded --clients 100 --size 100000     # norms checked by two servers, next to no check
    python benchmarks/secure_sums.py --rounds 20 --clients 20 --size 100000    # keys agreed once, next to keys for each sum

Everything runs in one process on one core, except Flower's simulation, which has two actors. Processor time is that of this process, which other work on the
machine changes little. ``--flower`` names the Python of an environment with
``flwr[simulation]``. Words have 32 bits, as Flower's.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from atoll.core.algebra.aggregate import Mean
from atoll.core.federation.federation import run_program
from atoll.core.requests.cohort import Community
from atoll.core.requests.task import Batch, task
from atoll.core.time.clock import run
from atoll.core.world import World
from atoll.engines import Batched
from atoll.reducers import BoundedSum, MultiRound, SecureAggregation, TwoServers
from atoll.secure import FixedPoint
from atoll.secure.keystream import add_stream
from atoll.testing import Timetable

HERE = Path(__file__).parent


def rows_many(cohort, message):
    """One client a block, so that one update is in memory at a time."""
    for i in range(len(cohort)):
        yield Batch(
            np.array([i]), {"w": Mean({"w": (message * np.float32(cohort.shard(i)))[None]}, examples=np.array([10.0]))}
        )


@task(many=rows_many)
def rows(island, message):
    return {"w": Mean({"w": message * np.float32(island.data)}, examples=10.0)}


def codec(clients: int) -> FixedPoint:
    """Words of 32 bits for this cohort."""
    return FixedPoint(
        value_bits=32 - 4 - max(0, clients - 1).bit_length(), weight_bits=4, max_weight=16.0, value_range=1.0
    )


def sum_of(reducer, clients: int, size: int, lost: float) -> tuple[float, float, float, float]:
    """Seconds of one sum, processor seconds, its largest error, and bytes up a client."""
    base = np.random.default_rng(0).uniform(-0.5, 0.5, size).astype(np.float32)
    factors = np.linspace(0.5, 1.0, clients)
    gone = [f"client-{i}" for i in range(0, clients, max(1, round(1 / lost)))] if lost else []
    world = World(
        Community(list(factors)), Batched(), cost=Timetable(lost={":masked/": gone, "secure_sums:rows/": gone})
    )
    began, work = time.perf_counter(), time.process_time()
    found = run(run_program(world, lambda fed: fed.sum(fed.parties, rows, base, reducer=reducer)))[0]
    seconds, own = time.perf_counter() - began, time.process_time() - work
    kept = [f for i, f in enumerate(factors) if f"client-{i}" not in gone]
    error = float(np.abs(found["w"]["w"] - base * np.mean(kept)).max())
    return seconds, own, error, found.bytes_up / clients


def many_sums(reducer, clients: int, size: int, rounds: int) -> list[dict[str, float]]:
    """Each of some sums in a row, with letters that are really sealed: processor seconds, bytes up a client, letters and supersteps."""
    base = np.random.default_rng(0).uniform(-0.5, 0.5, size).astype(np.float32)
    world = World(Community(list(np.linspace(0.5, 1.0, clients))), Batched(), sealing="real")
    made: list[dict[str, float]] = []

    class Counting(type(world.engine)):
        async def run(self, request, positions):
            made[-1]["supersteps"] += 1
            return await super().run(request, positions)

        async def fold(self, request, positions):
            made[-1]["supersteps"] += 1
            return await super().fold(request, positions)

    world.engine.__class__ = Counting

    async def program(fed):
        for i in range(rounds):
            made.append({"supersteps": 0})
            letters, began, work = fed.bytes()["messages_relayed"], time.perf_counter(), time.process_time()
            found = await fed.sum(fed.parties, rows, base, reducer=reducer, at=i)
            made[-1] |= {
                "seconds": time.perf_counter() - began,
                "cpu": time.process_time() - work,
                "bytes": found.bytes_up / clients,
                "letters": fed.bytes()["messages_relayed"] - letters,
            }

    run(run_program(world, program))
    return made


def standing(given) -> None:
    """The cost of a sum whose keys are made anew next to one whose keys were agreed before; medians over the sums after the first."""
    for server in ("honest", "active"):
        once = SecureAggregation(server=server, codec=codec(given.clients))
        lasting = MultiRound(server=server, codec=codec(given.clients), sums=given.rounds)
        for reducer in (once, lasting):
            many_sums(reducer, given.clients, 100, 2)
            first, *rest = many_sums(reducer, given.clients, given.size, given.rounds)
            usual = {name: statistics.median(row[name] for row in rest) for name in first}
            mean = {name: (first[name] + sum(row[name] for row in rest)) / given.rounds for name in first}
            over = {
                name: row["bytes"] - 4 * given.size
                for name, row in (("first", first), ("usual", usual), ("mean", mean))
            }
            print(
                f"{type(reducer).__name__}, {server} server, {given.clients} clients x {given.size}, {given.rounds} sums: "
                + "; ".join(
                    f"{name} {row['cpu']:.2f} s of a processor, {over[name] / 1e3:.1f} kB up a client beside its words, {row['letters']:.0f} letters, {row['supersteps']:.2f} supersteps"
                    for name, row in (("first", first), ("usual", usual), ("mean", mean))
                ),
                flush=True,
            )


def bounded(clients: int, size: int) -> None:
    """A sum at two servers without and with a check of every norm; a tenth of the clients are beyond it."""
    base = np.random.default_rng(0).normal(size=size).astype(np.float32)
    base /= np.linalg.norm(base)
    factors = np.linspace(0.5, 1.0, clients)
    factors[::10] = 5.0
    people = {f"client-{i}": factor for i, factor in enumerate(factors)}
    helpers = dict.fromkeys(("first-server", "second-server", "dealer"))
    for reducer in (TwoServers(), BoundedSum(norm=1.0, max_weight=16.0)):
        world = World(Community(people, others=helpers), Batched())

        async def program(fed, reducer=reducer):
            began, work = time.perf_counter(), time.process_time()
            found = await fed.sum(fed.where("client"), rows, base, reducer=reducer)
            return found, time.perf_counter() - began, time.process_time() - work, fed.bytes()

        found, seconds, own, sent = run(run_program(world, program))[0]
        kept = [f for f in factors if f <= 1.0 or not isinstance(reducer, BoundedSum)]
        error = float(np.abs(found["w"]["w"] - base * np.mean(kept)).max())
        between = sent["bytes_relayed"] / 1e6
        print(
            f"{type(reducer).__name__}, {clients} clients x {size}: {found.n} in the sum, {seconds:.1f} s ({own:.1f} s of a processor), "
            f"{sent['bytes_up'] / 1e6:.0f} MB up, {between:.0f} MB relayed, error {error:.1e}",
            flush=True,
        )


def raw_keystream(streams: int, size: int) -> tuple[float, float]:
    """Seconds and processor seconds of the bare keystream of all parties, written and not added: the library's calls alone."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    zeros, out = bytes(1 << 18), bytearray((1 << 18) + 16)
    few = min(streams, 200)
    began, work = time.perf_counter(), time.process_time()
    for _ in range(few):
        stream = Cipher(algorithms.AES(os.urandom(16)), modes.CTR(bytes(16))).encryptor()
        for start in range(0, 4 * size, 1 << 18):
            stream.update_into(zeros[: 4 * size - start], out)
    return (time.perf_counter() - began) * streams / few, (time.process_time() - work) * streams / few


def keystreams() -> None:
    """Gigabytes a second of three generators, the best of seven runs."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    zeros, out = bytes(8 << 20), bytearray((8 << 20) + 16)
    made = {
        "AES-256-CTR": lambda: Cipher(algorithms.AES(os.urandom(32)), modes.CTR(bytes(16))),
        "AES-128-CTR": lambda: Cipher(algorithms.AES(os.urandom(16)), modes.CTR(bytes(16))),
        "ChaCha20": lambda: Cipher(algorithms.ChaCha20(os.urandom(32), bytes(16)), None),
    }
    for name, make in made.items():
        times = []
        for _ in range(7):
            began = time.perf_counter()
            make().encryptor().update_into(zeros, out)
            times.append(time.perf_counter() - began)
        print(
            f"{name}: {(8 << 20) / min(times) / 1e9:.2f} GB/s at best, {(8 << 20) / statistics.median(times) / 1e9:.2f} in the median"
        )
    into = np.zeros(2 << 20, dtype=np.uint32)
    times = []
    for _ in range(7):
        began = time.perf_counter()
        add_stream(into, os.urandom(32))
        times.append(time.perf_counter() - began)
    print(f"AES-256-CTR made and added: {(8 << 20) / min(times) / 1e9:.2f} GB/s at best")


def flower(python: str, mode: str, clients: int, size: int, neighbours: int, lost: float) -> tuple[float, float]:
    """Seconds and processor seconds of Flower's SecAgg+ in its own environment; those of its simulation are of all its processes."""
    words = [python, str(HERE / "peers" / "flower_secagg.py"), mode, clients, size, neighbours, lost]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([*map(str, words)], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr[-3000:])
    said = json.loads(done.stdout.strip().splitlines()[-1])
    return float(said["seconds"]), float(said["cpu"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--size", type=int, default=1_000_000)
    parser.add_argument("--neighbours", type=int, nargs="*", default=[24, 0])
    parser.add_argument("--lost", type=float, default=0.1)
    parser.add_argument("--flower", default="")
    parser.add_argument("--modes", nargs="*", default=["bare", "simulation"])
    parser.add_argument("--keystream", action="store_true")
    parser.add_argument("--rounds", type=int, default=0, help="sums in a row, with keys for each and with keys for all")
    parser.add_argument("--bounded", action="store_true", help="check norms at two servers")
    given = parser.parse_args()
    if given.bounded:
        bounded(given.clients, given.size)
        return
    if given.rounds:
        standing(given)
        return
    if given.keystream:
        keystreams()
        return
    for degree in given.neighbours:
        k = degree or given.clients - 1
        streams = given.clients * (k + 1)
        reducer = SecureAggregation(threshold=0.5, neighbours=degree or None, codec=codec(given.clients))
        sum_of(
            reducer, given.clients, 100, given.lost
        )  # loads the libraries, as the peer's functions are loaded before they are timed
        raw, raw_cpu = raw_keystream(streams, given.size)
        ours, own, error, up = sum_of(reducer, given.clients, given.size, given.lost)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(
            f"{given.clients} clients x {given.size}, {k} neighbours, {given.lost:.0%} lost: {ours:.1f} s ({own:.2f} s of a processor), raw keystream {raw:.1f} s "
            f"({raw_cpu:.2f} s; {own / raw_cpu:.2f}x), {up / given.size:.2f} bytes a parameter, error {error:.1e}, peak {peak:.2f} GiB",
            flush=True,
        )
        for mode in given.modes if given.flower else ():
            theirs, cpu = flower(given.flower, mode, given.clients, given.size, k, given.lost)
            print(
                f"  Flower, {mode}: {theirs:.1f} s, {theirs / ours:.1f} times ours; {cpu:.2f} s of a processor, {cpu / own:.1f} times ours",
                flush=True,
            )


if __name__ == "__main__":
    main()
