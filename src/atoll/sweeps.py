"""Sweeps: one job under several settings and seeds, each run in a folder of its own, over all cores, and resumable.

A sweep has *variants* (one choice of settings, with a label) and *seeds*. Its folder holds a run folder for each pair, named
``LABEL_seed-K``. A run that has finished is not repeated, and one that was stopped continues.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import inspect
import itertools
import multiprocessing
import os
import re
import signal
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.core.calls import checked_call
from atoll.core.errors import AtollError, CheckpointError, ConfigError, nearest
from atoll.core.job import Job
from atoll.engines.forking import cores
from atoll.runs import yaml
from atoll.runs.config import RunConfig, differing, parse_config
from atoll.runs.folder import RunFolder

if TYPE_CHECKING:
    from atoll.report.groups import Difference, Group

__all__ = [
    "Planned",
    "SweepResult",
    "combinations",
    "label_of",
    "require_new",
    "run_planned",
    "seeds_of",
    "sweep",
    "sweep_config",
]

# What a sweep varies: combinations of settings, their labels, and seeds.


def combinations(over: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return every combination of values, the last setting changing fastest; one empty combination without settings.

    Raises:
        ConfigError: a setting has no values.
    """
    for path, values in over.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise ConfigError(
                f"{path}={values!r} has no values to try", where="sweep", remedy="give a list, such as [0.01, 0.1]"
            )
    return [dict(zip(over, values, strict=True)) for values in itertools.product(*over.values())]


def label_of(settings: Mapping[str, Any], name: str = "") -> str:
    """Return a folder-safe label of a combination: ``algorithm.lr=0.01,rounds=5``, after the job's name if it has one."""
    parts = [name] if name else []
    text = ",".join([*parts, *(f"{path}={value}" for path, value in settings.items())]) or "run"
    bare = re.sub(r"[{}\[\]]", "", text).replace(", ", ",")
    return re.sub(r"[^\w.=,+-]+", "-", bare)[:120]


def require_new(label: str, known: Collection[str]) -> str:
    """Return a label that no other variant has: their runs would share folders.

    Raises:
        ConfigError: another variant has it, because a value occurs twice, or values differ only in signs that a folder's name cannot have.
    """
    if label in known:
        raise ConfigError(
            f"two variants have the label {label!r}",
            where="sweep",
            remedy="leave one out, or give the jobs names of their own",
        )
    return label


def seeds_of(seeds: int | Iterable[int]) -> list[int]:
    """Return seeds: the first ``n`` whole numbers, or those given.

    Raises:
        ConfigError: there is none, or one twice.
    """
    found = list(range(seeds)) if isinstance(seeds, int) else [int(seed) for seed in seeds]
    if not found or len(set(found)) < len(found):
        raise ConfigError(f"seeds={seeds!r}", where="sweep", remedy="give a number of at least 1, or different seeds")
    return found


# Runs the runs of a sweep: several at once, each on one core, in folders that can be resumed.


Tell = Callable[[str], None]

_ASIDE = ("name", "folder", "trackers", "workers")
"""Settings that change no result."""

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True)
class Planned:
    """One run of a sweep.

    Attributes:
        folder: its run folder.
        start: runs it in the folder, or continues it.
        settings: all its settings, as its folder keeps them.
    """

    folder: RunFolder
    start: Callable[[RunFolder, bool], Any]
    settings: Mapping[str, Any]

    @property
    def finished(self) -> bool:
        """Whether it has been run."""
        try:
            return self.folder.begun and self.folder.status() == "finished"
        except CheckpointError:
            return False

    def require_same(self) -> None:
        """Refuse a folder whose run has other settings: its results would pass for results of these settings.

        Raises:
            ConfigError: names the settings that differ.
        """
        if not self.folder.begun or self.folder.blank:
            return
        wanted = yaml.parse(yaml.dump(dict(self.settings)), str(self.folder.path))
        paths = [p for p in differing(self.folder.settings(), wanted) if p.split(".")[0] not in _ASIDE]
        if paths:
            raise ConfigError(
                f"the run there has other settings: {', '.join(paths)}",
                where=str(self.folder.path),
                remedy="give the sweep another folder, or the settings that it began with",
            )

    def run(self) -> None:
        """Run it, or continue it."""
        self.start(self.folder, self.folder.begun and not self.folder.blank)


def run_planned(planned: Sequence[Planned], parallel: int | None, tell: Tell) -> None:
    """Run what is not finished, several runs at once, each on one core. A run that fails does not stop the others: its folder says why.

    Args:
        planned: the runs.
        parallel: runs at once; by default one for each core.
        tell: called with a line when a run ends.

    Raises:
        ConfigError: ``parallel`` is below 1, or a folder holds a run with other settings; no run has begun.
        KeyboardInterrupt: after Ctrl-C; runs in progress end after their round, with a checkpoint.
    """
    count = cores() if parallel is None else parallel
    if count < 1:
        raise ConfigError(f"parallel={parallel!r}", where="sweep", remedy="use at least 1")
    for one in planned:
        one.require_same()
    waiting = [one for one in planned if not one.finished]
    if len(waiting) < len(planned):
        tell(f"{len(planned) - len(waiting)} of {len(planned)} runs are finished already")
    done = len(planned) - len(waiting)
    forks = "fork" in multiprocessing.get_all_start_methods() and sys.platform == "linux"
    for one in _one_by_one(waiting) if count == 1 or not forks else _together(waiting, count):
        done += 1
        tell(f"{done} of {len(planned)}: {one.folder.name} {_end(one)}")


