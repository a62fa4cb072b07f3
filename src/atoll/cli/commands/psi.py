"""``atoll psi``: which keys two or more files share, found as their owners would find it."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from atoll.cli.app import ANALYSE, app
from atoll.cli.arguments import Json, output_of
from atoll.cli.output import PlainTable

Lines = list[list[Any]]

_SHOWN = 20
"""Pairs in the table for people; the file has all."""


@app.command("psi", rich_help_panel=ANALYSE)
def command(
    context: typer.Context,
    files: Annotated[list[Path], typer.Argument(help="One CSV or Parquet file a party.", metavar="A B…")],
    ids: Annotated[str, typer.Option("--id", help="Column of keys, or several: id,branch.")] = "id",
    protocol: Annotated[
        str | None,
        typer.Option(
            "--protocol",
            help="ecdh, oprf, unbalanced, circuit or opprf; by default ecdh, and opprf for three files or more.",
        ),
    ] = None,
    result: Annotated[str, typer.Option("--result", help="ids, count, sum:COLUMN or sum:PARTY.COLUMN.")] = "ids",
    to: Annotated[str | None, typer.Option("--to", help="Parties that learn it; by default all.")] = None,
    key: Annotated[str | None, typer.Option("--key", help="How 7 and 007 in a column count: text or number.")] = None,
    min_count: Annotated[int, typer.Option("--min-count", help="Fewest shared keys behind a sum.", min=1)] = 1,
    fraction: Annotated[
        int, typer.Option("--fraction", help="circuit: bits after the point of the values of a sum.", min=0, max=40)
    ] = 20,
    fuzzy: Annotated[
        str | None,
        typer.Option(
            "--fuzzy", help="In place of keys: pair records that are nearly equal in these columns: name,town."
        ),
    ] = None,
    match_columns: Annotated[
        bool, typer.Option("--match-columns", help="Pair columns whose names and forms are alike.")
    ] = False,
    blocking: Annotated[
        str | None,
        typer.Option("--blocking", help="With --fuzzy: compare only records that share one of these: town:2."),
    ] = None,
    threshold: Annotated[float, typer.Option("--threshold", help="Least similarity of a pair, up to 1.")] = 0.8,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the order of shared keys.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", help="CSV file for the result.", metavar="FILE")] = None,
    json: Json = False,
) -> None:
    """Find the keys that files of several parties share, or pairs of nearly equal records, in one session between them, and say what each party learned."""
    from atoll.cli import describing as words
    from atoll.cli.output import require_folder
    from atoll.core.errors import ConfigError

    if key not in (None, "text", "number"):
        raise ConfigError(f"--key {key}", remedy="write --key text or --key number")
    if out is not None:
        require_folder(out)
    if fuzzy or match_columns:
        found = _link(files, words.words_of(fuzzy), words.words_of(blocking), threshold, columns=match_columns)
        lines = [list(found["sizes"]), *found["pairs"]]
    else:
        told = {"to": words.words_of(to), "min_count": min_count, "key": key, "order": seed, "fraction": fraction}
        found, lines = _align(files, words.words_of(ids), protocol or ("ecdh" if len(files) < 3 else "opprf"), result, told)  # fmt: skip
    if out is not None:
        with out.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(lines)
        found["out"] = str(out)
    output_of(context).give(found, _table(found))


def _align(
    files: Sequence[Path], columns: Sequence[str], protocol: str, result: str, told: Mapping[str, Any]
) -> tuple[dict[str, Any], Lines]:
    """What a protocol finds of some files, and the lines of the file for it: the shared keys in the order of u below a header, or for other results one line of numbers."""
    from atoll.cli import describing as words
    from atoll.runs.config import job_class
    from atoll.secure.psi import AlignmentPlan
    from atoll.secure.psi.job import split_keys
    from atoll.secure.psi.protocol import RESULTS
    from atoll.simulation import simulate

    tables = words.tables_of(files, text=columns)
    kind: Any = job_class("psi")
    chosen, wanted = _protocol_of(protocol), result.partition(":")[0]
    if len(tables) > 1 and wanted in RESULTS:  # the job itself knows its parties later
        of_sum: dict[str, Any] = {"column": "c", "holder": next(iter(tables))} if wanted == "sum" else {}
        chosen.require_plan(AlignmentPlan(columns, list(tables), wanted, **of_sum))
    made = kind(protocol=chosen, id=columns, result=_result_of(result, tables), show=True, **told)  # fmt: skip
    run = simulate(made, tables, engine="inline", progress=False)
    count, total = run.outcome.count, run.outcome.sum
    found = {
        "protocol": type(made.protocol).__name__,
        "result": made.result,
        "sizes": dict(run.outcome.sizes),
        "count": count,
        "sum": total,
        **_cost(run, made),
        **({"notices": list(run.notices)} if run.notices else {}),
    }
    if count is not None and (count < min(found["sizes"].values()) or not count):
        found |= _look_at_rest(tables, columns, told["key"], count)
    names = next(iter(run.outcome.names.values()), None)
    if names is None:
        return found, [["count", "sum"], ["" if one is None else one for one in (count, total)]]
    return found, [list(columns), *split_keys(names)]


def _cost(run: Any, job: Any) -> dict[str, Any]:
    """What a run took, and what it told whom."""
    said = job.explain(run.data)
    predicted = {"predicted_seconds": "processor_seconds", "predicted_bytes": "bytes_with_headers"}
    return {
        "seconds": run.seconds,
        "bytes": run.bytes["bytes_relayed"] + run.bytes["bytes_between"],
        **{name: said.costs[cost] for name, cost in predicted.items() if cost in said.costs},
        "learns": [one.facts() for one in said.exposures],
    }


def _link(
    files: Sequence[Path], fields: Sequence[str], blocking: Sequence[str], threshold: float, *, columns: bool
) -> dict[str, Any]:
    """What a linker finds of two files: the pairs by rows of the files, of which the first below the header is 2, or by names of columns.

    Raises:
        ConfigError: rows and columns are both asked for, or there are not two files.
    """
    from atoll.cli import describing as words
    from atoll.core.errors import ConfigError
    from atoll.runs.config import job_class
    from atoll.simulation import simulate

    if fields and columns:
        raise ConfigError("--fuzzy with --match-columns", remedy="ask for one of them")
    if len(files) != 2:
        raise ConfigError(f"{len(files)} files", remedy="give two: a linker pairs records of two parties")
    kind: Any = job_class("linkage")
    made = kind(columns=fields, blocking=blocking, threshold=threshold, of="columns" if columns else "rows", show=True)
    tables = words.tables_of(files, text=fields)
    run = simulate(made, tables, engine="inline", progress=False)
    pairs = [
        list(pair) if columns else [row + table.row_offset for row, table in zip(pair, tables.values(), strict=True)]
        for pair in run.outcome.pairs
    ]
    return {
        "protocol": "BloomEncoding",
        "result": "columns" if columns else "pairs",
        "sizes": dict(run.outcome.sizes),
        "count": run.outcome.count,
        "pairs": pairs,
        **_cost(run, made),
    }


def _protocol_of(word: str) -> Any:
    """The protocol of a name, in any case of letters.

    Raises:
        ConfigError: there is none.
    """
    from atoll.core.errors import ConfigError, nearest
    from atoll.core.rooms import part_kinds
    from atoll.secure import psi

    fits, names = part_kinds()["alignment protocol"].fits, [name for name in dir(psi) if name[:1].isupper()]
    known = {name.lower(): getattr(psi, name) for name in names if fits(getattr(psi, name))}
    if word.lower() not in known:
        raise ConfigError(f"--protocol {word}.{nearest(word, known)}", remedy=f"use one of {', '.join(known)}")
    return known[word.lower()]()


def _result_of(word: str, tables: Mapping[str, Any]) -> str:
    """The result with the party of a sum's column.

    Raises:
        ConfigError: no party, or more than one, has the column.
    """
    from atoll.core.errors import ConfigError

    kind, colon, column = word.partition(":")
    if kind == "shares":
        raise ConfigError(f"--result {word}: shares stay at the parties", remedy="use --result count or sum:COLUMN; a program computes on shares, see the page on alignment")  # fmt: skip
    if kind != "sum" or not colon:
        return word
    if any(column.startswith(f"{name}.") and column[len(name) + 1 :] in table for name, table in tables.items()):
        return word
    holders = [name for name, table in tables.items() if column in table]
    if len(holders) != 1:
        who = f"{' and '.join(holders)} have" if holders else "no file has"
        raise ConfigError(f"--result {word}: {who} a column {column!r}", remedy=f"write sum:PARTY.COLUMN with a party of {', '.join(tables)}")  # fmt: skip
    return f"sum:{holders[0]}.{column}"


def _look_at_rest(tables: Mapping[str, Any], columns: Sequence[str], key: Any, count: int) -> dict[str, Any]:
    """Why keys may not match: capitals, of which it warns, and where nothing is shared the shape of each party's own keys. It looks at all files, as no party could."""
    from atoll.cli import describing as words

    keys = words.warn_of_likely_keys(tables, columns, key)
    return {"shapes": {name: one.shape() for name, one in zip(tables, keys, strict=True)}} if not count else {}


def _table(found: Mapping[str, Any]) -> PlainTable:
    what = {"pairs": "records", "columns": "columns"}.get(found["result"], "keys")
    table = PlainTable(title=f"{found['protocol']}, {', '.join(f'{size} {what} at {name}' for name, size in found['sizes'].items())}")  # fmt: skip
    for name in ("", ""):
        table.add_column(name)
    for name in ("count", "sum", "seconds", "bytes", "out"):
        if found.get(name) is not None:
            table.add_row(name, f"{found[name]:.3g}" if name == "seconds" else str(found[name]))
    for pair in found.get("pairs", ())[:_SHOWN]:
        table.add_row("pair", " and ".join(map(str, pair)))
    for one in found["learns"]:
        table.add_row(f"{one['who']} learns", one["sees"])
    for notice in found.get("notices", ()):
        table.add_row("note", notice)
    for name, shapes in found.get("shapes", {}).items():
        table.add_row(f"keys of {name} look like", ", ".join(shapes))
    return table
