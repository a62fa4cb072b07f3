"""Several runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.core.errors import ConfigError
from atoll.core.persistence.files import write_bytes

from .facts import Facts, facts_of
from .figures import bands_figure, meaning, overlay, privacy_overlay
from .groups import differences, grouped, main_metric, shown_difference, shown_mean, told_notices
from .page import render

if TYPE_CHECKING:
    from atoll.runs import RunFolder

__all__ = ["compare_runs", "write_comparison"]

_OVERLAYS = (
    ("Test accuracy", "test/accuracy"),
    ("Test loss", "test/loss"),
    ("Test RMSE", "test/rmse"),
    ("Worst tenth of the clients", "clients/accuracy/worst_decile"),
)


def compare_runs(folders: Sequence[RunFolder]) -> list[dict[str, Any]]:
    """One row a run: how it ended, its results and costs, and the settings in which the runs differ.

    Raises:
        CheckpointError: a folder cannot be read.
        ConfigError: fewer than two runs.
    """
    return [_row(folder, facts, _settings(folders)) for folder, facts in _gather_runs(folders)]


def _gather_runs(folders: Sequence[RunFolder]) -> list[tuple[RunFolder, Facts]]:
    if len(folders) < 2:
        raise ConfigError(f"{len(folders)} run to compare", remedy="give at least two runs")
    return [(folder, facts_of(folder)) for folder in folders]


def _settings(folders: Sequence[RunFolder]) -> list[str]:
    """The paths of the settings that differ between the runs."""
    from atoll.runs.config import differing

    first, *others = (folder.settings() for folder in folders)
    found = {path: None for other in others for path in differing(first, other)}
    return [path for path in found if path != "name"]


def _row(folder: RunFolder, facts: Facts, settings: Sequence[str]) -> dict[str, Any]:
    best = facts.best("test/accuracy")
    plain = folder.settings()
    return {
        "run": folder.name,
        "status": facts.status,
        "rounds": len(facts.rows),
        "accuracy": facts.last("test/accuracy"),
        "best_accuracy": None if best is None else best[1],
        "best_round": None if best is None else best[0],
        "loss": facts.last("test/loss"),
        "worst_decile": facts.last("clients/accuracy/worst_decile"),
        "epsilon": facts.last("epsilon"),
        "privacy": meaning(facts.privacy),
        "bytes_up": facts.total("bytes_up"),
        "bytes_down": facts.total("bytes_down"),
        "seconds": facts.seconds,
        "settings": {path: _at(plain, path) for path in settings},
    }


def _at(tree: Any, path: str) -> Any:
    for step in path.split("."):
        tree = tree.get(step) if isinstance(tree, dict) else None
    return tree


def write_comparison(folders: Sequence[RunFolder], path: str | Path, metric: str | None = None) -> Path:
    """Write the comparison of runs as one HTML page; runs that differ in their seeds alone are one group, drawn as a band.

    Args:
        folders: the runs.
        path: where to write the page.
        metric: the metric of which the groups' final values are compared; by default a usual one.

    Raises:
        MissingExtraError: Matplotlib or Jinja2 is not installed.
        CheckpointError: a folder cannot be read, or the page cannot be written.
    """
    rows = compare_runs(folders)
    runs = [(folder.name, facts) for folder, facts in _gather_runs(folders)]
    groups = grouped(folders)
    summary: dict[str, Any] = {"groups": []}
    if len(groups) < len(folders):
        figures = [made for name, column in _OVERLAYS if (made := bands_figure(name, groups, column)) is not None]
        chosen = main_metric(groups, metric)
        against = {one.group: shown_difference(one) for one in differences(groups, chosen)}
        shown = [
            (group.label, shown_mean(group.row(chosen)), len(group.runs), against.get(group.label, ""))
            for group in groups
        ]
        told = told_notices([group.row(chosen) for group in groups])
        summary = {"metric": chosen, "first": groups[0].label, "groups": shown, "notices": told}
    else:
        figures = [made for name, column in _OVERLAYS if (made := overlay(name, runs, column)) is not None]
    epsilons = privacy_overlay(runs)
    figures = figures if epsilons is None else [epsilons, *figures]
    page = render(
        "compare.html.j2",
        rows=rows,
        figures=figures,
        epsilons=any(row["epsilon"] is not None for row in rows),
        settings=_settings(folders),
        **summary,
    )
    write_bytes(Path(path), page.encode("utf-8", "replace"))
    return Path(path)