def _end(one: Planned) -> str:
    manifest = one.folder.manifest() if one.folder.begun else {}
    if one.finished:
        return f"finished in {manifest.get('seconds') or 0:,.1f} s"
    if manifest and one.folder.status() == "running":
        return "failed: another process is running in its folder"
    error = manifest.get("error") or {}
    return f"failed: {error.get('what', 'its process ended')}"


def _one_by_one(waiting: Sequence[Planned]) -> Iterable[Planned]:
    for one in waiting:
        _attempt(one)
        yield one


def _attempt(one: Planned) -> bool:
    """Run; tell whether it ended without an error. An error is in the folder's manifest."""
    try:
        one.run()
    except AtollError as error:
        if not one.folder.begun:  # it did not get as far as writing why
            raise
        del error
        return False
    if one.folder.status() == "interrupted":
        raise KeyboardInterrupt
    return True


def _together(waiting: Sequence[Planned], count: int) -> Iterable[Planned]:
    """Run several at once in forked processes, which share what is loaded already."""
    context, rest = multiprocessing.get_context("fork"), list(waiting)
    running: dict[Any, tuple[Any, Planned]] = {}
    try:
        while rest or running:
            while rest and len(running) < count:
                one = rest.pop(0)
                process = context.Process(target=_child, args=(one, os.getpid()))
                process.start()
                running[process.sentinel] = (process, one)
            for sentinel in wait(list(running)):
                process, one = running.pop(sentinel)
                process.join()
                if process.exitcode == _INTERRUPTED:
                    raise KeyboardInterrupt
                yield one
    finally:
        for process, _ in running.values():  # Ctrl-C reached them too: they end after their round
            process.join()


_INTERRUPTED = 130


def _child(one: Planned, parent: int) -> None:
    """Run in a process that dies with the sweep's: else the runs of a killed sweep would go on, and block its continuation."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the sweep was killed before this line
        os._exit(1)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    try:
        ended = _attempt(one)
    except KeyboardInterrupt:
        os._exit(_INTERRUPTED)
    os._exit(0 if ended else 1)


# The result of a sweep.


@dataclass(frozen=True)
class SweepResult:
    """What a sweep found: the final values of each variant over the seeds, and how the variants differ.

    Attributes:
        folder: the sweep's folder.
        names: names of its runs, variant by variant.
        wanted: the metric to compare; ``None`` for the first usual one.
    """

    folder: Path
    names: tuple[str, ...]
    wanted: str | None = None

    @property
    def runs(self) -> list[RunFolder]:
        """The run folders."""
        return [RunFolder(self.folder / name) for name in self.names]

    @cached_property
    def groups(self) -> list[Group]:
        """The runs of each variant."""
        from atoll.report.groups import grouped

        return grouped([run for run in self.runs if run.begun])

    @property
    def metric(self) -> str:
        """The metric that is compared."""
        from atoll.report.groups import main_metric

        return main_metric(self.groups, self.wanted)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One row for each variant: mean, standard deviation and the values by seed."""
        metric = self.metric
        return [group.row(metric) for group in self.groups]

    @property
    def differences(self) -> list[Difference]:
        """How each variant differs from the first, in pairs of the same seed."""
        from atoll.report.groups import differences

        return differences(self.groups, self.metric)

    def to_pandas(self) -> Any:
        """A ``pandas.DataFrame`` with a row for each run: variant, seed and final value."""
        from atoll.rounds.history import History

        metric = self.metric
        rows = [
            {"variant": group.label, "seed": seed, metric: value}
            for group in self.groups
            for seed, value in group.last(metric).items()
        ]
        return History(rows).to_pandas()

    def plot(self, metric: str | None = None, axes: Any = None) -> Any:
        """Draw a metric by round with matplotlib, mean and standard deviation of each variant; return the axes."""
        from atoll.report.groups import plot_bands

        return plot_bands(self.groups, metric or self.metric, axes)

    def report(self, path: str | Path | None = None) -> Path:
        """Write the comparison as one HTML page; return its path."""
        from atoll.report import write_comparison

        return write_comparison([run for run in self.runs if run.begun], path or self.folder / "comparison.html")

    def __str__(self) -> str:
        from atoll.report.groups import text_of

        return text_of(self.rows, self.differences)

    __repr__ = __str__


