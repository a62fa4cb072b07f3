"""NVIDIA FLARE's simulator: FedAvgRecipe on SimEnv, one thread (so one process) per silo.

NVFlare starts a process per client turn when it has fewer threads than clients, so ten threads is
its best configuration for ten silos even on two cores. Rounds are timed at the first silo, from one
received model to the next; the last round has no next and is left out.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv

from peers.contract import arguments, report
from workloads import load

CLIENT = Path(__file__).with_name("nvflare_client.py")


def main() -> None:
    """Run the peer."""
    args = arguments(__doc__ or "")
    logging.disable(logging.WARNING)
    plan = load(args.workload)
    w = plan.workload
    if w.cohort != w.clients:
        raise SystemExit("this peer runs workloads in which every client takes part")
    workspace = Path(tempfile.mkdtemp(prefix="nvflare-"))
    stdout = os.dup(1)
    os.dup2(2, 1)  # the simulator prints; keep standard output for the one line of JSON
    try:
        recipe = FedAvgRecipe(
            name="bench",
            model={"class_path": "peers.torch_model.Initial", "args": {"workload": w.name}},
            min_clients=w.clients,
            num_rounds=args.rounds,
            train_script=str(CLIENT),
            train_args=f"--workload {w.name} --laps {workspace / 'laps.npy'}",
        )
        env = SimEnv(num_clients=w.clients, num_threads=w.clients, workspace_root=str(workspace))
        recipe.execute(env)
        stamps = np.load(workspace / "laps.npy")
        saved = next(workspace.rglob("FL_global_model.pt"))
        state = torch.load(saved, weights_only=False)["model"]
    finally:
        sys.stdout.flush()
        os.dup2(stdout, 1)
        shutil.rmtree(workspace, ignore_errors=True)
    report(
        peer="NVFlare",
        version=f"nvflare {version('nvflare')}",
        workload=w,
        processes=w.clients,
        laps=np.diff(stamps).tolist(),
        rounds=args.rounds,
        weights=[np.asarray(value) for value in state.values()],
        out=args.out,
        notes=f"{w.clients} client threads",
    )


if __name__ == "__main__":
    main()
