"""``atoll vertical``: one model over the columns of several files, as their owners would train it."""

from __future__ import annotations

import csv
import json as json_module
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from atoll.cli.app import ANALYSE, INTERRUPT_CODE, app
from atoll.cli.arguments import Json, output_of
from atoll.cli.asking import in_order
from atoll.cli.output import Output, PlainTable
from atoll.core.persistence.files import write_bytes

_EXACT = 2.0**24
"""From here on single precision has no fractions: shorter texts would be other whole numbers."""
Files = Annotated[
    list[Path],
    typer.Argument(help="The file with the labels, then one file a host: CSV or Parquet.", metavar="GUEST HOST…"),
]
Ids = Annotated[str, typer.Option("--id", help="Column of keys.")]
Label = Annotated[str, typer.Option("--label", help="Column of GUEST to predict.")]
Task = Annotated[str, typer.Option("--task", help="auto, binary, multiclass or regression.")]
Statistics = Annotated[
    str | None,
    typer.Option(
        "--statistics",
        help="Train nothing: woe: what each column says of the labels; correlation: of all pairs of columns.",
        show_default=False,
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="boost: boosted trees, the default; fedxgboost: the same without ciphertexts; pivot: boosted trees that show less; linear: a linear model; mmvfl: one of each party's own columns, of classes; net: a neural network that is split.",
    ),
]
Security = Annotated[
    str | None,
    typer.Option(
        "--security",
        help="boost: paillier (default) or none; fedxgboost: product (default) or noise; pivot: basic (default) or enhanced; linear: pair (default), arbiter, shared, ckks or none.",
        show_default=False,
    ),
]
Trees = Annotated[
    int | None,
    typer.Option(
        "--trees", help="boost, fedxgboost, pivot: boosting rounds, 20 by default.", min=1, show_default=False
    ),
]
Depth = Annotated[
    int | None,
    typer.Option(
        "--depth", help="boost, fedxgboost, pivot: levels of splits, 3 by default.", min=1, max=16, show_default=False
    ),
]
Bins = Annotated[
    int | None,
    typer.Option(
        "--bins",
        help="boost, fedxgboost, pivot: most bins of a column, 32 by default; --statistics woe: 10.",
        min=2,
        max=256,
        show_default=False,
    ),
]
Rate = Annotated[
    float | None,
    typer.Option("--rate", help="Learning rate: of trees 0.3 by default, of net 0.003.", show_default=False),
]
Epsilon = Annotated[
    float | None,
    typer.Option(
        "--epsilon", help="fedxgboost with --security noise: what a host may learn of a label.", show_default=False
    ),
]
Family = Annotated[
    str | None,
    typer.Option(
        "--family", help="linear: auto (default), least-squares, logistic, multinomial or poisson.", show_default=False
    ),
]
Penalty = Annotated[
    float | None, typer.Option("--penalty", help="linear: L2 penalty of the weights, 1 by default.", show_default=False)
]
L1 = Annotated[
    float | None, typer.Option("--l1", help="linear: L1 penalty of the weights, 0 by default.", show_default=False)
]
Solver = Annotated[
    str | None,
    typer.Option(
        "--solver",
        help="linear: newton (default), quasi-newton or gradient, of pair, arbiter and ckks.",
        show_default=False,
    ),
]
Triples = Annotated[
    str | None,
    typer.Option(
        "--triples",
        help="linear --security shared: dealer (default), or transfers, of two parties.",
        show_default=False,
    ),
]
Epochs = Annotated[
    int | None,
    typer.Option("--epochs", help="net: passes over the training rows, 10 by default.", min=1, show_default=False),
]
Batch = Annotated[
    int | None,
    typer.Option(
        "--batch",
        help="net: rows of a step, 64 by default; linear --solver quasi-newton: rows that make its memory, none by default.",
        min=1,
        show_default=False,
    ),
]
Attack = Annotated[
    str | None,
    typer.Option(
        "--attack",
        help="net: what peers could tell, of norm, direction, completion, inversion; several with commas.",
        show_default=False,
    ),
]
Defend = Annotated[
    str | None,
    typer.Option("--defend", help="net: maxnorm, noise or sun; several with commas; or none.", show_default=False),
]
Test = Annotated[float, typer.Option("--test", help="Share of the shared rows held out.")]
Seed = Annotated[
    int,
    typer.Option("--seed", help="Seed of the order of rows, and so of those held out; and of what a network draws."),
]
Key = Annotated[str | None, typer.Option("--key", help="How 7 and 007 in a column count: text or number.")]
Repeats = Annotated[
    str | None, typer.Option("--repeats", help="first takes the first row of a key that stands in several.")
]
Categories = Annotated[
    str | None,
    typer.Option("--categories", help="Columns of numbers that are codes of categories, with commas between them."),
]
HostLabels = Annotated[
    list[str] | None,
    typer.Option(
        "--host-labels",
        help="mmvfl: a host's column of labels of its own; repeat it for several hosts.",
        metavar="HOST=COLUMN",
    ),
]
Drop = Annotated[
    list[str] | None,
    typer.Option(
        "--drop", help="Columns of any file to leave out; repeat it, or put commas between them.", metavar="COLUMN"
    ),
]
ShortExponents = Annotated[
    bool, typer.Option("--short-exponents", help="Faster encryption, under a further assumption, which `learns` names.")
]
Predictions = Annotated[
    Path | None, typer.Option("--predictions", help="CSV file for the predictions of all shared rows.", metavar="F")
]
Transcript = Annotated[
    Path | None,
    typer.Option(
        "--transcript", help="Folder for FROM--TO.bin: all messages of a link, as TO has them.", metavar="DIR"
    ),
]
Kept = Annotated[
    Path | None,
    typer.Option(
        "--folder", help="Keep the parties' parts of the model here: `atoll predict FOLDER --rows F`.", metavar="FOLDER"
    ),
]
BetweenProcesses = Annotated[bool, typer.Option("--poc", help="Train between real processes, a site a file.")]


