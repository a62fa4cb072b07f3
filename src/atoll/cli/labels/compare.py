"""``atoll labels compare``: do rows without labels help, how much, by which method, at what cost."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from atoll.core.errors import ConfigError
from atoll.core.extras import need

from ..arguments import Json, output_of
from ..output import PlainTable

if TYPE_CHECKING:
    from .rows import LabelSetting

__all__ = ["chosen", "compared", "labels_compare", "told_in_turn"]


def labels_compare(
    context: typer.Context,
    data: Annotated[
        str, typer.Argument(help="A name such as mnist, an .npz file with x and y, or a CSV file.", metavar="DATA")
    ],
    methods: Annotated[
        str | None,
        typer.Option(
            "--methods",
            help="Methods of atoll.labels, with commas; labelled is the baseline, FedSimCLR+SemiFL pretrains. By default SemiFL, FedSimCLR without labels, ForwardCorrection with wrong ones.",
        ),
    ] = None,
    at: Annotated[str, typer.Option("--at", help="Where labels are: rows, parties, server, classes or none.")] = "rows",
    keep: Annotated[int | None, typer.Option("--keep", help="Labels (or parties, or classes) to keep.", min=1)] = None,
    size: Annotated[int, typer.Option("--size", help="Rows to train on.", min=1)] = 10_000,
    test: Annotated[int, typer.Option("--test", help="Rows to test on.", min=1)] = 2_000,
    wrong: Annotated[float, typer.Option("--wrong", help="Share of wrong labels.")] = 0.0,
    noise: Annotated[str, typer.Option("--noise", help="pair or symmetric.")] = "pair",
    parties: Annotated[
        int | None, typer.Option("--parties", help="Clients; by default 20, without labels 5.", min=1)
    ] = None,
    alpha: Annotated[float | None, typer.Option("--alpha", help="Skew of classes; 0 divides at random.", min=0)] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            "--rounds",
            help="Rounds of each method; by default 60, with few labels at clients 100, without labels 50.",
            min=1,
        ),
    ] = None,
    rate: Annotated[float | None, typer.Option("--lr", help="Learning rate of all trainings; by default .03.")] = None,
    seeds: Annotated[int, typer.Option("--seeds", help="Trainings of each method.", min=1)] = 3,
    target: Annotated[str | None, typer.Option("--target", help="Column to predict, for CSV files.")] = None,
    text: Annotated[str | None, typer.Option("--text", help="Column of texts, for CSV files.")] = None,
    party: Annotated[str | None, typer.Option("--party", help="Column that names a row's owner.")] = None,
    missing: Annotated[str | None, typer.Option("--missing", help="Value of the label that means none.")] = None,
    guard: Annotated[
        bool,
        typer.Option(
            "--guard/--no-guard",
            help="Hold out a fifth of the labels; give a method up for labelled rows alone if they say that it is worse.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Train methods with unlabelled rows or wrong labels, and the strongest of labelled rows alone, and compare them seed by seed.

    The baseline has all labelled rows in one place and takes as many steps, without views, with weak and with strong ones; the best of the three counts.
    With --at none, a linear probe on KEEP rows and strong views of them measures the features, beside probes on pixels and on an untrained network without views,
    with weak and with strong ones.

    Data that lack labels need no --keep: their labels stay where they are, and rows are divided at random, or by --party. By default --alpha is .5.
    """
    need("torch", "torch", "atoll labels compare")
    from .rows import PARTY, LabelSetting, rows_of
    from .runs import LabelRuns

    if rate is not None and not rate > 0:
        raise ConfigError(f"lr={rate:g}", where="atoll labels compare", remedy="use a rate above 0, such as --lr 0.03")
    setting = LabelSetting(at, keep, size, test, wrong, noise, parties, alpha)
    rows = rows_of(data, target, text, missing, party)
    setting, owner = setting.of(rows), PARTY if PARTY in rows else None
    runs = LabelRuns(rows, setting, rounds or setting.usual_rounds, rate, owner, guard)
    output = output_of(context)
    found = compared(runs, chosen(methods, setting), seeds, output.note)
    output.give(found, _table(found))


def chosen(methods: str | None, setting: LabelSetting) -> list[str]:
    """Return the methods that are named, without the baseline; with no names, one that fits who has which labels."""
    if methods is None:
        return ["ForwardCorrection" if setting.wrong else "FedSimCLR" if setting.at == "none" else "SemiFL"]
    return [name for name in methods.split(",") if name and name != "labelled"]


