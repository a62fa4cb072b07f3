"""``atoll sql``: SQL over several silos, answered as their owners would answer it together."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from atoll.cli.app import ANALYSE, app
from atoll.cli.arguments import Json, output_of
from atoll.cli.asking import KitOption, PassphraseFile, ServerOption, asked, open_kit
from atoll.cli.output import PlainTable
from atoll.cli.sql_shell import FORMATS, SqlShell, show_cell
from atoll.core.overview import format_count


@app.command("sql", rich_help_panel=ANALYSE)
def command(
    context: typer.Context,
    statement: Annotated[str | None, typer.Argument(help="One SELECT, or EXPLAIN of one; - reads stdin.", metavar="SQL")] = None,
    silo: Annotated[list[str], typer.Option("--silo", help="A site: a folder of CSV or Parquet files, a file of DuckDB or SQLite, or postgresql://role@/name.", metavar="NAME=PATH")] = [],  # noqa: B006
    policy: Annotated[Path | None, typer.Option("--policy", help="What every site allows; without one only COUNT answers.", metavar="FILE")] = None,
    file: Annotated[Path | None, typer.Option("-f", "--file", help="Read the statement from a file.", metavar="FILE")] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Write the rows: .csv, .parquet, .arrow or .json.", metavar="FILE")] = None,
    strategy: Annotated[str, typer.Option("--strategy", help="How it is answered: auto, the name of a strategy, with options after a colon (hufu:radii=3), or each to compare them.")] = "auto",
    check: Annotated[bool, typer.Option("--check", help="Compare with DuckDB over all rows in one place.")] = False,
    epsilon: Annotated[float | None, typer.Option("--epsilon", help="Answer with noise, at this cost of the analyst's budget at each site.", metavar="E")] = None,
    delta: Annotated[float, typer.Option("--delta", help="With --epsilon: the probability that a group of one unit is listed.", metavar="D")] = 1e-6,
    analyst: Annotated[str, typer.Option("--analyst", help="With --epsilon: who asks, by the name in the sites' policies; with --kit, the kit's.", metavar="NAME")] = "",
    error: Annotated[float | None, typer.Option("--error", help="How far numbers may be from exact, as a part of them: the cheapest plan that meets it answers.", metavar="PART")] = None,
    confidence: Annotated[float, typer.Option("--confidence", help="With which probability numbers are in their intervals.", metavar="PART")] = 0.95,
    record: Annotated[Path | None, typer.Option("--record", help="Folder that keeps what the silos have answered, and spent, for later commands.", metavar="DIR")] = None,
    transcript: Annotated[Path | None, typer.Option("--transcript", help="Folder for FROM--TO.bin: all messages of a link, as TO has them.", metavar="DIR")] = None,
    helper: Annotated[bool, typer.Option("--helper", help="With --kit: a helper's site is the third party beside two sites, for strategies under shares.")] = False,
    kit: KitOption = None,
    server: ServerOption = None,
    passphrase_file: PassphraseFile = None,
    json: Json = False,
) -> None:  # fmt: skip
    """Answer SQL over the tables of several sites: one statement, or those that you type in a shell. Rows stay; EXPLAIN says beforehand what leaves, and who learns it."""
    from atoll.cli.output import require_folder
    from atoll.core.errors import ConfigError
    from atoll.query.connection import JobConnection, connect

    if out is not None:
        require_folder(out)
        if out.suffix not in FORMATS:
            raise ConfigError(f"-o {out}", remedy=f"use a name that ends in {', '.join(FORMATS)}")
    each, shell = strategy == "each", statement is None and file is None and not json
    if (each or shell) and out is not None:
        raise ConfigError(f"-o without {'a statement' if shell else 'one strategy'}", remedy="write -o FILE with one statement and one strategy; \\o FILE in the shell")  # fmt: skip
    if shell and (each or check or transcript):
        raise ConfigError("no statement", remedy='write atoll sql --silo … "SELECT …" --check; without these options a shell begins')  # fmt: skip
    if kit is not None and not silo:
        if policy is not None or check or transcript or each or record or analyst:
            raise ConfigError("--kit with --policy, --check, --transcript, --record, --analyst or --strategy each", remedy="leave these out: sites have policies of their own, and their rows are not here")  # fmt: skip
        own = open_kit(kit, passphrase_file)
        analyst = own.name
        opened: Any = JobConnection(lambda body: asked(own, server, body), own.project, strategy, helper)
    else:
        opened = connect(
            silos=_silos_of(silo, helper), policy=policy, strategy="auto" if each else strategy, folder=record
        )
    with opened as db:
        if shell:
            _begin_shell(db)
            return
        if not isinstance(db, JobConnection):
            db.engine = recorder = _recorder(transcript)
        noise = {} if epsilon is None else {"epsilon": epsilon, "delta": delta, **({"analyst": analyst} if analyst else {})}  # fmt: skip
        noise |= {} if error is None and confidence == 0.95 else {"error": error, "confidence": confidence}
        found, shown = _answer(db, _statement_of(statement, file), out, each=each, check=check, **noise)
    if transcript is not None:
        found["transcript"] = [str(path) for path in recorder.write(transcript)]
    output_of(context).give(found, shown)


def _answer(db: Any, text: str, out: Path | None, *, each: bool, check: bool, **noise: Any) -> tuple[dict[str, Any], Any]:  # fmt: skip
    """The answer as plain values, and as it is shown."""
    from rich.console import Group

    if each:
        tried = db.try_strategies(text, check=check, **noise)
        return {"strategies": tried}, _shown_strategies(tried)
    result = db.sql(text, **noise)
    found, shown = result.facts(), [_shown(result, planned=result.explained)]
    if check:
        found["check"] = {"equal": db.check(result)}
        changed = db.changed_since(result)
        found["check"] |= {"changed": changed} if changed else {}
        shown.append(_words_of_check(found["check"]["equal"], changed))
    if out is not None:
        write_result(result, out)
        found["out"] = str(out)
    return found, Group(*shown)


def _begin_shell(db: Any) -> None:
    """Answer statements from stdin, until it ends."""
    shell = SqlShell(db, lambda result: _shown(result, planned=result.explained), write_result)
    shell.loop(sys.stdin)
    if shell.failed and not sys.stdin.isatty():
        raise typer.Exit(2)


def _recorder(transcript: Path | None) -> Any:
    """What runs the silos' parts: if a transcript is asked for, an engine that keeps every message.

    Raises:
        ConfigError: the folder is a file.
    """
    from atoll.core.errors import ConfigError
    from atoll.engines.recording import RecordingEngine

    if transcript is None:
        return "inline"
    if transcript.exists() and not transcript.is_dir():
        raise ConfigError(f"--transcript {transcript}: it is a file", remedy="name a folder; it is made if needed")
    return RecordingEngine()


def _words_of_check(equal: bool | None, changed: Sequence[str]) -> str:
    if changed:
        return f"not compared with all rows in one place: rows of {', '.join(changed)} have changed since the relation was kept"
    if equal is None:
        return "not compared with all rows in one place: the answer is a plan, or approximate"
    return (
        "equal to the answer over all rows in one place"
        if equal
        else "DIFFERENT from the answer over all rows in one place"
    )


def _shown_strategies(tried: Mapping[str, Mapping[str, Any]]) -> Any:
    """The strategies as a table."""
    from rich.text import Text

    table = PlainTable()
    for name in ("strategy", "answered", "equal", "seconds", "bytes", "refused"):
        table.add_column(name)
    words = {True: "yes", False: "no", None: ""}
    for name, row in tried.items():
        seconds = "" if row["seconds"] is None else f"{row['seconds']:.3f}"
        size = "" if row["bytes"] is None else f"{row['bytes']:,}"
        table.add_row(name, words[row["answered"]], words[row["equal"]], seconds, size, Text(row["refused"] or ""))
    return table


def _statement_of(statement: str | None, file: Path | None) -> str:
    """The text of the statement.

    Raises:
        ConfigError: none is given, two are, or the file cannot be read.
    """
    from atoll.core.errors import ConfigError

    if (statement is None) == (file is None):
        raise ConfigError("no statement" if statement is None else f"a statement and -f {file}", remedy='write atoll sql --silo … "SELECT …", or -f FILE')  # fmt: skip
    if file is not None:
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"-f {file}: {error}", remedy="give a file of SQL") from error
    return sys.stdin.read() if statement == "-" else str(statement)


def _silos_of(words: Sequence[str], helper: bool) -> dict[str, str]:
    """``NAME=PATH`` as a mapping.

    Raises:
        ConfigError: it is written otherwise, or a name occurs twice.
    """
    from atoll.core.errors import ConfigError

    if helper:
        raise ConfigError("--helper without --kit", remedy="leave it out: silos on this machine have a helper where they need one")  # fmt: skip
    found: dict[str, str] = {}
    for word in words:
        name, sign, path = word.partition("=")
        if not sign or not name or not path:
            raise ConfigError(f"--silo {word}", remedy="write --silo NAME=PATH")
        if name in found:
            raise ConfigError(f"--silo {name} occurs twice", remedy="give each site a name of its own")
        found[name] = path
    if len(found) < 2:
        raise ConfigError(f"{len(found)} silos", remedy="give --silo NAME=PATH twice or more, or --kit FOLDER to ask the sites of a project")  # fmt: skip
    return found


def write_result(result: Any, out: Path) -> None:
    """Write the rows of a result, in the format of the file's ending."""
    from atoll.core.extras import need
    from atoll.core.persistence.files import as_json

    if out.suffix == ".json":
        facts = result.facts()
        text = as_json({"columns": facts["columns"], "rows": facts["rows"]})
        out.write_text(text + "\n", encoding="utf-8")
        return
    table = result.arrow()
    if out.suffix == ".parquet":
        need("pyarrow.parquet", "sql", "-o").write_table(table, out)
    elif out.suffix == ".csv":
        need("pyarrow.csv", "sql", "-o").write_csv(table, out)
    else:
        need("pyarrow.feather", "sql", "-o").write_feather(table, out, compression="uncompressed")


