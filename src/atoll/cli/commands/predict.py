"""``atoll predict``: a saved model's predictions for new rows."""

from __future__ import annotations

import csv
import io
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atoll.cli.app import ANALYSE, app
from atoll.cli.arguments import FileOptions, Json, Root, output_of, sharing
from atoll.cli.asking import KitOption, PassphraseFile, ServerOption, asked, id_of, open_kit
from atoll.core.errors import CheckpointError, nearest
from atoll.core.persistence.files import write_bytes

if TYPE_CHECKING:
    from atoll.data.model_columns import RowPredictions, TableModel
    from atoll.runtime.client.admin import Admin


@app.command("predict", rich_help_panel=ANALYSE)
@sharing(FileOptions)
def command(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(help="A model file, a run's name or folder, or with --kit a job.", metavar="MODEL"),
    ],
    rows: Annotated[Path, typer.Option("--rows", help="CSV or Parquet file with rows.", metavar="FILE")],
    out: Annotated[Path, typer.Option("--out", help="CSV file for the predictions.", metavar="FILE")] = Path(
        "predictions.csv"
    ),
    code: Annotated[
        str | None,
        typer.Option(
            "--model", help="What makes a training's network, where its run does not say.", metavar="MODULE:NAME"
        ),
    ] = None,
    root: Root = Path("runs"),
    kit: KitOption = None,
    server: ServerOption = None,
    passphrase_file: PassphraseFile = None,
    json: Json = False,
    *,
    options: FileOptions,
) -> None:
    """Predict new rows with a saved model of trees, a fit or a training; columns are found by name."""
    from atoll.cli.output import require_folder
    from atoll.data import DataTable
    from atoll.runs.saved_models import load_model

    require_folder(out)
    place = next((path for path in (Path(model), root / model) if path.exists()), None)
    with tempfile.TemporaryDirectory() as fetched:
        if place is None and kit is not None:

            async def body(admin: Admin) -> list[Path]:
                return await admin.result(await id_of(admin, model), Path(fetched), replace=True)

            asked(open_kit(kit, passphrase_file), server, body)
            place = Path(fetched)
        if place is None:
            from atoll.runs import runs_in

            raise CheckpointError(
                f"there is no model, run or job {model!r}.{nearest(model, [run.name for run in runs_in(root)])}",
                where=str(root),
                remedy="give a file that exists, a run of `atoll runs`, or a job of `atoll jobs` with --kit",
            )
        found = load_model(place, model=code)
    # A file in the usual form is read by the model, whose errors name its lines.
    given = rows if options == FileOptions() else DataTable.read(rows, **options.plain())
    answer = found.answer(given, str(rows))
    write_bytes(out, _table_of(answer, found).encode())
    count = len(answer.prediction)
    told: dict[str, Any] = {
        "model": found.title,
        "rows": count,
        "file": str(out),
        "columns": list(found.columns.features),
    }
    told["classes"] = list(found.columns.classes)
    output_of(context).give(told, f"{count:,} predictions of {found.title} are in {out}")


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
