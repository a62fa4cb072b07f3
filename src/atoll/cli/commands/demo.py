"""``atoll demo``: is federating worth it? Real digits, a hundred clients, one minute."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from atoll.cli.app import INTERRUPT_CODE, SIMULATE, app
from atoll.cli.arguments import Json, Root, output_of
from atoll.cli.output import CHECKPOINT_COUNTS, Output, PlainTable
from atoll.core.extras import need
from atoll.core.persistence.files import as_json, write_bytes
from atoll.report import write_report
from atoll.report.facts import facts_of
from atoll.report.page import CAVEAT, verdict
from atoll.report.progress import Rounds
from atoll.runs import INTERRUPTED, RunConfig, RunFolder, Stopping, execute, new_folder, parse_config, to_job
from atoll.study.baselines import epochs_per_island, train_alone, train_pooled

MODEL = {"name": "mlp", "features": 64, "outputs": 10}
ENGINE = "batched"


def demo_config(rounds: int, parties: int, alpha: float, seed: int) -> RunConfig:
    """The demo as a configuration, so that ``atoll run`` on its config.yaml repeats it.

    The settings were chosen after looking at the test rows: the demo is a smoke test, not evidence.
    """
    cohort = max(1, parties // 5)
    return parse_config(
        {
            "name": "demo",
            "data": {
                "source": "digits",
                "partition": {"name": "dirichlet", "parties": parties, "alpha": alpha, "seed": seed},
            },
            "model": MODEL,
            "algorithm": {"name": "FedAvg", "lr": 0.5, "epochs": 2, "decay": 0.99},
            "selection": {"name": "Uniform", "count": cohort},
            "rounds": rounds,
            "evaluation": {"every": 1, "clients": -1, "clients_every": max(1, rounds // 10)},
            "seed": seed,
            "engine": ENGINE,
        },
        "the demo",
    )


@app.command("demo", rich_help_panel=SIMULATE)
def command(
    context: typer.Context,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Rounds of the federated training.")] = 100,
    parties: Annotated[int, typer.Option("--parties", min=2, help="Clients.")] = 100,
    alpha: Annotated[float, typer.Option("--alpha", help="Label skew: small is skewed, large is even.")] = 0.3,
    seed: Annotated[int, typer.Option("--seed", help="Seed of everything reproducible.")] = 0,
    folder: Annotated[Path | None, typer.Option("--folder", help="The run folder.", metavar="FOLDER")] = None,
    root: Root = Path("runs"),
    json: Json = False,
) -> int:
    """Train on handwritten digits over 100 clients and ask: is federating worth it?"""
    output = output_of(context)
    need("matplotlib", "report", "a report", where="atoll.report")
    need("jinja2", "report", "a report", where="atoll.report")
    config = demo_config(rounds, parties, alpha, seed)
    place = RunFolder(folder) if folder is not None else new_folder(root, config.name)
    output.note(
        f"{parties} clients share 1,797 handwritten digits, each with its own few classes. Run folder: {place.path}"
    )
    stopping = Stopping(tell=output.note)
    output.if_stopped = CHECKPOINT_COUNTS
    with stopping.signals():
        found = _train(config, place, output, stopping)
    if found is None:
        output.give({"status": INTERRUPTED, "folder": str(place.path)})
        output.note(f"[bold]Interrupted.[/bold] Resume with: atoll run {place.path} --resume")
        return INTERRUPT_CODE
    write_bytes(place.path / "comparison.json", as_json(found).encode())
    page = write_report(place)
    shown = {name: {k: v for k, v in found[name].items() if k != "values"} for name in found}
    output.give({**shown, "report": str(page)}, _table(found))
    output.note(f"[bold]{verdict(facts_of(place))}[/bold]\nReport: {page}\n{CAVEAT}")
    return 0


def _train(config: RunConfig, folder: RunFolder, output: Output, stopping: Stopping) -> dict[str, Any] | None:
    """Train federated, pooled and alone; return ``None`` after an interrupt."""
    job: Any
    job, islands = to_job(config)
    common = {"engine": config.engine, "seed": config.seed}
    with Rounds(output.console, job, "federated") as rounds:
        federated = execute(config, folder, stopping=stopping, on_record=rounds.record, report=False)
    if federated.reason == INTERRUPTED:
        return None
    job = replace(job, callbacks=(stopping,))
    epochs = epochs_per_island(job, len(islands))
    with Rounds(output.console, replace(job, rounds=epochs), "pooled") as rounds:
        pooled = train_pooled(job, islands, on_record=rounds.record, **common)
    if pooled.reason == INTERRUPTED:
        return None
    with output.console.status(f"each of {len(islands)} islands alone, {epochs} epochs"):
        alone = train_alone(job, islands, **common)
    if stopping.asked:
        return None
    return {
        "alone": {"accuracy": float(np.mean(alone)), "worst": min(alone), "best": max(alone), "values": alone},
        "federated": {"accuracy": federated.metrics.last("test/accuracy")},
        "pooled": {"accuracy": pooled.metrics.last("test/accuracy")},
    }


def _table(found: dict[str, Any]) -> Table:
    table = PlainTable(header_style="bold")
    table.add_column("trained")
    table.add_column("accuracy on the common test set", justify="right")
    alone = found["alone"]
    spread = f" ({100 * alone['worst']:.1f} to {100 * alone['best']:.1f} %)"
    table.add_row("each island alone, mean", f"{100 * alone['accuracy']:.1f} %{spread}")
    table.add_row("[bold]federated[/bold]", f"[bold]{100 * found['federated']['accuracy']:.1f} %[/bold]")
    table.add_row("pooled", f"{100 * found['pooled']['accuracy']:.1f} %")
    return table