def _shown(result: Any, *, planned: bool) -> Any:
    """The rows as a table, or the plan; what was withheld stands below."""
    from rich.console import Group
    from rich.text import Text

    if planned:
        return Group(*_plan_tables(result))
    if result.kept is not None:
        return Text(_words_of_kept(result))
    table = PlainTable()
    for name in result.columns:
        table.add_column(Text(show_cell(name)))
    for row in result.rows:
        table.add_row(*(Text(show_cell(value)) for value in row))
    words = [format_count(len(result.rows), "row")]
    if result.withheld_groups:
        words.append(f"{result.withheld_groups} groups withheld: too few rows")
    if result.withheld_values:
        words.append(f"{result.withheld_values} values withheld: too few rows, or too few that differ")
    if result.privacy is not None:
        noise = "; ".join(f"{show_cell(text)} ± {std:.4g}" for text, std in result.privacy["noise_std"].items()) or "the answer is exact"  # fmt: skip
        words.append(f"noise for epsilon {result.privacy['epsilon']:g} at each site ({noise})")
        intervals = (result.approximate or {}).get("intervals", {})
        if any(intervals.values()):
            most = "; ".join(f"{show_cell(name)} ± {max((high - low) / 2 for low, high in ends):.4g}" for name, ends in intervals.items() if ends)  # fmt: skip
            words.append(f"at confidence {result.approximate['confidence']:g} at most {most}")
        words += [f"{one['before']:,} rows became {one['after']:,}" for one in result.privacy.get("sizes", ())]
    return Group(table, Text(", ".join(words)))


