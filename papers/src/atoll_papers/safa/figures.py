"""The figures of the documentation's pages on SAFA and on asynchrony, as SVG.

    python -m atoll_papers.safa.figures docs/img
    python -m atoll_papers.safa.figures docs/img --lab runs/reproduce

draws `asynchrony-timeline.svg` (a run of six clients at three paces) and `asynchrony-lengths.svg` (simulated rounds); with the folder of a lab also
`safa-losses.svg`, from the trainings of `atoll reproduce safa-boston`, `safa-mnist` and `safa-kdd` that it holds.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from atoll.core.extras import need

from .grid import cost
from .paper import LOSSES
from .tasks import CRASHES, FRACTIONS, KDD, TASKS

__all__ = ["Span", "Timeline", "draw_lengths", "draw_losses", "draw_timeline", "lengths", "losses", "main", "timeline"]


# ------------------------------------------------------------------ a run of six clients, recorded by their devices


@dataclass(frozen=True)
class Span:
    """A client at work.

    Attributes:
        client: its position.
        start: seconds.
        end: when its reply arrived or was lost.
        lost: it crashed, or received a newer model before it was done.
    """

    client: int
    start: float
    end: float
    lost: bool


@dataclass
class _Witness:
    """A model of devices that records its answers."""

    fleet: Any
    spans: list[Span] = field(default_factory=list)

    def plan(self, parties: Any, plan: Any) -> Any:
        made = self.fleet.plan(parties, plan)
        ends, done = plan.now + np.asarray(made.seconds), np.asarray(made.done)
        of = zip(parties.positions.tolist(), ends.tolist(), done.tolist(), strict=True)
        self.spans += [Span(k, plan.now, end, not ok) for k, end, ok in of]
        return made

    def __getattr__(self, name: str) -> Any:
        return getattr(self.fleet, name)


def _cut(spans: Sequence[Span]) -> list[Span]:
    """Return the same spans, with work cut when the client starts other work."""
    made, later = [], dict[int, float]()
    for span in reversed(spans):
        until = later.get(span.client, np.inf)
        made.append(replace(span, end=until, lost=True) if until < span.end - 1e-9 else span)
        later[span.client] = span.start
    return made[::-1]


@dataclass(frozen=True)
class Timeline:
    """A run over time.

    Attributes:
        spans: of work.
        rounds: when each ended, seconds.
    """

    spans: list[Span]
    rounds: list[float]

    @property
    def busy(self) -> float:
        """Return the share of the clients' time until the last round's end spent on replies that arrive."""
        end = self.rounds[-1]
        clients = 1 + max(span.client for span in self.spans)
        spent = sum(min(s.end, end) - s.start for s in self.spans if not s.lost and s.start < end)
        return spent / (clients * end)


def timeline(pace: str, rounds: int = 60, seed: int = 5) -> Timeline:
    """Run six clients, one of them ten times slower than the fastest, each losing one in five of its updates; two replies per round.

    Args:
        pace: ``"FedAvg"`` (three asked per round, deadline of 600 s), ``"SAFA"`` or ``"FedBuff"``.
        rounds: most rounds; fewer are shown.
        seed: of crashes and selections.
    """
    import atoll
    from atoll import devices
    from atoll.pacing import SAFA, FedBuff
    from atoll.selection import CFCFM

    speeds = [1.0, 0.8, 0.55, 0.4, 0.2, 0.1]
    trace = devices.GeneratedTrace(0.2, point="uniform", seed=seed)
    fleet = devices.Fleet(
        devices.BatchRate(devices.GivenTraits(speeds), batch=24), devices.Throughput(500_000.0), trace,
        model_bytes=10e6, model_over=256, seed=seed,  # a note to go on is no model
    )  # fmt: skip
    witness = _Witness(fleet)
    kinds: Mapping[str, Any] = {
        "FedAvg": {"pacing": atoll.Synchronous(deadline=600.0), "selection": atoll.Uniform(3)},
        "SAFA": {"pacing": SAFA(deadline=600.0), "selection": CFCFM(2)},
        "FedBuff": {"pacing": FedBuff(buffer=2, refill="arrival"), "selection": atoll.Uniform(6)},
    }
    rows = atoll.data.digits(test=0.0).take(np.arange(6 * 48))
    islands = atoll.data.Islands.from_owner(rows, np.repeat(np.arange(6), 48), 6, scheme="equal")
    job = atoll.Training(
        model=atoll.models.linear(64, 10),
        algorithm=atoll.FedAvg(lr=0.05, epochs=12, batch_size=24),
        evaluation=atoll.Evaluation(server=False),
        rounds=rounds,
        **kinds[pace],
    )
    made = atoll.simulate(job, islands, devices=witness, engine="inline", seed=seed)
    return Timeline(_cut(witness.spans), [float(row["t_end"]) for row in made.metrics])


COLOURS = {"FedAvg": "#9aa5ab", "FedCS": "#c9a227", "SAFA": "#0b6e8a", "strict": "#b5472f"}
_ROUNDS_OF_PRINTED = (1, 10, 25)


# ------------------------------------------------------------------ how long rounds are


def lengths(crash: float, seeds: int = 20) -> Mapping[str, list[float]]:
    """Mean round lengths on task 3 as a share of ``T_lim``, by fraction: FedAvg, and SAFA by the tables' rule and by Algorithm 1's; distribution charged once."""
    rows = {name: [cost(KDD, name, crash, c, seeds) for c in FRACTIONS] for name in ("FedAvg", "SAFA")}
    return {
        "FedAvg": [row["corrected"].mean / KDD.limit for row in rows["FedAvg"]],
        "SAFA, the tables' rule": [row["fixed"].mean / KDD.limit for row in rows["SAFA"]],
        "SAFA that waits as Algorithm 1 says": [row["corrected"].mean / KDD.limit for row in rows["SAFA"]],
    }


# ------------------------------------------------------------------ what the lab has trained


def losses(lab: Path, fraction: float = 0.3) -> Mapping[tuple[str, float, str], list[float]]:
    """Test losses by round of the finished trainings of a lab, first seed: ``(task, cr, algorithm) -> losses``; missing trainings are left out."""
    found = {}
    for task in TASKS:
        for folder in sorted((lab / f"safa-{task}").glob(f"safa-{task}-*")):
            try:
                kept = json.loads((folder / "manifest.json").read_text())
                lines = (folder / "metrics.jsonl").read_text().splitlines()
            except OSError:
                continue
            name = kept["name"].split("-")
            if kept["status"] != "finished" or kept["seed"] != 0 or "alone" in name or float(name[-1]) != fraction:
                continue
            algorithm = {"fedavg": "FedAvg", "fedcs": "FedCS", "safa": "SAFA"}[name[2]]
            found[task, float(name[3]), algorithm] = [float(json.loads(line)["test/loss"]) for line in lines]
    return found


# ------------------------------------------------------------------ drawing


def draw_timeline(folder: Path, minutes: float = 30.0) -> Path:
    """Draw three paces one above the other: dark bars are work that arrived, light ones work that was lost, lines are the ends of rounds."""
    paces = ("FedAvg", "SAFA", "FedBuff")
    made = {pace: timeline(pace) for pace in paces}
    target = folder / "asynchrony-timeline.svg"
    with _drawn(target, len(paces), 1, (7.2, 6.0)) as (_, grid):
        for axes, pace in zip(grid[:, 0], paces, strict=True):
            shown = [s for s in made[pace].spans if s.start < 60 * minutes]
            for lost, style in ((False, {"color": COLOURS["SAFA"]}), (True, {"color": "#e3b6ab"})):
                spans = [s for s in shown if s.lost is lost]
                axes.barh(
                    [s.client + 1 for s in spans],
                    [(min(s.end, 60 * minutes) - s.start) / 60 for s in spans],
                    left=[s.start / 60 for s in spans],
                    height=0.7, edgecolor="white", linewidth=0.8, **style,
                )  # fmt: skip
            ends = [t / 60 for t in made[pace].rounds if t <= 60 * minutes]
            for end in ends:
                axes.axvline(end, color="#333", linewidth=0.7)
            axes.set_title(f"{pace}: {len(ends)} rounds in {minutes:g} minutes", loc="left", fontsize=10)
            axes.set_ylabel("client")
            axes.set_yticks(range(1, 7))
            axes.invert_yaxis()
            axes.set_xlim(0, minutes)
        grid[-1, 0].set_xlabel("minutes; dark: work that came, light: work that was lost, lines: a round ends")
    return target


def draw_lengths(folder: Path, seeds: int = 20) -> Path:
    """Draw round lengths by fraction, for a low and a high probability of crash."""
    target = folder / "asynchrony-lengths.svg"
    with _drawn(target, 1, 2, (7.2, 3.2)) as (figure, grid):
        for axes, crash in zip(grid[0], (0.3, 0.7), strict=True):
            colours = (COLOURS["FedAvg"], COLOURS["SAFA"], COLOURS["strict"])
            for (name, row), colour in zip(lengths(crash, seeds).items(), colours, strict=True):
                axes.plot(FRACTIONS, row, "o-", color=colour, label=name, markersize=4)
            axes.axvline(1 - crash, color="#333", linewidth=0.7, linestyle="--")
            axes.text(1 - crash, 0.02, " C = 1 - cr", fontsize=8)
            axes.set_title(f"cr = {crash:g}", loc="left", fontsize=10)
            axes.set_xlabel("C, share of clients whose replies a round takes")
            axes.set_ylim(0, 1.1)
        grid[0, 0].set_ylabel("round length / T_lim")
        figure.legend(
            *grid[0, 0].get_legend_handles_labels(), frameon=False, fontsize=8, loc="outside lower center", ncols=3
        )
    return target


def draw_losses(folder: Path, found: Mapping[tuple[str, float, str], Sequence[float]]) -> Path:
    """Draw Figs. 3.7 to 3.9 at C = 0.3: lines are ours, rings the author's sheet; one row per task, one column per probability of crash."""
    tasks = [task for task in TASKS if any(key[0] == task for key in found)]
    target = folder / "safa-losses.svg"
    with _drawn(target, len(tasks), len(CRASHES), (8.0, 1.9 * len(tasks) + 0.4)) as (figure, grid):
        for row, task in zip(grid, tasks, strict=True):
            for axes, crash in zip(row, CRASHES, strict=True):
                for name in ("FedAvg", "FedCS", "SAFA"):
                    line = found.get((task, crash, name))
                    wide = {"linewidth": 2.6} if name == "FedAvg" else {"linewidth": 1.1}
                    if line is not None:
                        axes.plot(range(1, len(line) + 1), line, color=COLOURS[name], label=name, **wide)
                    theirs = (*_ROUNDS_OF_PRINTED, TASKS[task].rounds)
                    rings = axes.plot(
                        theirs, LOSSES[task, crash, name], "o", mfc="none", mec=COLOURS[name], markersize=4
                    )
                    rings[0].set_label(f"{name}, the author's")
                axes.set_title(f"{task}, cr = {crash:g}", loc="left", fontsize=8)
                axes.tick_params(labelsize=7)
                axes.set_ylim(bottom=0)
        for axes in grid[-1]:
            axes.set_xlabel("round", fontsize=8)
        labels = {
            label: line for axes in grid.flat for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        figure.legend(
            list(labels.values()), list(labels), frameon=False, fontsize=7, loc="outside lower center", ncols=6
        )
    return target


@contextmanager
def _drawn(target: Path, rows: int, columns: int, size: tuple[float, float]) -> Iterator[tuple[Any, Any]]:
    """Yield a figure and its axes, saved at the end; the file is identical from run to run, with text as text."""
    matplotlib = need("matplotlib", "report", "a figure", where="atoll.report")
    style = {"svg.hashsalt": "atoll", "svg.fonttype": "none", "axes.spines.top": False, "axes.spines.right": False}
    with matplotlib.rc_context(style):
        figure = need("matplotlib.figure", "report", "a report", where="atoll.report").Figure(
            figsize=size, layout="constrained"
        )
        yield figure, figure.subplots(rows, columns, squeeze=False)
        figure.savefig(target, format="svg", metadata={"Date": None, "Creator": None})


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw into a folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lab", type=Path)
    parser.add_argument("--seeds", type=int, default=20, help="draws behind the lengths of rounds")
    given = parser.parse_args(arguments)
    given.folder.mkdir(parents=True, exist_ok=True)
    made = [draw_timeline(given.folder), draw_lengths(given.folder, given.seeds)]
    if given.lab is not None:
        made.append(draw_losses(given.folder, losses(given.lab)))
    sys.stdout.write("".join(f"{path}\n" for path in made))


if __name__ == "__main__":
    main()
