"""Sweeps from Python."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from atoll.core.calls import checked_call
from atoll.core.errors import ConfigError, nearest
from atoll.core.job import Job
from atoll.runs.folder import RunFolder

from .result import SweepResult
from .running import Planned, run_planned
from .variants import combinations, label_of, require_new, seeds_of

__all__ = ["sweep"]


@checked_call
def sweep(
    job: Job | Mapping[str, Job],
    islands: Any,
    *,
    over: Mapping[str, Sequence[Any]] | None = None,
    seeds: int | Iterable[int] = 3,
    folder: str | Path,
    metric: str | None = None,
    engine: Any = "batched",
    parallel: int | None = None,
    tell: Callable[[str], None] | None = None,
    **options: Any,
) -> SweepResult:
    """Run a job under several settings and seeds, and compare them.

    Args:
        job: a job, or several by name.
        islands: the federated data set, the same for all seeds; or a function that takes a seed and returns it, so that a seed changes the
            partition too.
        over: path of a setting -> values to try, such as ``{"algorithm.lr": [0.01, 0.1]}``; every combination is a variant of each job.
        seeds: the number of seeds, or the seeds. A seed changes what ``simulate(seed=...)`` changes: cohorts, mini-batches and the weights of a
            model that is given as a function. A model that is given as a module begins with its own weights.
        folder: the sweep's folder, with a run folder ``LABEL_seed-K`` for each run. The same call continues a sweep that was stopped: finished
            runs are not repeated.
        metric: the metric to compare, by its final value; by default ``test/accuracy`` or another that every run has.
        engine: see ``simulate``. Each run has one worker, whatever ``parallel`` is, so that results do not depend on it.
        parallel: runs at once; by default one for each core.
        tell: called with a line when a run ends; by default the line goes to stderr.
        options: further arguments of ``simulate``, such as ``devices``.

    Returns:
        The result: ``print(it)``, ``.rows``, ``.differences``, ``.plot()``, ``.to_pandas()``, ``.report()``.

    Raises:
        ConfigError: a setting does not exist, or has no values; or the folder holds a run with other settings.
        AtollError: a part refuses its setting.
    """
    jobs = dict(job) if isinstance(job, Mapping) else {"": job}
    for name, one in jobs.items():
        if not isinstance(one, Job):
            raise ConfigError(
                f"{one!r} is not a job", where=f"sweep, {name}", remedy="give an atoll.Training(...), or a dict of them"
            )
    chosen, root = seeds_of(seeds), Path(folder)
    variants: dict[str, Job] = {}
    for name, one in jobs.items():
        for settings in combinations(over or {}):
            label = require_new(label_of(settings, name), variants)
            variants[label] = functools.reduce(lambda made, item: _with(made, *item), settings.items(), one)
    data = functools.cache(islands) if callable(islands) else lambda seed: islands
    planned = []
    for label, variant in variants.items():
        for seed in chosen:
            data(seed)  # loaded once, before processes are forked
            place = RunFolder(root / f"{label}_seed-{seed}")
            start = _starter(variant, data, seed, engine, options)
            planned.append(Planned(place, start, _settings(variant, data(seed), place, seed, engine, options)))
    run_planned(planned, parallel, tell or _tell)
    return SweepResult(root, tuple(one.folder.name for one in planned), metric)


def _starter(
    job: Job, data: Callable[[int], Any], seed: int, engine: Any, options: Mapping[str, Any]
) -> Callable[[RunFolder, bool], Any]:
    from atoll.simulation import simulate

    def start(folder: RunFolder, resume: bool) -> Any:
        more = {"workers": 1, "progress": False, **options}
        return simulate(job, data(seed), engine=engine, seed=seed, folder=folder.path, resume=resume, **more)

    return start


def _settings(
    job: Job, islands: Any, place: RunFolder, seed: int, engine: Any, options: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return the settings of a run as ``simulate`` writes them."""
    from atoll.data.federated import as_population
    from atoll.simulation import described

    how = {"workers": 1, "errors": "raise", **options}
    return described(
        job, as_population(islands, one_form=job.one_form), place.path, engine, how["workers"], how["errors"], seed
    ).plain()


def _with(job: Any, path: str, value: Any) -> Any:
    """Return a job with another value of a setting, given its path through the job's parts.

    Raises:
        ConfigError: there is no such setting.
    """
    name, _, rest = path.partition(".")
    fields = [field.name for field in dataclasses.fields(job)] if dataclasses.is_dataclass(job) else []
    if name not in fields:
        raise ConfigError(
            f"{type(job).__name__} has no setting {name!r}.{nearest(name, fields)}",
            where="sweep, over",
            remedy=f"use one of {', '.join(fields)}" if fields else "name a setting of a part, such as algorithm.lr",
        )
    return dataclasses.replace(job, **{name: _with(getattr(job, name), rest, value) if rest else value})


def _tell(line: str) -> None:
    sys.stderr.write(f"sweep: {line}\n")