def _words_of_kept(result: Any) -> str:
    """What parties keep now."""
    columns = ", ".join(f"{show_cell(name)} {kind}" for name, kind in zip(result.columns, result.types, strict=True))
    kept = result.kept
    return f"{kept['relation']} ({columns}): at most {format_count(kept['rows'], 'row')}, kept under shares by {', '.join(kept['parties'])}, {kept['bytes']:,} bytes each"


def _words_of_run(result: Any) -> str:
    """What an answer took, beside what was expected of it."""
    seconds = result.seconds
    links = ", ".join(f"{show_cell(site)} {count:,}" for site, count in result.links.items())
    local = "" if seconds["local"] is None else f", {seconds['local']:.2g} s of it for the sites' own queries"
    rounds = format_count(result.expected["rounds"], "round")
    return f"it took {result.bytes:,} bytes ({links}), {rounds} and {seconds['total']:.2g} s{local}; {format_count(len(result.rows), 'row')}"


def _plan_tables(result: Any) -> list[Any]:
    from rich.text import Text

    steps = PlainTable(title=f"strategy {result.strategy}")
    for name in ("place", "form", "what"):
        steps.add_column(name)
    for step in result.plan:
        steps.add_row(*(Text(show_cell(step[name])) for name in ("place", "form", "what")))
    told = PlainTable(title="who learns what")
    for name in ("who", "sees", "assuming"):
        told.add_column(name)
    for one in result.leakage:
        told.add_row(*(Text(show_cell(one.get(name, ""))) for name in ("who", "sees", "assuming")))
    rejected: Mapping[str, str] = result.rejected
    rounds, seconds = format_count(result.expected["rounds"], "round"), result.expected["seconds"]
    cost = Text(f"about {result.predicted:,} bytes at all sites together for one group, in {rounds}: {seconds:.2g} s on links of 40 MB/s and 8 ms a round")  # fmt: skip
    took = [] if result.facts()["explain"] == "explain" else [Text(_words_of_run(result))]
    return [steps, told, cost, *took, *(Text(show_cell(f"{name} lost: {why}")) for name, why in rejected.items())]
