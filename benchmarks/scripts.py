"""What a script as a client costs in a round, beyond moving the model to another process and back.

    python benchmarks/scripts.py [--rounds 30] [--sizes 10000,1000000,4500000]

Three things in turn in each round, on one client: a training whose loop is a function that returns the model (`CustomLearner`), the same training
whose loop is a script that returns it (`Script`), and the bare move: the model's bytes over a socket pair to another process and back, into memory of their own.
What the script adds is script - function - move.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import socket
import statistics
import tempfile
import time
from pathlib import Path

import atoll
import numpy as np
from atoll.models import CustomLearner, Script

TEXT = """
import atoll.client
with atoll.client.connect() as fed:
    for task in fed.rounds():
        task.reply(task.model, examples=1)
"""
ISLANDS = atoll.data.Islands.from_datasets({"only": atoll.data.Dataset({"x": np.zeros((1, 1)), "y": np.zeros(1)})})


def laps(model, rounds: int) -> list[float]:
    """Seconds of each round after the first, in which processes start."""
    stamps = []
    job = atoll.Training(
        model=model, selection=atoll.Everyone(), rounds=rounds + 1, evaluation=atoll.Evaluation(server=False),
        callbacks=[lambda row: stamps.append(time.perf_counter())],
    )  # fmt: skip
    atoll.simulate(job, ISLANDS, engine="inline")
    return np.diff(stamps).tolist()


def echo(sock: socket.socket, size: int) -> None:
    """Return what comes."""
    while (content := receive(sock, size)) is not None:
        sock.sendall(content)


def receive(sock: socket.socket, size: int) -> memoryview | None:
    """Read a model into memory of its own, as whoever trains it must have it."""
    view, done = np.empty(size, np.uint8).data, 0
    while done < size:
        count = sock.recv_into(view[done:])
        if not count:
            return None
        done += count
    return view


def moves(size: int, rounds: int) -> list[float]:
    """Seconds of each move of the model to another process and back."""
    here, there = socket.socketpair()
    process = multiprocessing.get_context("fork").Process(target=_echo, args=(here, there, 4 * size), daemon=True)
    process.start()
    there.close()
    content, found = np.zeros(size, np.float32).tobytes(), []
    for _ in range(rounds):
        begun = time.perf_counter()
        here.sendall(content)
        receive(here, 4 * size)
        found.append(time.perf_counter() - begun)
    here.close()
    process.join()
    return found


def _echo(ours: socket.socket, theirs: socket.socket, size: int) -> None:
    ours.close()
    echo(theirs, size)


def main() -> None:
    """Print a row a size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--sizes", default="10000,1000000,4500000")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "train.py"
        file.write_text(TEXT, encoding="utf-8")
        for size in map(int, args.sizes.split(",")):
            start = {"w": np.zeros(size, np.float32)}
            script = laps(Script(script=str(file), model=start), args.rounds)
            function = laps(CustomLearner(init=lambda rng, s=start: s, train=lambda p, data, rng: p), args.rounds)
            move = moves(size, args.rounds)
            medians = {
                name: 1e3 * statistics.median(values)
                for name, values in (("script", script), ("function", function), ("move", move))
            }
            added = medians["script"] - medians["function"] - medians["move"]
            rows.append(
                {
                    "parameters": size,
                    **{f"{k}_ms": round(v, 2) for k, v in medians.items()},
                    "added_ms": round(added, 2),
                }
            )
            print(json.dumps(rows[-1]), flush=True)


if __name__ == "__main__":
    main()