# Sweeps from Python.


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
            start = _start_job(variant, data, seed, engine, options)
            planned.append(Planned(place, start, _settings(variant, data(seed), place, seed, engine, options)))
    run_planned(planned, parallel, tell or _tell)
    return SweepResult(root, tuple(one.folder.name for one in planned), metric)


def _start_job(
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
    return described(job, as_population(islands), place.path, engine, how["workers"], how["errors"], seed).plain()


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


# Sweeps of a configuration file.


def sweep_config(
    file: str | Path,
    settings: Sequence[str],
    *,
    seeds: int | Iterable[int],
    folder: str | Path,
    keep: Sequence[str] = (),
    parallel: int | None = None,
    metric: str | None = None,
    tell: Callable[[str], None],
) -> SweepResult:
    """Run a configuration under several settings and seeds; see ``atoll sweep``.

    Args:
        file: the YAML file.
        settings: ``path=a,b`` gives the values to try, ``path=a`` sets one. A value with a comma is written in brackets: ``path=[a, b]`` is one list.
        seeds: the number of seeds, or the seeds. A seed sets ``seed``, ``data.partition.seed`` and ``data.corruption_seed``: cohorts, mini-batches,
            the model's first weights, the partition and the corrupted clients change together.
        folder: the sweep's folder.
        keep: of these three, the ones that keep the file's value.
        parallel: runs at once; by default one for each core.
        metric: the metric to compare.
        tell: called with a line when a run ends.

    Raises:
        ConfigError: the file or a setting is invalid; no run has begun.
    """
    tried = _tried(settings)
    known = ("seed", "data.partition.seed", "data.corruption_seed")
    for path in keep:
        if path not in known[1:]:
            raise ConfigError(f"--keep {path!r}", where="sweep", remedy=f"use {' or '.join(known[1:])}")
    planned: list[Planned] = []
    sources: dict[str, Any] = {}
    fixed = [path for path, texts in tried.items() if len(texts) == 1]
    labels: list[str] = []
    for chosen in combinations(tried):
        label = require_new(label_of({path: text for path, text in chosen.items() if path not in fixed}), labels)
        labels.append(label)
        for seed in seeds_of(seeds):
            config = _config(file, chosen, {path: seed for path in known if path not in keep and path not in tried})
            place = RunFolder(Path(folder) / f"{label}_seed-{seed}")
            planned.append(Planned(place, _start_config(config, sources), config.plain()))
            _loaded(config, sources)
    run_planned(planned, parallel, tell)
    return SweepResult(Path(folder), tuple(one.folder.name for one in planned), metric)


def _tried(settings: Sequence[str]) -> dict[str, list[str]]:
    """Return the values to try of each setting, as text."""
    found: dict[str, list[str]] = {}
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals or not path:
            raise ConfigError(f"--set {setting!r}", where="sweep", remedy="write it as path.to.setting=value,value")
        found[path] = _pieces(text)
    return found


def _pieces(text: str) -> list[str]:
    """Cut a text at its commas, except those inside brackets."""
    pieces, depth = [""], 0
    for sign in text:
        depth += (sign in "[{(") - (sign in "]})")
        if sign == "," and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += sign
    return [piece.strip() for piece in pieces]


def _config(file: str | Path, chosen: dict[str, str], seeds: dict[str, int]) -> RunConfig:
    """Return the configuration of one run. A seed is set where the file has what it belongs to."""
    tree = yaml.read(file)
    if isinstance(tree, dict):
        for path, text in chosen.items():
            yaml.override(tree, f"{path}={text}")
        data: Any = tree.get("data")
        parted = isinstance(data, dict) and data.get("partition") is not None
        corrupted = isinstance(data, dict) and bool(data.get("corruptions"))
        there = {
            "seed": True,
            "data.partition.seed": parted and _takes_seed(data["partition"]),
            "data.corruption_seed": corrupted,
        }
        for path, seed in seeds.items():
            if there[path]:
                yaml.override(tree, f"{path}={seed}")
        tree["folder"] = None
        tree["workers"] = 1  # whatever runs beside it, so that results do not depend on it
    return parse_config(tree, str(file))


def _takes_seed(part: Any) -> bool:
    """Tell whether a partitioner has a seed."""
    from atoll.runs.registries import registry

    name = part if isinstance(part, str) else part.get("name", "") if isinstance(part, dict) else ""
    try:
        _, found = registry("partition").find(str(name))
    except ConfigError:  # parsing says what is wrong
        return False
    return "seed" in inspect.signature(found).parameters


def _loaded(config: RunConfig, sources: dict[str, Any]) -> Any:
    """Return the data of a run; runs with the same data section share them."""
    key = config.data.model_dump_json()
    if key not in sources:
        sources[key] = config.islands()
    return sources[key]


def _start_config(config: RunConfig, sources: dict[str, Any]) -> Callable[[RunFolder, bool], Any]:
    from atoll.runs.execution import execute

    def start(folder: RunFolder, resume: bool) -> Any:
        return execute(config, folder, resume=resume, report=False, islands=_loaded(config, sources))

    return start
