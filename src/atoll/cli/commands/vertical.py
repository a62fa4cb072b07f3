"""``atoll vertical``: one model over the columns of several files, as their owners would train it."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atoll.cli.app import ANALYSE, app
from atoll.cli.arguments import Json, output_of
from atoll.cli.output import PlainTable

if TYPE_CHECKING:
    from atoll.vertical import VerticalResult


@app.command("vertical", rich_help_panel=ANALYSE)
def command(
    context: typer.Context,
    files: Annotated[
        list[Path],
        typer.Argument(help="The file with the labels, then one file a host: CSV or Parquet.", metavar="GUEST HOST…"),
    ],
    ids: Annotated[str, typer.Option("--id", help="Column of keys.")] = "id",
    label: Annotated[str, typer.Option("--label", help="Column of GUEST to predict.")] = "y",
    task: Annotated[str, typer.Option("--task", help="auto, binary, multiclass or regression.")] = "auto",
    model: Annotated[str, typer.Option("--model", help="boost: boosted trees.")] = "boost",
    security: Annotated[str, typer.Option("--security", help="paillier, or none.")] = "paillier",
    trees: Annotated[int, typer.Option("--trees", help="Boosting rounds.", min=1)] = 20,
    depth: Annotated[int, typer.Option("--depth", help="Levels of splits.", min=1, max=16)] = 3,
    bins: Annotated[int, typer.Option("--bins", help="Most bins of a column.", min=2, max=256)] = 32,
    rate: Annotated[float, typer.Option("--rate", help="Learning rate.")] = 0.3,
    test: Annotated[float, typer.Option("--test", help="Share of the shared rows held out.")] = 0.25,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the order of rows, and so of those held out.")] = 0,
    key: Annotated[str | None, typer.Option("--key", help="How 7 and 007 in a column count: text or number.")] = None,
    repeats: Annotated[
        str | None, typer.Option("--repeats", help="first takes the first row of a key that stands in several.")
    ] = None,
    short_exponents: Annotated[
        bool,
        typer.Option("--short-exponents", help="Faster encryption, under a further assumption, which `learns` names."),
    ] = False,
    predictions: Annotated[
        Path | None, typer.Option("--predictions", help="CSV file for the predictions of all shared rows.", metavar="F")
    ] = None,
    json: Json = False,
) -> None:
    """Train one model over the columns of several files, without joining them; compare with the guest alone and with all columns in one place."""
    from atoll.cli import describing as words
    from atoll.cli.output import require_folder
    from atoll.core.errors import ConfigError
    from atoll.runs.config import job_class
    from atoll.simulation import simulate
    from atoll.vertical import SecureBoost, train_pooled

    if model != "boost":
        raise ConfigError(f"--model {model}", remedy="use --model boost")
    if predictions is not None:
        require_folder(predictions)
    tables = words.tables_of(files, text=[ids])
    chosen: dict[str, Any] = {"task": task, "test": test, "seed": seed, "key": key, "repeats": repeats}
    settings: dict[str, Any] = {"trees": trees, "depth": depth, "bins": bins, "rate": rate, "security": security}
    boost = SecureBoost(**settings, short_exponents=short_exponents)
    kind: Any = job_class("vertical")
    job = kind(model=boost, id=ids, label=label, **chosen)
    columns = [len(table.columns) - 1 - (i == 0) for i, table in enumerate(tables.values())]
    run = simulate(job, tables, engine="inline", progress=False)
    result = run.outcome
    pooled = train_pooled(job, tables, result)
    sizes = {name: len(table) for name, table in tables.items()}
    found = {**_tell(result, sizes), **result.compare(pooled), "security": security}
    outputs = len(result.classes) if result.task == "multiclass" else 1
    found["predicted_seconds"] = job.predict_cost(sizes, columns, outputs)["seconds"]
    if predictions is not None:
        _write(predictions, {**result.predictions, "pooled": pooled}, result.classes, result.task)
        found["predictions"] = str(predictions)
    output_of(context).give(found, _table(found))


def _tell(result: VerticalResult, sizes: Mapping[str, int]) -> dict[str, Any]:
    """What was trained on what, what it cost and what each party learned."""
    guest, *hosts = sizes.values()
    rows = {"guest": guest, "host": hosts[0] if len(hosts) == 1 else hosts, **result.rows}
    cost = {"seconds": result.cost["seconds"], "bytes": int(result.cost["bytes"])}
    return {"task": result.task, "rows": rows, **cost, "learns": result.learns}


def _write(file: Path, told: Mapping[str, Any], classes: Sequence[str], task: str) -> None:
    """The shared rows in the common order, a line each, with the shortest decimal numbers that are the same in single precision."""
    import numpy as np

    names = ("alone", "federated", "pooled")
    several = task == "multiclass"
    header = [f"{name}_{one}" for name in names for one in classes] if several else list(names)
    values = np.concatenate([np.asarray(told[name], np.float32) for name in names], axis=1)
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["id", "split", "y", *header])
        for key, held, y, row in zip(
            told["id"].tolist(), told["test"].tolist(), told["y"].tolist(), values, strict=True
        ):
            shown = classes[int(y)] if classes else str(np.float32(y))
            writer.writerow([key, "test" if held else "train", shown, *(str(one) for one in row)])


def _table(found: Mapping[str, Any]) -> PlainTable:
    rows = found["rows"]
    title = (
        f"{found['task']}, {rows['aligned']:,} shared rows: {rows['train']:,} to train on, {rows['test']:,} held out"
    )
    table = PlainTable(title=title)
    for name in ("", found["metric"]):
        table.add_column(name)
    for name in ("alone", "federated", "pooled"):
        table.add_row(name, "-" if found[name] is None else f"{found[name]:.4f}")
    table.add_row("largest difference to pooled", f"{found['difference']:.3g}")
    table.add_row("seconds (predicted)", f"{found['seconds']:.3g} ({found['predicted_seconds']:.3g})")
    table.add_row("bytes", f"{found['bytes']:,}")
    for party, lines in found["learns"].items():
        for line in lines:
            table.add_row(f"{party} learns", line)
    return table
