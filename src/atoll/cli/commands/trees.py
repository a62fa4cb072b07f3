"""``atoll trees``: what sites' files give alone, together, and in one place."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from atoll.cli.app import ANALYSE, app
from atoll.cli.arguments import FileOptions, Json, output_of, sharing

_MOST = 20
"""Features whose importance a terminal shows."""


Task = Annotated[
    str | None,
    typer.Option("--task", help="classification or regression: what the label is, if its values do not say it."),
]


@app.command("trees", rich_help_panel=ANALYSE)
@sharing(FileOptions)
def command(
    context: typer.Context,
    files: Annotated[list[Path], typer.Argument(help="A CSV or Parquet file a site, or its folder.", metavar="FILE…")],
    label: Annotated[str, typer.Option("--label", help="Column to predict.")],
    test: Annotated[
        Path | None,
        typer.Option(
            "--test",
            help="File with rows that no site trains on; by default a fifth of each site's rows is kept apart.",
            metavar="FILE",
        ),
    ] = None,
    columns: Annotated[str | None, typer.Option("--columns", help="Features: age,pressure. By default all.")] = None,
    drop: Annotated[str | None, typer.Option("--drop", help="Columns to leave out: id,name.")] = None,
    categories: Annotated[
        list[str], typer.Option("--categories", help="Agreed values of a column: ward=surgery,internal.")
    ] = [],  # noqa: B006
    task: Task = None,
    method: Annotated[str, typer.Option("--method", help="histogram, bagging, lightgbm or forest.")] = "histogram",
    rounds: Annotated[int, typer.Option("--rounds", help="Boosting rounds.", min=1)] = 50,
    depth: Annotated[int, typer.Option("--depth", help="Levels of splits.", min=1, max=16)] = 6,
    leaves: Annotated[int, typer.Option("--leaves", help="Most leaves of a tree, with lightgbm.", min=2)] = 31,
    eta: Annotated[float, typer.Option("--eta", help="Learning rate.")] = 0.3,
    missing_features: Annotated[
        bool,
        typer.Option("--missing-features", help="Cells of features may be empty: trees learn which way such rows go."),
    ] = False,
    secure: Annotated[bool, typer.Option("--secure", help="Mask the sums of gradients.")] = False,
    seed: Annotated[int, typer.Option("--seed", help="Seed of samples of rows and features.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="File for the model; by default model.json, or model.txt of LightGBM.", metavar="FILE"
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write a page with tables and pictures.", metavar="FILE")
    ] = None,
    json: Json = False,
    *,
    options: FileOptions,
) -> None:
    """Grow trees over several sites' files as a federation would; compare with each site alone and with pooled rows."""
    from atoll.cli.describing import dropped_of, lists_of, words_of
    from atoll.cli.output import note_found, require_folder
    from atoll.study.sites import compare_trees
    from atoll.trees.model_files import model_file, model_file_name

    out = out or Path(model_file_name(method))
    for option, file in (("--out", out), ("--html", html)):
        if file is not None:
            require_folder(file, option)
    settings: dict[str, Any] = {"scheme": method, "rounds": rounds, "max_depth": depth, "eta": eta, "leaves": leaves}
    found, ensemble = compare_trees(
        files, test, label, settings, secure=secure, seed=seed, missing_features=missing_features, task=task,
        columns=words_of(columns), drop=dropped_of(drop), categories=lists_of(categories), form=options.plain(), page=html,
    )  # fmt: skip
    out.write_bytes(model_file(ensemble))
    found["model"] = str(out)
    output = output_of(context)
    note_found(output, found, html)
    output.give(found, _show_trees(found, out))


def _show_trees(found: dict[str, Any], out: Path) -> Any:
    """The measures, what the trees split on, and where the model is."""
    from rich.console import Group

    from atoll.cli.output import PlainTable, table_of_sites

    table = table_of_sites(found, "trained on", _shown)
    if found.get("pooled_shuffled"):
        shuffled = found["pooled_shuffled"]
        table.add_row("pooled, in other orders", f"{min(shuffled):.4f} to {max(shuffled):.4f}")
    gains = PlainTable()
    gains.add_column("feature")
    gains.add_column("share of gain", justify="right")
    for name, share in list(found["importance"].items())[:_MOST]:
        gains.add_row(escape(name), f"{share:.4f}")
    rows = found["test"]
    more = (
        f" and {len(found['importance']) - _MOST} more features: see --json" if len(found["importance"]) > _MOST else ""
    )
    ends = [
        f"{rows['rows']:,} test rows: {rows['from']}",
        f"model: {out}; predict with: atoll predict {out} --rows FILE",
    ]
    return Group(table, "", gains, *([more] if more else []), "", *map(escape, ends))


def _shown(value: float | None) -> str:
    return "-" if value is None or value != value else f"{value:.4f}"
