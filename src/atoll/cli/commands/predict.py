"""``atoll predict``: a saved model's predictions for new rows."""

from __future__ import annotations

import contextlib
import csv
import io
import json as json_module
import secrets
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO

import typer

from atoll.cli.app import ANALYSE, INTERRUPT_CODE, app
from atoll.cli.arguments import FileOptions, Json, Root, output_of, sharing
from atoll.cli.asking import KitOption, PassphraseFile, ServerOption, asked, id_of, in_order, open_kit, telling
from atoll.cli.output import Output, note_found, require_folder
from atoll.core.errors import AtollError, CheckpointError, ConfigError, JobError, nearest
from atoll.core.persistence.files import write_bytes
from atoll.core.persistence.named_results import NamedResults

if TYPE_CHECKING:
    from atoll.data import DataTable
    from atoll.data.model_columns import RowPredictions, TableModel
    from atoll.runtime.admin import Admin
    from atoll.runtime.provision import Kit


Model = Annotated[
    str,
    typer.Argument(
        help="A model file, a run's name or folder, a folder of `atoll vertical --folder`, or with --kit a job.",
        metavar="MODEL",
    ),
]
Rows = Annotated[Path, typer.Option("--rows", help="CSV or Parquet file with rows.", metavar="FILE")]
Out = Annotated[Path, typer.Option("--out", help="CSV file for the predictions.", metavar="FILE")]
Code = Annotated[
    str | None,
    typer.Option("--model", help="What makes a training's network, where its run does not say.", metavar="MODULE:NAME"),
]
Unknown = Annotated[
    str | None,
    typer.Option("--unknown", help="Columns apart: rows that a host lacks: refuse (default), or guest: its own model."),
]
Daemon = Annotated[
    Path | None,
    typer.Option(
        "--folder", help="With the kit of a site: the folder of its daemon; by default ./NAME.", metavar="FOLDER"
    ),
]


@app.command("predict", rich_help_panel=ANALYSE)
@sharing(FileOptions)
def command(
    context: typer.Context,
    model: Model,
    rows: Rows,
    out: Out = Path("predictions.csv"),
    code: Code = None,
    unknown: Unknown = None,
    folder: Daemon = None,
    root: Root = Path("runs"),
    kit: KitOption = None,
    server: ServerOption = None,
    passphrase_file: PassphraseFile = None,
    json: Json = False,
    *,
    options: FileOptions,
) -> int:
    """Predict new rows with a saved model of trees, a fit or a training; columns are found by name. With the kit of a site: with a model over columns at several sites, whose hosts answer in one round trip."""
    from atoll.cli.commands.vertical import SAVED

    require_folder(out)
    if unknown not in (None, "refuse", "guest"):
        raise ConfigError(f"--unknown {unknown}", remedy="write --unknown refuse or --unknown guest")
    place = next((path for path in (Path(model), root / model) if path.exists()), None)
    opened = open_kit(kit, passphrase_file) if place is None and kit is not None else None
    apart = place is not None and (place / SAVED).is_file()
    if not apart and (opened is None or opened.role != "site"):
        for option, value in (("--unknown", unknown), ("--folder", folder)):
            if value is not None:
                raise ConfigError(
                    f"{option} {value} with a model that needs no other party",
                    remedy=f"leave it out: {option} is for models over columns at several parties",
                )
        found = _load(model, place, opened, server, root, code)
        _predict_alone(found, rows, options, out, output_of(context))
        return 0
    asks = _Asked(rows, options, unknown or "refuse", output_of(context))
    with _keep_notices() as notices:
        made = asks.saved(place) if apart and place is not None else asks.site(opened, folder, model, server)
    if made is None:
        return INTERRUPT_CODE
    write_bytes(out, _lines_of(made).encode())
    told = {
        "model": "vertical",
        "rows": len(made["ids"]),
        "file": str(out),
        "classes": made["classes"],
        **notices,
    }
    note_found(output_of(context), told, None)
    output_of(context).give(told, f"{len(made['ids']):,} predictions are in {out}")
    return 0


