"""NVIDIA FLARE, provisioned: an 18 MB model to 10 sites over mutual TLS and back.

python benchmarks/network/nvflare_roundtrip.py
python benchmarks/network/nvflare_roundtrip.py --variant tuned
"""

from __future__ import annotations

import json
import shutil
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deployment import HERE, NUMBERS, Deployment, PeerError, arguments, free_ports, transport_security

ADMIN = "admin@bench.org"
PROJECT = "bench"
BUILDERS = "nvflare.lighter.impl"


@dataclass(frozen=True)
class Variant:
    """A way to set NVFlare up.

    `scheme` None keeps the provisioner's default; `interval` None keeps the default waits between a
    client's tasks (2 s) and between the workflow's looks at its tasks (0.5 s).
    """

    scheme: str | None = None
    script: bool = True
    interval: float | None = None
    save: bool = True


VARIANTS = {
    "default": Variant(),
    "grpc": Variant(scheme="grpc"),
    "tuned": Variant(scheme="tcp", script=False, interval=0.05, save=False),
    "tuned-http": Variant(scheme="http", script=False, interval=0.05, save=False),
    "tuned-grpc": Variant(scheme="grpc", script=False, interval=0.05, save=False),
}


def provision(run: Deployment, variant: Variant, clients: int) -> tuple[Path, int]:
    """Make a certificate authority and a startup kit per party; return the kits and the port."""
    port, admin_port = free_ports(2)
    sites = [{"name": f"site-{i + 1}", "type": "client", "org": PROJECT} for i in range(clients)]
    server = {"name": "localhost", "type": "server", "org": PROJECT}
    server |= {"fed_learn_port": port, "admin_port": admin_port}
    static: dict[str, Any] = {"config_folder": "config"}
    if variant.scheme:
        static["scheme"] = variant.scheme
    project = {
        "api_version": 3,
        "name": PROJECT,
        "description": "round trips",
        "connection_security": "mtls",
        "participants": [
            server,
            *sites,
            {"name": ADMIN, "type": "admin", "org": PROJECT, "role": "project_admin"},
        ],
        "builders": [
            {
                "path": f"{BUILDERS}.workspace.WorkspaceBuilder",
                "args": {"template_file": ["master_template.yml"]},
            },
            {"path": f"{BUILDERS}.static_file.StaticFileBuilder", "args": static},
            {"path": f"{BUILDERS}.cert.CertBuilder", "args": {}},
            {"path": f"{BUILDERS}.signature.SignatureBuilder", "args": {}},
        ],
    }
    file = run.folder / "project.yml"
    file.write_text(json.dumps(project))  # every JSON document is a YAML document
    run.call(["nvflare", "provision", "-p", str(file), "-w", str(run.folder / "kits"), "--force"])
    return run.folder / "kits" / PROJECT / "prod_00", port


def job(run: Deployment, variant: Variant, args: Namespace, record: Path) -> Path:
    """Write the job: FedAvg over all sites."""
    fedavg: dict[str, Any] = {"num_clients": args.clients, "num_rounds": args.rounds}
    size = {"layers": args.layers, "numbers": NUMBERS}
    server: dict[str, Any] = {
        "format_version": 2,
        "workflows": [{"id": "controller", "path": "nvflare.app_common.workflows.fedavg.FedAvg", "args": fedavg}],
        "components": [
            {"id": "persistor", "path": "echo_parts.Arrays", "args": {**size, "save": variant.save}},
            {
                "id": "clock",
                "path": "echo_parts.Clock",
                "args": {**size, "file": str(record), "rounds": args.rounds},
            },
        ],
    }
    executor: dict[str, Any] = {"path": "echo_parts.Echo", "args": {"clients": args.clients}}
    if variant.script:
        executor = {
            "path": "nvflare.app_common.executors.client_api_executor.ClientAPIExecutor",
            "args": {
                "execution_mode": "in_process",
                "task_script_path": "echo_script.py",
                "task_script_args": str(args.clients),
                "params_exchange_format": "numpy",
            },
        }
    client: dict[str, Any] = {"format_version": 2, "executors": [{"tasks": ["train"], "executor": executor}]}
    if variant.interval:
        fedavg["task_check_period"] = variant.interval
        server["server"] = {"task_request_interval": variant.interval}
        client["default_task_fetch_interval"] = variant.interval
    folder = run.folder / "job"
    config = folder / "app" / "config"
    config.mkdir(parents=True)
    shutil.copytree(HERE / "nvflare_app", folder / "app" / "custom", ignore=shutil.ignore_patterns("__*"))
    meta = {"name": "echo", "min_clients": args.clients, "resource_spec": {}, "deploy_map": {"app": ["@ALL"]}}
    (folder / "meta.json").write_text(json.dumps(meta))
    (config / "config_fed_server.json").write_text(json.dumps(server))
    (config / "config_fed_client.json").write_text(json.dumps(client))
    return folder


def check_security(kits: Path, variant: Variant) -> None:
    """Refuse to measure kits that do not require mutual TLS over the wanted scheme."""
    server = json.loads((kits / "localhost" / "startup" / "fed_server.json").read_text())["servers"][0]
    scheme = variant.scheme or "http"
    if server["connection_security"] != "mtls" or server["service"]["scheme"] != scheme:
        raise PeerError(f"the kit says {server['connection_security']} over {server['service']['scheme']}")


def main() -> None:
    """Provision, start, run the job, print the line."""
    args = arguments(__doc__ or "", list(VARIANTS))
    variant = VARIANTS[args.variant]
    with Deployment("nvflare", {}, args.keep) as run:
        kits, port = provision(run, variant, args.clients)
        check_security(kits, variant)
        record = run.folder / "record.json"
        folder = job(run, variant, args, record)
        run.start("server", ["bash", str(kits / "localhost" / "startup" / "sub_start.sh")])
        run.await_port(port)
        site = kits / "site-1" / "startup"
        security = transport_security(port, (site / "client.crt", site / "client.key"))
        run.security = f"{variant.scheme or 'http'}, {security}"
        for i in range(1, args.clients + 1):
            name = f"site-{i}"
            run.start(name, ["bash", str(kits / name / "startup" / "sub_start.sh")])
        kit = str(kits / ADMIN)
        run.call(["nvflare", "job", "submit", "-j", str(folder), "--startup-kit", kit])
        result = run.await_file(record, "server", args.timeout)
        version = run.call([str(run.python), "-c", "import nvflare; print(nvflare.__version__)"])
        print(run.line("nvflare", version.strip(), result, args), flush=True)


if __name__ == "__main__":
    main()
