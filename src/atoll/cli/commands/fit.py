"""``atoll fit``: clusters, components, naive Bayes, linear models and survival over several sites' files, alone, and in one place."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.markup import escape

from atoll.cli.app import ANALYSE, app
from atoll.cli.arguments import FileOptions, Json, output_of, sharing

if TYPE_CHECKING:
    from atoll.cli.output import PlainTable
    from atoll.data import DataTable
    from atoll.fitting import FitMethod, FittedModel


@app.command("fit", rich_help_panel=ANALYSE)
@sharing(FileOptions)
def command(
    context: typer.Context,
    method: Annotated[
        str, typer.Argument(help="bayes, cox, glm, gmm, km, kmeans, pca, ridge, svd or svm.", metavar="METHOD")
    ],
    files: Annotated[list[Path], typer.Argument(help="One CSV or Parquet file a site.", metavar="FILE…")],
    settings: Annotated[
        list[str], typer.Option("--set", help="A setting of the method: clusters=3.", metavar="NAME=VALUE")
    ] = [],  # noqa: B006
    label: Annotated[str, typer.Option("--label", help="Column to predict.")] = "",
    columns: Annotated[str | None, typer.Option("--columns", help="Features: age,pressure. By default all.")] = None,
    drop: Annotated[str | None, typer.Option("--drop", help="Columns to leave out: id,name.")] = None,
    impute: Annotated[str, typer.Option("--impute", help="mean, median or most_frequent.")] = "",
    scale: Annotated[str, typer.Option("--scale", help="standard, minmax or robust.")] = "",
    encode: Annotated[str, typer.Option("--encode", help="onehot, dummy (as R: the default) or ordinal.")] = "",
    categories: Annotated[
        list[str], typer.Option("--categories", help="Agreed values of a column: ward=surgery,internal.")
    ] = [],  # noqa: B006
    min_count: Annotated[int, typer.Option("--min-count", help="Fewest rows behind what a site tells.", min=1)] = 1,
    secure: Annotated[bool, typer.Option("--secure", help="Show the server sums alone.")] = False,
    test: Annotated[
        Path | None,
        typer.Option("--test", help="File with rows to score on; by default all sites' rows.", metavar="FILE"),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of draws.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", help="File for the model.", metavar="FILE")] = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write a page with tables and a picture.", metavar="FILE")
    ] = None,
    json: Json = False,
    *,
    options: FileOptions,
) -> None:
    """Fit a model over several sites' files as a federation would; compare with each site alone and with pooled rows."""
    from atoll.cli import describing as words
    from atoll.cli.output import note_found, require_folder, table_of_sites
    from atoll.study.sites import compare_fits, method_of

    for option, file in [(o, f) for o, f in (("--out", out), ("--html", html)) if f is not None]:
        require_folder(file, option)
    tables = words.tables_of(files, **options.plain())
    job: dict[str, Any] = {
        "label": label, "columns": words.words_of(columns), "impute": impute, "scale": scale, "encode": encode, "categories": words.lists_of(categories),
        "min_count": min_count,
    }  # fmt: skip
    held = next(iter(words.tables_of([test], **options.plain()).values())) if test is not None else None
    chosen = method_of(method, _read_settings(settings))
    cut = partial(
        _cut,
        left_out=words.dropped_of(drop),
        features=None if columns is None else job["columns"],
        label=label,
        method=chosen,
    )
    tables, held = {name: cut(table, name) for name, table in tables.items()}, None if held is None else cut(held)
    found, model = compare_fits(tables, held, chosen, job, secure=secure, seed=seed, page=html)
    if out is not None:
        model.save(out)
        found["model"] = str(out)
    output = output_of(context)
    note_found(output, found, html)
    output.give(found, Group(table_of_sites(found, "fitted on", "{:.6g}".format), *_show_sections(model)))


def _cut(
    table: DataTable, site: str = "", *, left_out: list[str], features: list[str] | None, label: str, method: FitMethod
) -> DataTable:
    """The columns that a job uses: others of a file do not matter, and need not be the same where features are named, or there are none. Of test rows, those that are there.

    Raises:
        DataError: a site lacks a column of the method's own.
    """
    from atoll.fitting.contacts import require_own_columns

    if site:
        require_own_columns(method, table, site)
    kept = table.without([name for name in left_out if site or name in table])
    if features is None and method.featured:
        return kept
    used = dict.fromkeys([*(features or ()), *filter(None, [label]), *method.extra])
    return kept.only([name for name in used if site or name in table])


def _read_settings(texts: list[str]) -> dict[str, Any]:
    """``clusters=3`` as a setting.

    Raises:
        ConfigError: a text has no ``=``.
    """
    from atoll.core.errors import ConfigError
    from atoll.runs import yaml

    given: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--set {text}", remedy="write NAME=VALUE, such as clusters=3")
        given[name.strip()] = yaml.parse(value, f"--set {text}")
    return given


def _show_sections(model: FittedModel) -> list[Any]:
    """Titles and tables of what the fit found."""
    from atoll.fitting.page import sections_of

    shown: list[Any] = []
    for section in sections_of(model):
        shown += ["", f"[bold]{escape(section['title'])}.[/bold] {escape(section.get('text', ''))}"]
        shown += [_make_table(one["head"], one["rows"]) for one in section["tables"]]
    return shown


def _make_table(head: list[str], rows: list[list[str]]) -> PlainTable:
    from atoll.cli.output import PlainTable

    table = PlainTable(header_style="bold")
    for place, name in enumerate(head):
        table.add_column(escape(name), justify="right" if place else "left")
    for row in rows:
        table.add_row(*map(escape, row))
    return table