@app.command("vertical", rich_help_panel=ANALYSE)
def command(
    context: typer.Context,
    files: Files,
    ids: Ids = "id",
    label: Label = "y",
    task: Task = "auto",
    statistics: Statistics = None,
    model: Model = None,
    security: Security = None,
    trees: Trees = None,
    depth: Depth = None,
    bins: Bins = None,
    rate: Rate = None,
    epsilon: Epsilon = None,
    family: Family = None,
    penalty: Penalty = None,
    l1: L1 = None,
    solver: Solver = None,
    triples: Triples = None,
    epochs: Epochs = None,
    batch: Batch = None,
    attack: Attack = None,
    defend: Defend = None,
    test: Test = 0.25,
    seed: Seed = 0,
    key: Key = None,
    repeats: Repeats = None,
    categories: Categories = None,
    host_labels: HostLabels = None,
    drop: Drop = None,
    short_exponents: ShortExponents = False,
    predictions: Predictions = None,
    transcript: Transcript = None,
    folder: Kept = None,
    poc: BetweenProcesses = False,
    json: Json = False,
) -> int:
    """Train one model over the columns of several files, without joining them; compare with the guest alone and with all columns in one place. Or, with --statistics, say what the columns tell of the labels or of each other."""
    options: dict[str, Any] = {
        "security": security, "trees": trees, "depth": depth, "bins": bins, "rate": rate, "short_exponents": short_exponents or None,
        "epsilon": epsilon, "family": family, "penalty": penalty, "l1": l1, "solver": solver, "triples": triples,
        "epochs": epochs, "batch": batch, "attack": attack, "defend": defend, "host_labels": host_labels or None,
    }  # fmt: skip
    _require_places(predictions, transcript)
    given = {name: value for name, value in options.items() if value is not None}
    if statistics is not None:
        foreign = {"model": model, "predictions": predictions, "transcript": transcript, "folder": folder}
        learner = _statistics_of(statistics, {**given, **foreign})
    else:
        learner = {"model": _make_model(model or "boost", given, seed), "transcript": transcript is not None}
    tables, left_out = _read(files, ids, label, drop or (), key)
    chosen: dict[str, Any] = {"task": task, "test": test, "order": seed, "key": key, "repeats": repeats, "id": ids, "label": label}  # fmt: skip
    chosen["categories"] = _split_names(categories, tables)
    job, output = _make_job(learner, chosen, list(tables)), output_of(context)
    trained = _train(job, files, tables, transcript, output, poc=poc, kept=folder, drop=left_out)
    if trained is None:
        return INTERRUPT_CODE
    found = _describe(job, tables, trained) if statistics else _compare(job, tables, trained, predictions)
    kept = {} if transcript is None else {"transcript": str(transcript)}
    output.give(found | kept, _statistics_table(found) if statistics else _table(found))
    return 0


