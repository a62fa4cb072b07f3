"""``atoll stats``: describe the columns of several sites' files, as their federation would."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from atoll.cli.app import ANALYSE, app
from atoll.cli.arguments import FileOptions, Json, output_of, sharing


@app.command("stats", rich_help_panel=ANALYSE)
@sharing(FileOptions)
def command(
    context: typer.Context,
    files: Annotated[list[Path], typer.Argument(help="One CSV or Parquet file a site.", metavar="FILE…")],
    columns: Annotated[str | None, typer.Option("--columns", help="Columns to describe: age,pressure.")] = None,
    bins: Annotated[int, typer.Option("--bins", help="Bins of each histogram.", min=0)] = 0,
    ranges: Annotated[list[str], typer.Option("--range", help="Range of a column: age=0:120.")] = [],  # noqa: B006
    quantiles: Annotated[str | None, typer.Option("--quantiles", help="Shares: 0.25,0.5,0.75.")] = None,
    sketch: Annotated[bool, typer.Option("--sketch", help="Quantiles of a sketch, in one contact.")] = False,
    by: Annotated[str | None, typer.Option("--by", help="Columns whose values are groups.")] = None,
    over: Annotated[str | None, typer.Option("--over", help="Column of moments, described by period.")] = None,
    period: Annotated[str, typer.Option("--period", help="year, month, week, day or hour.")] = "month",
    where: Annotated[list[str], typer.Option("--where", help="Rows to describe: 'age >= 18'.")] = [],  # noqa: B006
    text: Annotated[str | None, typer.Option("--text", help="Columns of free text.")] = None,
    categories: Annotated[
        list[str], typer.Option("--categories", help="Agreed values of a column: ward=surgery,internal.")
    ] = [],  # noqa: B006
    correlations: Annotated[bool, typer.Option("--correlations", help="Tell how columns correlate.")] = False,
    drift: Annotated[bool, typer.Option("--drift", help="Tell how far each site is from all.")] = False,
    extremes: Annotated[
        bool, typer.Option("--extremes/--no-extremes", help="Tell smallest and largest values.")
    ] = True,
    min_count: Annotated[int, typer.Option("--min-count", help="Fewest rows behind what a site tells.", min=1)] = 1,
    epsilon: Annotated[float | None, typer.Option("--epsilon", help="Differential privacy of each row.")] = None,
    secure: Annotated[bool, typer.Option("--secure", help="Show the server sums alone.")] = False,
    request: Annotated[str, typer.Option("--request", help="What sites' records call this request.")] = "statistics",
    records: Annotated[
        Path | None, typer.Option("--records", help="Folder of the sites' records of answers.", metavar="FOLDER")
    ] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write a page.", metavar="FILE")] = None,
    json: Json = False,
    *,
    options: FileOptions,
) -> None:
    """Describe the columns of several sites' files as a federation would, and compare the result with pooled rows."""
    from atoll.cli import describing as words
    from atoll.cli.describing import max_error, tables_of_summary
    from atoll.runs.config import job_class
    from atoll.simulation import simulate

    tables = words.tables_of(files, **options.plain())
    conditions = words.conditions_of(where, tables)
    made: dict[str, Any] = {
        "columns": words.words_of(columns), "bins": bins, "ranges": words.ranges_of(ranges), "quantiles": words.shares_of(quantiles),
        "by": words.words_of(by), "over": over or "", "period": period, "where": conditions, "text": words.words_of(text),
        "categories": words.lists_of(categories), "correlations": correlations, "drift": drift, "extremes": extremes, "min_count": min_count, "epsilon": epsilon,
        "exact": bool(quantiles) and not sketch and min_count == 1 and epsilon is None, "request": request,
    }  # fmt: skip
    if secure:
        from atoll.secure.masking import SecureAggregation

        made["reducer"] = SecureAggregation()
    result = simulate(job_class("statistics")(**made), tables, engine="inline", results=records, progress=False)
    summary = result.outcome
    error = max_error(summary, tables, conditions)
    output = output_of(context)
    if html is not None:
        output.note(f"Page: {result.report(html)}")
    for note in result.notices:
        output.note(escape(note))
    told = {"notices": list(result.notices)} if result.notices else {}
    output.give({**summary.plain(), "max_error": error, **told}, tables_of_summary(summary, error, tables))
