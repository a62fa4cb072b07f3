"""The figure of `survey-privacy`: accuracy against epsilon, one line a mechanism, as SVG.

python -m atoll_papers.private.figure docs/img --lab runs/reproduce/survey-privacy
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from atoll.core.extras import need
from atoll.reproduce import Lab

from ..survey_privacy import EPSILONS
from .mechanisms import COMPARED, accuracies

__all__ = ["draw", "main", "means"]

Means = Mapping[str, list[tuple[float | None, float]]]


def means(lab: Lab, rows: int | None = None) -> Means:
    """Mean accuracies of kept runs: a mechanism's name -> (epsilon, accuracy); what is not kept is left out."""
    found: dict[str, list[tuple[float | None, float]]] = {}
    for tested in COMPARED:
        for epsilon in (None,) if tested.privacy is None else EPSILONS:
            got = accuracies(lab, tested, epsilon, rows)
            if got is not None:
                found.setdefault(tested.name, []).append((epsilon, sum(got) / len(got)))
    return found


def draw(folder: Path, found: Means) -> Path:
    """Draw the lines; the accuracy without a mechanism is a dashed one. The file is the same from run to run."""
    matplotlib = need("matplotlib", "report", "a figure", where="atoll.reproduce")
    style = {"svg.hashsalt": "atoll", "svg.fonttype": "none", "axes.spines.top": False, "axes.spines.right": False}
    target = folder / "privacy-accuracy.svg"
    with matplotlib.rc_context(style):
        figure = need("matplotlib.figure", "report", "a figure", where="atoll.reproduce").Figure(
            figsize=(7.2, 3.8), layout="constrained"
        )
        axes = figure.subplots()
        for number, (name, points) in enumerate(found.items()):
            line = [(epsilon, accuracy) for epsilon, accuracy in points if epsilon is not None]
            if line:
                axes.plot(*zip(*line, strict=True), "o-" if number < 6 else "s--", markersize=4, label=name)
            else:
                axes.axhline(points[0][1], color="#333", linewidth=0.8, linestyle="--", label="no mechanism")
        axes.axhline(0.1, color="#9aa5ab", linewidth=0.7, linestyle=":", label="chance")
        axes.set_xscale("log", base=2)
        axes.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
        axes.set_xlabel("epsilon of a user, or of an example where the label says so")
        axes.set_ylabel("test accuracy")
        axes.set_ylim(0, 1)
        figure.legend(frameon=False, fontsize=8, loc="outside right upper")
        figure.savefig(target, format="svg", metadata={"Date": None, "Creator": None})
    return target


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw into a folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lab", type=Path, required=True)
    given = parser.parse_args(arguments)
    given.folder.mkdir(parents=True, exist_ok=True)
    sys.stdout.write(f"{draw(given.folder, means(Lab(given.lab, kept=True)))}\n")


if __name__ == "__main__":
    main()