def _require_places(predictions: Path | None, transcript: Path | None) -> None:
    """Refuse places where nothing can be written.

    Raises:
        ConfigError: a folder is missing, or a file stands in its place.
    """
    from atoll.cli.output import require_folder
    from atoll.core.errors import ConfigError

    for option, place in (("--predictions", predictions), ("--transcript", transcript)):
        if place is not None:
            require_folder(place, option)
    if transcript is not None and transcript.exists() and not transcript.is_dir():
        raise ConfigError(f"--transcript {transcript}: it is a file", remedy="name a folder; it is made if needed")


def _make_job(learner: Mapping[str, Any], chosen: Mapping[str, Any], parties: Sequence[str]) -> Any:
    """The job of a model or of statistics, for parties of which the first is the guest."""
    from atoll.runs.config import job_class

    kind: Any = job_class("vertical" if "model" in learner else "vertical-statistics")
    return kind(**learner, **chosen, guest=parties[0], hosts=list(parties[1:]))


def _read(
    files: Sequence[Path], ids: str, label: str, drop: Sequence[str], key: str | None
) -> tuple[dict[str, Any], list[str]]:
    """The tables without the columns that are left out, and the names of these.

    Raises:
        ConfigError: the keys or the labels are left out.
        DataError: a file cannot be read, or no file has such a column.
    """
    from atoll.cli import describing as words
    from atoll.core.errors import ConfigError

    tables: dict[str, Any] = words.tables_of(files, text=[ids])
    left_out = _split_names(",".join(drop), tables, "--drop")
    for name, option in ((ids, "--id"), (label, "--label")):
        if name in left_out:
            raise ConfigError(f"--drop {name}: it is the column of {option}", remedy="leave other columns out")
    if left_out:
        tables = {name: table.without(one for one in left_out if one in table) for name, table in tables.items()}
    words.warn_of_likely_keys(tables, [ids], key)
    return tables, left_out


def _train(
    job: Any,
    files: Sequence[Path],
    tables: Mapping[str, Any],
    transcript: Path | None,
    output: Output,
    *,
    poc: bool,
    kept: Path | None,
    drop: Sequence[str] = (),
) -> Any:
    """Train, write the transcript if it is wanted, and return the result; ``None`` if a person stopped it."""
    from atoll.data.readers.tables import name_files
    from atoll.runtime.poc import OTHERS, helper_names
    from atoll.vertical.transcript import write_transcript

    named = name_files(files)
    _note_cost(job, tables, output)
    with tempfile.TemporaryDirectory(prefix="atoll-vertical-") as made:
        folder = Path(made) if kept is None else _make_kept(kept)
        trained = _between_processes(job, named, folder, output, drop) if poc else _in_this_process(job, tables, folder)
        if trained is not None and kept is not None:
            said = {
                "guest": job.guest, "id": job.id, "files": {name: str(file.absolute()) for name, file in named.items()},
                "job": trained[2], "helpers": helper_names(job.helpers(), (*named, *OTHERS)) if poc else {},
            }  # fmt: skip
            write_bytes(folder / SAVED, json_module.dumps(said, indent=1).encode())
        if trained is not None and transcript is not None:
            helpers = list(job.helpers())
            write_transcript(trained[1], [*trained[0].parties, *helpers], transcript, helpers)
    return None if trained is None else trained[0]


def _note_cost(job: Any, tables: Mapping[str, Any], output: Output) -> None:
    """Say beforehand how the parties hide from each other, and what it will cost."""
    from atoll.core.overview import human_bytes
    from atoll.vertical.tables import MOST_CLASSES

    labels = set(tables[job.guest][job.label].tolist()) if job.label in tables[job.guest] else set()
    several = 2 < len(labels) <= MOST_CLASSES and job.task in ("auto", "multiclass")
    cost = job.predict_cost({k: len(one) for k, one in tables.items()}, _columns(tables), len(labels) if several else 1)
    model = getattr(job, "model", None)  # statistics have none
    name, security = type(model or job).__name__, "paillier" if model is None else model.security
    output.note(f"{name} of {', '.join(tables)} with security {security}: about {cost['seconds']:.2g} s of processor time and {human_bytes(cost['bytes'])}, if they share all rows.")  # fmt: skip


