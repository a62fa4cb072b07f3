"""``atoll crossmodal``: play on this machine how a folder of speech and a file of texts help each other."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from atoll.cli.app import ANALYSE, app
from atoll.cli.arguments import Json, output_of
from atoll.cli.output import PlainTable
from atoll.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from atoll.crossmodal import TextToPhone, Utterances

__all__: list[str] = []


@app.command("crossmodal", rich_help_panel=ANALYSE)
def crossmodal(
    context: typer.Context,
    speech: Annotated[Path, typer.Option("--speech", help="A folder of WAV files with labels.csv: file,label. Of numbers, labels up to 0 are negative, others positive.", exists=True, file_okay=False)],
    text: Annotated[Path, typer.Option("--text", help="A CSV file: text,label, with labels alike.", exists=True, dir_okay=False)],
    epsilon: Annotated[float | None, typer.Option("--epsilon", help="Promise for each utterance; without it no noise.")] = None,
    delta: Annotated[float, typer.Option("--delta", help="Its delta.")] = 1e-5,
    rounds: Annotated[int, typer.Option("--rounds", help="Exchanges.", min=1)] = 10,
    iterations: Annotated[int, typer.Option("--iterations", help="Steps of a round.", min=1)] = 50,
    lexicon: Annotated[
        Path | None, typer.Option("--lexicon", help="A dictionary in CMU's form; by default that of PocketSphinx.", exists=True, dir_okay=False)
    ] = None,
    encoder: Annotated[Path | None, typer.Option("--encoder", help="A folder with a pretrained encoder of text, which the text side then reads with.", exists=True, file_okay=False)] = None,
    lr: Annotated[float, typer.Option("--lr", help="Step size of what stays.")] = 0.003,
    shared_lr: Annotated[float, typer.Option("--shared-lr", help="Step size of what is shared.")] = 0.3,
    fused: Annotated[bool, typer.Option("--fused", help="Train the shared part on the fused decision, as the paper does; no epsilon is claimed then.")] = False,
    share_fusion: Annotated[bool, typer.Option("--share-fusion", help="Share the fusion too.")] = False,
    seeds: Annotated[int, typer.Option("--seeds", help="Trainings to take the mean of.", min=1)] = 1,
    seed: Annotated[int, typer.Option("--seed", help="The first seed.", min=0)] = 0,
    json: Json = False,
) -> None:  # fmt: skip
    """Compare what each side reaches alone, with the other side's help, and with all rows in one place."""
    from atoll.crossmodal import PretrainedText, TextToPhone, read_speech, read_texts
    from atoll.runs.config import job_class

    begin = time.perf_counter()
    if share_fusion and epsilon is not None and not fused:
        raise ConfigError(
            "--share-fusion with --epsilon: gradients of the fusion depend on networks that were trained without noise",
            remedy="leave --share-fusion out, or add --fused, which claims no epsilon",
        )
    words = None if lexicon is None else TextToPhone.read(lexicon)
    parties = {"speech": read_speech(speech), "text": read_texts(text, phones=words)}
    _require_shared_class(parties)
    kind: Any = job_class("crossmodal")
    pretrained = {} if encoder is None else {"text": PretrainedText(encoder=str(encoder))}
    job = kind(
        epsilon=epsilon, delta=delta, rounds=rounds, iterations=iterations, lr=lr, shared_lr=shared_lr, shared_loss="fused" if fused else "auto", share_fusion=share_fusion, **pretrained
    )  # fmt: skip
    runs = [_compare(job, parties, number, words) for number in range(seed, seed + seeds)]
    arms = {arm: {side: float(np.mean([run[arm][side] for run in runs])) for side in parties} for arm in ("mono", "federated", "oracle")}  # fmt: skip
    if all(run["aligned"] is not None for run in runs):
        arms["aligned"] = {"speech": float(np.mean([run["aligned"] for run in runs]))}
    last: Any = runs[-1]["result"]
    claimed = job.promised
    found = {
        **arms, "rounds": last["rounds"], "epsilon": job.epsilon if claimed else None, "delta": delta if claimed else None,
        "bytes": last["bytes"], "parameters": last["parameters"], "classes": last["classes"],
        "utterances": {name: len(rows) for name, rows in parties.items()},
        **_rate_decoder(parties["speech"], words), "unknown_words": parties["text"].unknown, "words": parties["text"].words, "seeds": seeds, "seconds": round(time.perf_counter() - begin, 2),
    }  # fmt: skip
    output_of(context).give(found, _table(arms, found))


def _rate_decoder(spoken: Utterances, words: TextToPhone | None) -> dict[str, Any]:
    """How well phones were recognised, over the utterances of which it is known what was said; ``None`` where there are none."""
    from atoll.crossmodal.phones import TextToPhone, rate_phone_errors

    known = [i for i, text in enumerate(spoken.texts) if text.strip()]
    if not known:
        return {"phone_errors": None, "texts_known": 0}
    translate = words or TextToPhone.installed()
    rate = rate_phone_errors([translate(spoken.texts[i]).phones for i in known], [spoken.phones[i] for i in known])
    return {"phone_errors": rate if math.isfinite(rate) else None, "texts_known": len(known)}


def _require_shared_class(parties: dict[str, Utterances]) -> None:
    """Refuse sides whose labels have other names.

    Raises:
        DataError: no class is of both sides.
    """
    one, two = (rows.counts for rows in parties.values())
    if not set(one) & set(two):
        raise DataError(
            f"speech has the classes {', '.join(one)}, and text {', '.join(two)}",
            where="crossmodal",
            remedy="name the classes alike in labels.csv and in the file of texts",
        )


def _compare(job: Any, parties: dict[str, Utterances], seed: int, words: TextToPhone | None) -> dict[str, Any]:
    """The arms of one seed, each an F1 a side; and the F1 of both decisions joined, where it is known what was said."""
    from atoll.crossmodal import train_aligned, train_alone, train_together
    from atoll.simulation import simulate

    classes = tuple(sorted({name for rows in parties.values() for name in rows.counts}))
    agreed = replace(job, classes=classes)
    outcome = simulate(agreed, parties, seed=seed, engine="inline").outcome
    together = train_together(agreed, parties, seed)
    spoken = parties["speech"]
    return {
        "aligned": train_aligned(agreed, spoken, seed, phones=words)["f1"]
        if spoken.texts and all(map(str.strip, spoken.texts))
        else None,
        "mono": {side: train_alone(agreed, rows, seed)["f1"] for side, rows in parties.items()},
        "federated": {side: float(outcome.sides[side]["f1"]) for side in parties},
        "oracle": {side: together[side]["f1"] for side in parties},
        "result": outcome.plain(),
    }


def _table(arms: dict[str, dict[str, float]], found: dict[str, Any]) -> PlainTable:
    rate, spoken = found["phone_errors"], found["utterances"]["speech"]
    heard = "how well phones were recognised is not known: labels.csv has no column text with what was said"
    if rate is not None:
        heard = f"phones put in, left out or replaced by the decoder: {rate:.0%} of those that were said, in {found['texts_known']} of {spoken} utterances"
    table = PlainTable(header_style="bold", caption=heard, caption_justify="left")
    for column in ("F1", *arms):
        table.add_column(column, justify="left" if column == "F1" else "right")
    for side in ("speech", "text"):
        table.add_row(side, *(f"{values[side]:.3f}" if side in values else "" for values in arms.values()))
    return table
