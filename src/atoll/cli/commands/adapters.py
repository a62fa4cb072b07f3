"""``atoll adapters``: tune small parts of a frozen encoder on the texts or images of several domains, and hash an encoder's folder or make one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.markup import escape

from atoll.cli.app import EXTRAS, app
from atoll.cli.arguments import Json, output_of
from atoll.cli.output import PlainTable

group = typer.Typer(help="Tune small parts of a frozen encoder.", no_args_is_help=True)
app.add_typer(group, name="adapters", rich_help_panel=EXTRAS)


@group.command("hash")
def show_hash(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="Folder of an encoder.", metavar="DIR")],
    json: Json = False,
) -> None:
    """Print the hash that a job between organisations names: `digest`."""
    from atoll.adapters import Encoder

    found = Encoder.open(str(folder)).digest
    output_of(context).give({"digest": found}, found)


@group.command("pretrain")
def pretrain(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="Where to write the encoder.", metavar="DIR")],
    pairs: Annotated[int, typer.Option("--pairs", help="Generated pictures and captions.", min=2)] = 4096,
    steps: Annotated[int, typer.Option("--steps", help="Steps of training.", min=1)] = 400,
    width: Annotated[int, typer.Option("--width", help="Numbers of the features, a multiple of 4.", min=4)] = 64,
    batch: Annotated[int, typer.Option("--batch", help="Pairs of a step.", min=2)] = 128,
    seed: Annotated[int, typer.Option("--seed", help="Draws pictures and first weights.")] = 0,
    json: Json = False,
) -> None:
    """Make a small dual encoder from generated pictures and captions. It has seen no photograph, and its weights are not CLIP's."""
    from dataclasses import asdict

    from atoll.adapters import pretrain_encoder

    found = asdict(pretrain_encoder(folder, pairs=pairs, steps=steps, width=width, batch=batch, seed=seed))
    output_of(context).give(found, _table_of(found))


Rows = Annotated[
    Path,
    typer.Argument(
        help="CSV file with a text or an image a row, or a folder with labels.csv in it.", metavar="ROWS.csv"
    ),
]
ImageColumn = Annotated[
    str,
    typer.Option(
        "--image", help="Column of images, in place of texts: names of files, below the folder of the CSV file."
    ),
]
Prompt = Annotated[str, typer.Option("--prompt", help='A text for each class: "a {label} tweet". By default its name.')]
MethodName = Annotated[
    str,
    typer.Option(
        "--method",
        help="attai, bottleneck, linear, promptfl, lora, ia3, prompt, bitfit, whole, or zero-shot, which trains nothing.",
    ),
]
Side = Annotated[
    Literal["input", "text", "both"],
    typer.Option("--side", help="With --method attai: where it stands, on rows, on the prompts of classes, or both."),
]
Loss = Annotated[Literal["class", "batch"], typer.Option("--loss", help="Against all classes, or FedCLIP's Eq. 8.")]
Mix = Annotated[
    bool,
    typer.Option(
        "--mix", help="Each participant also mixes the frozen encoder, the adapter and one that goes on learning there."
    ),
]
Length = Annotated[int, typer.Option("--length", help="Tokens of a text; longer texts are cut.", min=1)]


@group.command("train")
def train(
    context: typer.Context,
    rows: Rows,
    encoder: Annotated[str, typer.Option("--encoder", help="Folder of the frozen encoder.", metavar="DIR")],
    text: Annotated[str, typer.Option("--text", help="Column of texts.")] = "text",
    image: ImageColumn = "",
    label: Annotated[str, typer.Option("--label", help="Column of classes.")] = "label",
    domain: Annotated[str, typer.Option("--group", help="Column of domains, each a participant.")] = "group",
    prompt: Prompt = "",
    method: MethodName = "attai",
    side: Side = "input",
    loss: Loss = "class",
    leave_out: Annotated[str, typer.Option("--leave-out", help="each, none, or a domain.")] = "each",
    rounds: Annotated[int, typer.Option("--rounds", help="Rounds of training.", min=1)] = 15,
    lr: Annotated[float, typer.Option("--lr", help="Learning rate of Adam.")] = 0.001,
    batch: Annotated[int, typer.Option("--batch", help="Rows of a step.", min=1)] = 32,
    length: Length = 64,
    mix: Mix = False,
    seed: Annotated[int, typer.Option("--seed", help="Divides the rows, and seeds the trainings.")] = 0,
    json: Json = False,
) -> None:
    """Tune on all domains but one; measure on the participants and on the domain that never trained."""
    from atoll import simulate
    from atoll.adapters import leave_domains_out
    from atoll.adapters.leave_out import measure_zero_shot
    from atoll.algorithms import LocalAdam
    from atoll.runs.config import job_class
    from atoll.selection import Everyone

    _require_used(method, side, loss, mix)
    columns = _read_columns(rows, image or text, label, domain, bool(image))
    settings: dict[str, Any] = {
        "encoder": encoder, "text": text, "image": image, "prompt": prompt, "length": length, "loss": loss, "rounds": rounds,
    }  # fmt: skip
    kind: Any = job_class("tuning")
    if method == "zero-shot":
        found = measure_zero_shot(kind(**settings), *columns)
    else:
        local = LocalAdam(lr=lr, batch_size=batch)
        job = kind(**settings, method=_method_of(method, encoder, side), algorithm=local, selection=Everyone())
        found = leave_domains_out(job, *columns, run=simulate, leave_out=leave_out, mix=mix, seed=seed)
    output_of(context).give({"method": method, **found}, _table_of(found))