def _columns(tables: Mapping[str, Any]) -> list[int]:
    """How many features each party has, the guest first."""
    return [len(table.columns) - 1 - (i == 0) for i, table in enumerate(tables.values())]


def _make_kept(folder: Path) -> Path:
    """The folder for the parts of the model.

    Raises:
        ConfigError: it holds something.
    """
    from atoll.core.errors import ConfigError
    from atoll.runtime.provision.keys import make_folder

    if folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(f"--folder {folder} is not empty", remedy="name a new folder, or an empty one")
    make_folder(folder, "--folder")
    return folder.absolute()


def _split_names(given: str | None, tables: Mapping[str, Any], option: str = "--categories") -> list[str]:
    """Names of columns.

    Raises:
        DataError: no file has one of them.
    """
    from atoll.cli import describing as words
    from atoll.core.errors import DataError, nearest

    names, columns = words.words_of(given), [name for table in tables.values() for name in table.columns]
    for name in names:
        if name not in columns:
            raise DataError(
                f"no column {name!r} in any of the files.{nearest(name, columns)}",
                where=option,
                remedy="name columns of the files, with commas between them",
            )
    return names


def _make_net(**given: Any) -> Any:
    from atoll.cli import describing as words
    from atoll.core.errors import ConfigError, nearest
    from atoll.vertical import IsotropicNoise, MaxNorm, SplitNet, SunModules
    from atoll.vertical.split.attacks import ATTACKS

    defences = {"maxnorm": MaxNorm, "noise": IsotropicNoise, "sun": SunModules}
    audit, chosen = (words.words_of(given.pop(name, None)) for name in ("attack", "defend"))
    chosen = [] if chosen == ["none"] else chosen
    for option, names, known in (("--defend", chosen, defences), ("--attack", audit, ATTACKS)):
        wrong = next((name for name in names if name not in known), None)
        if wrong is not None:
            few = "none, or some of" if option == "--defend" else "some of"
            raise ConfigError(f"{option} {wrong}.{nearest(wrong, known)}", remedy=f"use {few} {', '.join(known)}")
    return SplitNet(**given, audit=audit, defence=[defences[name]() for name in chosen])


MODELS = {
    "boost": ("SecureBoost", ("security", "trees", "depth", "bins", "rate", "short_exponents")),
    "fedxgboost": ("FedXGBoost", ("security", "trees", "depth", "bins", "rate", "epsilon")),
    "pivot": ("Pivot", ("security", "trees", "depth", "bins", "rate")),
    "linear": (
        "VerticalLinear",
        ("security", "family", "penalty", "l1", "solver", "batch", "seed", "triples", "short_exponents"),
    ),
    "mmvfl": ("MMVFL", ("host_labels",)),
    "net": ("SplitNet", ("seed", "rate", "epochs", "batch", "attack", "defend")),
}
"""``--model`` -> its class in `atoll.vertical`, and the options that it has."""


def _make_model(name: str, given: Mapping[str, Any], seed: int) -> Any:
    """The model of these options, with the seed if it draws.

    Raises:
        ConfigError: there is no such model, or it has no such option.
    """
    from atoll import vertical
    from atoll.core.errors import ConfigError

    if name not in MODELS:
        raise ConfigError(f"--model {name}", remedy=f"use --model {' or --model '.join(MODELS)}")
    kind, options = MODELS[name]
    foreign = next((one for one in given if one not in options), None)
    if foreign is not None:
        whose = [one for one, (_, own) in MODELS.items() if foreign in own]
        raise ConfigError(
            f"--{foreign.replace('_', '-')} with --model {name}",
            remedy=f"leave it out: it belongs to --model {' and --model '.join(whose)}",
        )
    settings = {**given, "seed": seed} if "seed" in options else given
    if name == "mmvfl":
        settings = {"labels": dict(map(_parse_host_labels, settings.get("host_labels", ())))}
    return _make_net(**settings) if name == "net" else getattr(vertical, kind)(**settings)


def _parse_host_labels(given: str) -> tuple[str, str]:
    """A host and its column of labels.

    Raises:
        ConfigError: the text is not ``HOST=COLUMN``.
    """
    from atoll.core.errors import ConfigError

    host, sign, column = given.partition("=")
    if not (host and sign and column):
        raise ConfigError(f"--host-labels {given}", remedy="write HOST=COLUMN, such as --host-labels shop=seen")
    return host, column


