"""Flower's own simulation of an app, as ``flwr run`` starts it: ``python flowers_own.py APP NODES KEY=VALUE ...``. Prints the seconds that it took."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

from flwr.app import Context, RecordDict
from flwr.common.config import get_fused_config_from_dir, get_project_config
from flwr.simulation.run_simulation import _run_simulation
from flwr.supercore.constant import NOOP_FEDERATION_ID
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.supercore.telemetry import EventType


def main(folder: str, nodes: str, *changes: str) -> None:
    """Run the app."""
    app = Path(folder).resolve()
    sys.path.insert(0, str(app))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(app), os.environ.get("PYTHONPATH", "")])
    given = {key: json.loads(value) for key, _, value in (change.partition("=") for change in changes)}
    components = get_project_config(app)["tool"]["flwr"]["app"]["components"]
    run = Run.create_empty(run_id=7)
    run.primary_task_id, run.federation_id, run.override_config = 9, NOOP_FEDERATION_ID, given
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 7, 1
    context = Context(7, 1, {}, RecordDict(), get_fused_config_from_dir(app, given))
    begun = time.perf_counter()
    _run_simulation(
        num_supernodes=int(nodes), exit_event=EventType.PYTHON_API_RUN_SIMULATION_LEAVE, client_app_attr=components["clientapp"],
        server_app_attr=components["serverapp"], server_app_context=context, app_dir=str(app), run=run, is_app=True,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": 2, "include_dashboard": False}},
    )  # fmt: skip
    print(json.dumps({"seconds": time.perf_counter() - begun}))


if __name__ == "__main__":
    main(*sys.argv[1:])