def _require_used(method: str, side: str, loss: str, mix: bool) -> None:
    """Refuse options that the method would not follow: the answer would be that of other options.

    Raises:
        ConfigError: there is such an option.
    """
    from atoll.core.errors import ConfigError

    if side != "input" and method != "attai":
        raise ConfigError(f"--side {side} with --method {method}", remedy="leave --side out, or use --method attai")
    unused = [*(["--loss batch"] if loss == "batch" else []), *(["--mix"] if mix else [])]
    if method == "zero-shot" and unused:
        raise ConfigError(
            f"{' '.join(unused)} with --method zero-shot, which trains nothing",
            remedy=f"leave {' and '.join(unused)} out, or use a method that trains, such as --method attai",
        )


def _read_columns(rows: Path, column: str, label: str, domain: str, images: bool) -> list[list[str]]:
    """Return texts, or names of images in full, with their classes and domains."""
    from atoll.adapters.images import images_below
    from atoll.data import DataTable

    file = rows / "labels.csv" if rows.is_dir() else rows
    table = DataTable.read(file)
    columns = [
        ["" if one is None or one != one else str(one) for one in table[name].tolist()]
        for name in (column, label, domain)
    ]
    if images:
        columns[0] = images_below(file.resolve().parent, columns[0])
    return columns


def _table_of(found: dict[str, Any]) -> PlainTable:
    table = PlainTable(header_style="bold")
    for place, name in enumerate(("measure", "value")):
        table.add_column(name, justify="right" if place else "left")
    for name, value in found.items():
        if name != "folds":
            table.add_row(escape(name), f"{value:.4g}" if isinstance(value, float) else escape(str(value)))
    return table


def _method_of(name: str, encoder: str, side: Literal["input", "text", "both"]) -> Any:
    """Return a method with the settings that suit layers named as those of BERT, or as those of CLIP and ViT where the encoder has these.

    Raises:
        ConfigError: there is no such method.
    """
    from atoll.adapters import AttAI, BitFit, Bottleneck, Encoder, LinearHead, Peft, PromptFL, WholeModel
    from atoll.core.errors import ConfigError, nearest

    inside = [*Encoder.open(encoder).model.named_modules()] if name in ("lora", "ia3") else []
    projected = any(own.endswith(".q_proj") for own, _ in inside)
    query, inner = (
        (("q_proj", "v_proj"), ("k_proj", "v_proj", "fc2"))
        if projected
        else (("query", "value"), ("key", "value", "output.dense"))
    )
    known = {
        "attai": AttAI(side=side), "bottleneck": Bottleneck(), "linear": LinearHead(), "bitfit": BitFit(), "whole": WholeModel(),
        "promptfl": PromptFL(),
        "lora": Peft("LORA", {"r": 8, "target_modules": [*query]}),
        "ia3": Peft("IA3", {"target_modules": [*inner], "feedforward_modules": [inner[-1]]}),
        "prompt": Peft("PROMPT_TUNING", {"num_virtual_tokens": 8}),
    }  # fmt: skip
    if name not in known:
        raise ConfigError(
            f"--method {name}.{nearest(name, known)}", remedy=f"use one of {', '.join([*known, 'zero-shot'])}"
        )
    return known[name]
