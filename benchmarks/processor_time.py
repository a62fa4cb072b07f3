"""Rounds of convolutional networks by processor time: Atoll next to a bare PyTorch loop, a process and one thread each, in turn.

    python benchmarks/processor_time.py                     # the ResNet of real.py, FixMatch and SimCLR of labels.py, two runs each
    python benchmarks/processor_time.py --works resnet --runs 1

Other work on the machine changes processor time less than the clock. The first round is left out. A cohort of `labels.py` is five clients here.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
from torch import nn

WORKS = {"resnet": 8, "fixmatch-cnn": 4, "simclr-cnn": 4}  # and rounds


def parts(work: str, rounds: int) -> tuple[Any, list[list[int]], Any, Any]:
    """Return the bare loop, its cohorts, and the job and data of Atoll."""
    import atoll
    from atoll.data import Dataset, Islands

    if work == "resnet":
        from peers.real_peer import Loop
        from peers.real_works import WORKS as REAL
        from peers.real_works import model_of, plan_of

        kind, plan = REAL[work], plan_of(REAL[work], rounds)
        data = Dataset({"x": plan.x, "y": plan.y}, task="classification", classes=kind.classes)
        owner = np.repeat(np.arange(len(plan.offsets) - 1), np.diff(plan.offsets))
        method: Any = atoll.FedAvg(lr=kind.lr, epochs=kind.epochs, batch_size=kind.batch)
        model, loop, cohorts = model_of(kind), Loop(kind, plan), plan.cohorts
    else:
        import labels

        loop, cohorts = labels.Loop(work), [cohort[:5] for cohort in labels.cohorts(rounds)]
        model, method = labels.model_of(work), labels.method_of(work)
        data = Dataset(labels.rows_of(), classes=labels.CLASSES)
        owner = np.repeat(np.arange(labels.CLIENTS), labels.ROWS)
    job = atoll.Training(
        model=model,
        algorithm=method,
        selection=atoll.Schedule(cohorts),
        rounds=rounds,
        evaluation=atoll.Evaluation(server=False),
        compile="auto" if work == "resnet" else "always",
    )
    return loop, cohorts, job, Islands.from_owner(data, owner, int(owner.max()) + 1)


def measured(peer: str, work: str) -> float:
    """Return the processor seconds of a peer's rounds after the first, in this process."""
    from dataclasses import replace

    import atoll

    torch.set_num_threads(1)
    loop, cohorts, job, data = parts(work, WORKS[work])
    clock = [time.process_time()]
    if peer == "atoll":
        job = replace(job, callbacks=[lambda row: clock.append(time.process_time())])
        atoll.simulate(job, data, engine="batched", workers=1, seed=7, progress=False)
        return clock[-1] - clock[1]
    source = nn.utils.parameters_to_vector(loop.parameters).detach().clone()
    total = torch.zeros_like(source)
    sizes = np.diff(loop.plan.offsets) if work == "resnet" else np.ones(1 + max(map(max, cohorts)))
    for number, cohort in enumerate(cohorts):
        loop.share(number, cohort, source, total)
        source.copy_(total / float(sizes[cohort].sum()))
        clock.append(time.process_time())
    return clock[-1] - clock[1]


def main() -> None:
    """Measure and print a line for each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--works", default=",".join(WORKS))
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--peer", choices=("bare", "atoll"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    works = options.works.split(",")
    if options.peer:
        print(json.dumps(measured(options.peer, works[0])))
        return
    for _ in range(options.runs):
        for work in works:
            command = [sys.executable, "-W", "ignore", __file__, "--works", work, "--peer"]
            found = {}
            for peer in ("bare", "atoll"):
                done = subprocess.run([*command, peer], check=True, capture_output=True, text=True)
                found[peer] = json.loads(done.stdout.splitlines()[-1])
            print(json.dumps({"work": work, **found, "ratio": round(found["bare"] / found["atoll"], 2)}), flush=True)


if __name__ == "__main__":
    main()