def _statistics_of(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of statistics.

    Raises:
        ConfigError: an option is none of theirs.
    """
    from atoll.core.errors import ConfigError

    own = ("bins", "short_exponents") if name == "woe" else ("short_exponents",)
    found = {one: value for one, value in given.items() if value is not None}
    foreign = next((one for one in found if one not in own), None)
    if foreign is not None:
        option = foreign.replace("_", "-")
        raise ConfigError(f"--{option} with --statistics {name}", remedy=f"leave --{option} or --statistics out")
    return {"statistic": name, **found}


def _describe(job: Any, tables: Mapping[str, Any], result: Any) -> dict[str, Any]:
    """What the statistics say, as plain data."""
    sizes = {name: len(table) for name, table in tables.items()}
    guest, *hosts = sizes
    told: dict[str, Any] = {
        "statistic": job.statistic,
        "rows": {"guest": sizes[guest], "host": sizes[hosts[0]] if len(hosts) == 1 else [sizes[name] for name in hosts]}
        | result.rows,
    }
    if job.statistic == "woe":
        told["classes"] = list(result.classes)
        told["iv"] = result.iv
        told["columns"] = {
            name: {key: value if key == "bins" else value.tolist() for key, value in one.items()}
            for name, one in result.woe.items()
        }
    else:
        names, matrix = result.correlation
        known = [[None if value != value else value for value in row] for row in matrix.tolist()]
        told |= {"columns": names, "correlation": known}
    outputs = len(result.classes) if job.statistic == "woe" else 1
    return told | {
        "seconds": result.cost.get("seconds"),
        "predicted_seconds": job.predict_cost(sizes, _columns(tables), outputs)["seconds"],
        "bytes": int(result.cost.get("bytes", 0)),
        "security": "paillier",
        "learns": result.learns,
    }


def _statistics_table(found: Mapping[str, Any]) -> PlainTable:
    """Columns by their information value, or the matrix."""
    table = PlainTable(title=f"{found['statistic']}, {found['rows']['train']:,} shared rows")
    if found["statistic"] == "woe":
        for name in ("column", "bins", *(f"information value of {one}" for one in found["classes"])):
            table.add_column(name)
        for name, values in sorted(found["iv"].items(), key=lambda one: -max(one[1])):
            table.add_row(name, str(len(found["columns"][name]["bins"])), *(f"{value:.4f}" for value in values))
        return table
    for name in ("", *found["columns"]):
        table.add_column(name)
    for name, row in zip(found["columns"], found["correlation"], strict=True):
        table.add_row(name, *("-" if value is None else f"{value:.3f}" for value in row))
    return table


def _compare(job: Any, tables: Mapping[str, Any], result: Any, predictions: Path | None) -> dict[str, Any]:
    """Compare with all columns in one place, and write the predictions."""
    from atoll.vertical import read_leaks, train_pooled

    outputs = len(result.classes) if result.task == "multiclass" else 1
    sizes = {name: len(table) for name, table in tables.items()}
    guest, *hosts = sizes
    pooled = train_pooled(job, tables, result)
    found: dict[str, Any] = {
        "task": result.task,
        "rows": {"guest": sizes[guest], "host": sizes[hosts[0]] if len(hosts) == 1 else [sizes[name] for name in hosts]}
        | result.rows,
        **result.compare(pooled),
        "seconds": result.cost.get("seconds"),
        "predicted_seconds": job.predict_cost(sizes, _columns(tables), outputs)["seconds"],
        "bytes": int(result.cost.get("bytes", 0)),
        "security": job.model.security,
        "learns": result.learns,
    }
    if getattr(job.model, "audit", ()):
        found["attacks"] = read_leaks(result)
    if predictions is not None:
        _write(predictions, {**result.predictions, "pooled": pooled}, result.classes, result.task)
        found["predictions"] = str(predictions)
    return found


SAVED = "vertical.json"
"""In the folder of ``--folder``: whose files they were, and the job between processes."""
Found = tuple[Any, Mapping[str, Path], str | None]
"""The result, each party's folder of named results, and the job between processes."""


def _in_this_process(job: Any, tables: Mapping[str, Any], folder: Path) -> Found:
    from atoll.simulation import simulate

    place = folder / "results"
    run = simulate(job, tables, engine="inline", results=place, progress=False)
    for line in run.notices:
        warnings.warn(line, UserWarning, stacklevel=2)
    return run.outcome, dict.fromkeys([*tables, *job.helpers()], place), None


def _between_processes(
    job: Any, files: Mapping[str, Path], folder: Path, output: Output, drop: Sequence[str]
) -> Found | None:
    """Train between a server and a site a file, each a process of its own; ``None`` if a person stopped it."""
    from atoll.core.errors import ConfigError
    from atoll.runtime.poc import OTHERS
    from atoll.runtime.provision.project import is_name

    wrong = next((name for name in files if not is_name(name) or name.lower() in OTHERS), None)
    if wrong is not None:
        raise ConfigError(
            f"{wrong!r} cannot be the name of a site",
            where=str(files[wrong]),
            remedy="rename the file: letters, digits and . _ -, and neither server, admin, auditor nor analyst",
        )
    found, _ = in_order(_train_at_sites(job, files, folder, output, drop))
    if found is None:
        return None
    number, cost = found
    places = {name: folder / "run" / name / "results" for name in [*files, *job.helpers()]}
    return job.read_result({name: places[name] for name in files}, cost), places, number


async def _train_at_sites(
    job: Any, files: Mapping[str, Path], folder: Path, output: Output, drop: Sequence[str]
) -> tuple[str, Mapping[str, float]]:
    """Start the processes, run the job between them, stop them; return its id, and what it cost."""
    from atoll.data import DataTable
    from atoll.runs import RunFolder, result_of
    from atoll.runtime.admin import Admin
    from atoll.runtime.poc import OTHERS, Poc, helper_names

    columns = {name: DataTable.read(file).columns for name, file in files.items()} if drop else {}
    data = {
        name: [
            str(file.absolute()),
            "--id",
            job.id,
            *(word for one in drop if one in columns[name] for word in ("--drop", one)),
        ]
        for name, file in files.items()
    }
    with (folder / "daemons.log").open("a", encoding="utf-8") as log:

        def keep(node: str, line: str) -> None:
            log.write(f"{node}: {line}\n")

        helpers = helper_names(job.helpers(), (*files, *OTHERS))
        async with Poc(folder, data, on_line=keep, helpers=helpers) as trial:
            besides = f", and the helper {', '.join(helpers)}" if helpers else ""
            output.note(f"A server at {trial.address} and {len(files)} sites{besides} talk over mutual TLS 1.3.")
            async with Admin(trial.kit("admin"), trial.address) as admin:
                asked = await admin.submit_job(job, name="vertical", sites=list(files))
                await admin.finish(asked["job"])
                await admin.result(asked["job"], folder / "result", replace=True)
    told: Mapping[str, Any] = result_of(RunFolder(folder / "result")).get("result") or {}
    return str(asked["job"]), told.get("cost") or {}


def _write(file: Path, told: Mapping[str, Any], classes: Sequence[str], task: str) -> None:
    """The shared rows in the common order, a line each. Numbers are the shortest that are the same in the model's precision, large ones exact: 1000000256.0, not 1.0000003e+09."""
    import numpy as np

    def write(number: Any) -> str:
        return str(float(number) if abs(number) >= _EXACT else number)

    names = ("alone", "federated", "pooled")
    several = task == "multiclass"
    header = [f"{name}_{one}" for name in names for one in classes] if several else list(names)
    values = np.concatenate([np.asarray(told[name]) for name in names], axis=1)
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["id", "split", "y", *header])
        for key, held, y, row in zip(
            told["id"].tolist(), told["test"].tolist(), told["y"].tolist(), values, strict=True
        ):
            shown = classes[int(y)] if classes else write(np.float32(y) if np.float32(y) == y else y)
            writer.writerow([key, "test" if held else "train", shown, *(write(one) for one in row)])


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
    taken = "-" if found["seconds"] is None else f"{found['seconds']:.3g}"
    table.add_row("seconds (predicted)", f"{taken} ({found['predicted_seconds']:.3g})")
    table.add_row("bytes", f"{found['bytes']:,}")
    table.add_row("security", found["security"])
    for attack, value in found.get("attacks", {}).items():
        table.add_row(f"attack: {attack}", f"{value:.4f}")
    for party, lines in found["learns"].items():
        for line in lines:
            table.add_row(f"{party} learns", line)
    return table