@contextlib.contextmanager
def _keep_notices() -> Iterator[dict[str, list[str]]]:
    """Collect what is said of the rows, once each, for a person and for JSON; any other warning is shown as ever."""
    found = dict[str, list[str]]()
    with warnings.catch_warnings():
        warnings.simplefilter("always", RuntimeWarning)
        show = warnings.showwarning

        def keep(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if not issubclass(category, RuntimeWarning):
                show(message, category, filename, lineno, file, line)
            elif str(message) not in found.setdefault("notices", []):
                found["notices"].append(str(message))

        warnings.showwarning = keep
        yield found


def _load(
    model: str, place: Path | None, kit: Kit | None, server: str | None, root: Path, code: str | None
) -> TableModel:
    """The model of a file, a run or a job.

    Raises:
        CheckpointError: there is none.
    """
    from atoll.runs.saved_models import load_model

    with tempfile.TemporaryDirectory() as fetched:
        if kit is not None:

            async def body(admin: Admin) -> list[Path]:
                return await admin.result(await id_of(admin, model), Path(fetched), replace=True)

            asked(kit, server, body)
            place = Path(fetched)
        if place is None:
            from atoll.runs import runs_in

            raise CheckpointError(
                f"there is no model, run or job {model!r}.{nearest(model, [run.name for run in runs_in(root)])}",
                where=str(root),
                remedy="give a file that exists, a run of `atoll runs`, or a job of `atoll jobs` with --kit",
            )
        return load_model(place, model=code)


def _predict_alone(found: TableModel, rows: Path, options: FileOptions, out: Path, output: Output) -> None:
    from atoll.data import DataTable

    # A file in the usual form is read by the model, whose errors name its lines.
    given = rows if options == FileOptions() else DataTable.read(rows, **options.plain())
    with _keep_notices() as notices:
        answer = found.answer(given, str(rows))
    write_bytes(out, _table_of(answer, found).encode())
    count = len(answer.prediction)
    told: dict[str, Any] = {
        "model": found.title,
        "rows": count,
        "file": str(out),
        "columns": list(found.columns.features),
        "classes": list(found.columns.classes),
        **notices,
    }
    note_found(output, told, None)
    output.give(told, f"{count:,} predictions of {found.title} are in {out}")


@dataclass(frozen=True)
class _Asked:
    """Rows to predict with a model over columns at several parties."""

    rows: Path
    options: FileOptions
    unknown: Any
    output: Output

    def read(self, key: str) -> DataTable:
        """The rows; their keys stay text."""
        from atoll.data import DataTable

        return DataTable.read(self.rows, text=[key], **self.options.plain()).named(str(self.rows))

    def site(self, kit: Any, folder: Path | None, job: str, server: str | None) -> dict[str, Any] | None:
        """Ask as a site; ``None`` if a person stopped it."""
        place = folder or Path(kit.name)
        asking = predict_at_site(kit, place, self.read, job=job, server=server, unknown=self.unknown, on_change=telling(self.output))  # fmt: skip
        return in_order(asking)[0]

    def saved(self, place: Path) -> dict[str, Any] | None:
        """Ask the parties of a folder of `atoll vertical --folder`, in this process or in processes of their own again."""
        from atoll.cli.commands.vertical import SAVED

        saved = json_module.loads((place / SAVED).read_text(encoding="utf-8"))
        guest, files = str(saved["guest"]), {str(name): Path(file) for name, file in saved["files"].items()}
        if saved["job"] is not None:
            return in_order(self._between_processes(place, guest, files, saved))[0]
        from atoll.data import DataTable
        from atoll.simulation import simulate
        from atoll.vertical.prediction import keep_rows, take_answers

        results = NamedResults(place / "results")
        job = keep_rows(results, guest, self.read(saved["id"]), secrets.token_hex(8), self.unknown)
        tables = {name: DataTable.read(file, text=[saved["id"]]).named(str(file)) for name, file in files.items()}
        try:
            simulate(job, tables, engine="inline", results=place / "results", progress=False)
        except AtollError:
            with contextlib.suppress(ConfigError):  # there are no answers
                take_answers(results, job)  # says what a host lacks, with the names of the rows
            raise
        return take_answers(results, job)

    async def _between_processes(
        self, place: Path, guest: str, files: Mapping[str, Path], saved: Mapping[str, Any]
    ) -> dict[str, Any]:
        from atoll.runtime.poc import Poc

        data = {name: [str(file), "--id", saved["id"]] for name, file in files.items()}
        async with Poc(place, data, helpers=saved["helpers"]) as trial:
            self.output.note(f"A server at {trial.address} and {len(data)} sites are there again.")
            return await predict_at_site(
                trial.kit(guest), place / "run" / guest, self.read, job=saved["job"], server=trial.address,
                unknown=self.unknown, on_change=telling(self.output),
            )  # fmt: skip


async def predict_at_site(
    kit: Kit,
    folder: Path,
    read: Callable[[str], DataTable],
    *,
    job: str | None = None,
    server: str | None = None,
    unknown: Literal["refuse", "guest"] = "refuse",
    on_change: Callable[[dict[str, Any]], None] = lambda job: None,
) -> dict[str, Any]:
    """Predict rows with the model that the guest's site keeps, as a job that the site signs itself; see `take_answers` for the result.

    The rows and the answers go through the folder of the site's daemon, on the machine of the site alone. The hosts' sites learn the keys.

    Args:
        kit: the guest's kit.
        folder: the folder of the guest's daemon, which runs.
        read: reads the rows, given the column of their keys.
        job: the id or number of the training that the model must be of; by default any.
        server: ``host:port`` in place of the kit's addresses.
        unknown: see `VerticalPrediction`.
        on_change: called with the job whenever it changes.

    Raises:
        ConfigError: the kit is no site's, or the folder has no model.
        JobError: the model is of another job, or the prediction was aborted.
        DataError: the rows cannot be used, or a host lacks some of them.
        AtollError: what ended the job.
    """
    from atoll.core.requests.wire import unpack_error
    from atoll.runtime.admin import Admin
    from atoll.runtime.daemon.place import results_of
    from atoll.vertical.job import MODEL
    from atoll.vertical.prediction import keep_rows, take_answers

    kit.require("site")
    results = NamedResults(results_of(folder))
    kept = next((one for one in results.all(kit.name) if one.name == MODEL), None)
    if kept is None:
        raise ConfigError(
            f"site {kit.name!r} keeps no part of a model in {str(folder)!r}",
            where="--folder",
            remedy="give the folder of this site's daemon, see `atoll site --folder`; train first: a job of the kind vertical",
        )
    async with Admin(kit, server) as admin:
        if job is not None:
            asked = (await admin.job(int(job) if job.isdecimal() and len(job) <= 18 else job))["job"]
            if asked != kept.job:
                raise JobError(
                    f"the model that site {kit.name!r} keeps is of job {kept.job}",
                    where=f"job {asked}",
                    remedy=f"ask with job {kept.job}, or train again: a site keeps the part of its last training",
                )
        half = results.get(kit.name, MODEL)
        made = keep_rows(results, kit.name, read(half.get("keys", {}).get("id", "id")), secrets.token_hex(8), unknown)
        try:
            sites = [kit.name, *half["hosts"]]
            submitted = await admin.submit_job(made, name="predict", sites=sites)
            ended = await admin.wait(submitted["job"], on_change)
        except BaseException:
            results.remove(kit.name, str(made.rows))
            raise
    error = None if ended["error"] is None else unpack_error(ended["error"])
    try:
        return take_answers(results, made)
    except ConfigError:
        if error is not None:
            raise error from None
        raise JobError(f"it ended as {ended['state']}: {ended['reason']}", where=f"job {ended['job']}", remedy="ask again") from None  # fmt: skip


def _lines_of(found: Mapping[str, Any]) -> str:
    """Answers of several parties as CSV, a line a row in the order asked: the key, the prediction, and of classes the probability of each."""
    import numpy as np

    made, classes = np.asarray(found["predictions"]), list(found["classes"])
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["id", "prediction", *(f"probability_{name}" for name in classes)])
    if classes:
        shares = made if made.ndim > 1 else np.stack([1 - made, made], axis=1)
        for key, row in zip(found["ids"], shares, strict=True):
            writer.writerow([key, classes[int(row.argmax())], *(str(one) for one in row)])
    else:
        writer.writerows([key, str(one)] for key, one in zip(found["ids"], made, strict=True))
    return text.getvalue()


def _table_of(answer: RowPredictions, model: TableModel) -> str:
    """The predictions as CSV, a line a row in the order of the rows; numbers come back to the bit."""
    columns: dict[str, list[Any]] = {}
    if answer.prediction.ndim == 1:
        columns["prediction"] = answer.prediction.tolist()
    else:
        flat = answer.prediction.reshape(len(answer.prediction), -1)
        columns |= {f"prediction_{k}": flat[:, k].tolist() for k in range(flat.shape[1])}
    if answer.probabilities is not None:
        names = model.columns.classes
        columns |= {f"probability_{name}": answer.probabilities[:, k].tolist() for k, name in enumerate(names)}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue()
