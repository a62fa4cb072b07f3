"""The training script that NVFlare runs in each silo's process."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import nvflare.client as flare
import torch
from torch.nn.functional import cross_entropy

from peers import torch_model
from workloads import load


def main() -> None:
    """Train for every model received, until the job ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", required=True)
    parser.add_argument("--laps", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    flare.init()
    client = int(flare.get_site_name().removeprefix("site-")) - 1
    plan = load(args.workload)
    w = plan.workload
    x, y = torch.from_numpy(plan.x[client]), torch.from_numpy(plan.y[client])
    model = torch_model.build(w)
    parameters = list(model.parameters())
    stamps = []
    while flare.is_running():
        received = flare.receive()
        if received is None:
            break
        number = received.current_round
        slot = int(np.flatnonzero(plan.schedule[number] == client)[0])
        stamps.append(time.perf_counter())
        state = {k: torch.as_tensor(v) for k, v in received.params.items()}
        model.load_state_dict(state)
        for order in torch.from_numpy(plan.order[number, slot].astype("int64")):
            for xb, yb in zip(x[order].split(w.batch), y[order].split(w.batch), strict=True):
                cross_entropy(model(xb), yb).backward()
                with torch.no_grad():
                    torch._foreach_add_(parameters, [p.grad for p in parameters], alpha=-w.lr)
                for parameter in parameters:
                    parameter.grad = None
        if client == 0:
            np.save(args.laps, np.array(stamps))
        flare.send(
            flare.FLModel(
                params={k: v.detach().clone() for k, v in model.state_dict().items()},
                meta={"NUM_STEPS_CURRENT_ROUND": w.steps},
            )
        )


if __name__ == "__main__":
    main()