def compared(
    runs: Any, names: list[str], seeds: int, tell: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Return the comparison of methods with labelled rows alone.

    Args:
        runs: the trainings, `atoll.cli.labels.runs.LabelRuns`.
        names: methods.
        seeds: trainings of each; labelled rows and parties follow the seed.
        tell: gets a line about each training that has ended.
    """
    from atoll.labels.evaluators import paired_gain

    from .runs import medians

    made = {name: runs.method(name) for name in names}  # refuses an unknown name before anything is trained
    before = {name: runs.pretraining(name) for name in names}
    steps = max([runs.steps(one) + runs.steps(before[name]) for name, one in made.items()], default=500)
    told = told_in_turn(tell, seeds * (1 + len(names)))
    alone = []
    for seed in range(seeds):
        alone.append(runs.baselines(seed, steps))
        told("baselines", seed, max(alone[-1].values()))
    strongest = max(alone[0], key=lambda view: float(np.median([scores[view] for scores in alone])))
    base = [scores[strongest] for scores in alone]
    medians_of = {view: float(np.median([scores[view] for scores in alone])) for view in alone[0]}
    methods: dict[str, Any] = {}
    helped: list[str] = []
    for name in names:
        trained = []
        for seed in range(seeds):
            trained.append(runs.trained(name, seed))
            told(name, seed, trained[-1]["score"])
        scores = [one["score"] for one in trained]
        gain = paired_gain(scores, base)
        methods[name] = {
            "scores": scores,
            "median": float(np.median(scores)),
            "gain": gain.gain,
            "interval": None if gain.interval is None else list(gain.interval),
            **{what: medians(trained, what) for what in ("coverage", "purity", "seconds")},
            **{what: int(medians(trained, what)) for what in ("bytes_up", "bytes_down")},
            **_card(name),
            **({"guard": [one["guard"] for one in trained]} if runs.guard else {}),
        }
        helped += [name] if gain.helped else []
    return {
        "setting": {
            **asdict(runs.setting),
            "rounds": runs.rounds,
            "lr": runs.rate,
            "seeds": seeds,
            "steps": steps,
            "baselines": medians_of,
        },
        "rows": len(runs.rows),
        "metric": "probe accuracy" if runs.setting.at == "none" else "accuracy",
        "baseline": {
            "name": f"a probe on {strongest}"
            if runs.setting.at == "none"
            else f"labelled rows in one place, {strongest} views",
            "scores": base,
            "median": float(np.median(base)),
        },
        "methods": methods,
        "helped": helped,
    }


def told_in_turn(tell: Callable[[str], None], trainings: int) -> Callable[[str, int, float | None], None]:
    """Return a function that tells, after each of some trainings, which one it was, its score, and the time that it took."""
    done, begun = 0, time.perf_counter()

    def told(name: str, seed: int, score: float | None) -> None:
        nonlocal done, begun
        done, now = done + 1, time.perf_counter()
        reached = "" if score is None else f", {score:.3f}"
        tell(f"{done} of {trainings}: {name}, seed {seed}{reached}, in {now - begun:.1f} s")
        begun = now

    return told


_OUTSIDE = {"ForwardCorrection": "counts of neighbours' labels"}
"""What methods that are not in the survey expose."""


def _card(name: str) -> dict[str, str]:
    """Return what a method, or each of two, keeps at clients and exposes."""
    from atoll.labels.survey import SURVEY

    cards = {one.part: one for one in SURVEY if one.part}
    known = [cards[part] for part in name.split("+") if part in cards]
    state = [one.state for one in known if one.state != "none"]
    shown = [one.exposes for one in known if one.exposes != "nothing"]
    shown += [_OUTSIDE[part] for part in name.split("+") if part in _OUTSIDE]
    return {"client_state": "; ".join(state) or "none", "exposes": "; ".join(shown) or "nothing"}


def _table(found: dict[str, Any]) -> PlainTable:
    table = PlainTable(header_style="bold")
    table.add_column("trained with")
    for name in (found["metric"], "gain", "interval", "coverage", "purity", "seconds"):
        table.add_column(name, justify="right")
    table.add_column("exposed")
    base = found["baseline"]
    table.add_row(base["name"], f"{base['median']:.3f}", *[""] * 6)
    for name, one in found["methods"].items():
        low_high = "" if one["interval"] is None else "{:+.3f} … {:+.3f}".format(*one["interval"])
        shares = ["" if one[what] is None else f"{one[what]:.2f}" for what in ("coverage", "purity")]
        table.add_row(
            name, f"{one['median']:.3f}", f"{one['gain']:+.3f}", low_high, *shares, f"{one['seconds']:.0f}", one["exposes"]
        )  # fmt: skip
    return table
