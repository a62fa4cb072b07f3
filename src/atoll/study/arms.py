"""Arms and seeds: every arm of a study runs under every seed, and pairs of one seed are compared.

An arm is a job, or a function that measures something itself, such as scikit-learn on all rows in one place. ``sweep`` makes arms from a job and the
values to try of its settings.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
import shutil
import sys
import tempfile
import traceback
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from atoll.core.calls import checked_call
from atoll.core.errors import AtollError, ConfigError, DataError, nearest
from atoll.core.job import Job, Prepared
from atoll.runs.folder import RunFolder

from .code import digest_code, digest_data
from .result import StudyResult
from .running import Planned, run_planned

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation

__all__ = ["FunctionArm", "combinations", "label_of", "require_new", "run_study", "seeds_of", "sweep"]

Arm = Job | Callable[[Any, int], Mapping[str, float]]


@dataclass(frozen=True)
class FunctionArm(Job):
    """An arm that is a function: it takes the data and the seed, and returns measures by name.

    Attributes:
        function: what measures.
        data: its data.
        seed: its seed.
    """

    kind: ClassVar[str] = "function"
    method: ClassVar[str] = "function"

    function: Callable[[Any, int], Mapping[str, float]]
    data: Any = field(default=None, repr=False)
    seed: int = 0

    def prepare(self, data: Any) -> Prepared:
        """Prepare to call the function; it has its data already."""
        del data
        return _PreparedFunction(self)


def _line_of(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1:]
    return "".join(f" ({Path(frame.filename).name}, line {frame.lineno})" for frame in last)


class _PreparedFunction(Prepared):
    def __init__(self, arm: FunctionArm) -> None:
        self.arm = arm

    async def program(self, fed: Federation) -> dict[str, float]:
        """Call the function, and record what it measures as one round."""
        name = getattr(self.arm.function, "__name__", type(self.arm.function).__name__)
        try:
            found = self.arm.function(self.arm.data, self.arm.seed)
        except AtollError:
            raise
        except Exception as error:  # the function is the user's own and may raise anything
            raise DataError(
                f"{name} raised {type(error).__name__}: {error}{_line_of(error)}",
                where="study",
                remedy="call it yourself with the data and a seed, where a debugger can stop",
            ) from error
        if (
            not isinstance(found, Mapping)
            or not found
            or not all(isinstance(each, int | float) for each in found.values())
        ):
            raise DataError(
                f"{name} returned {found!r}, and no measures",
                where="study",
                remedy='return numbers by name, such as {"test/accuracy": 0.9}',
            )
        measures = {key: float(value) for key, value in found.items()}
        fed.record({"round": 1, **measures})
        return measures


@checked_call
def run_study(
    arms: Mapping[str, Any],
    data: Any,
    *,
    seeds: int | Iterable[int] = 3,
    folder: str | Path | None = None,
    metric: str | None = None,
    engine: Any = "batched",
    parallel: int | None = None,
    tell: Callable[[str], None] | None = None,
    **options: Any,
) -> StudyResult:
    """Run every arm under every seed, and compare them in pairs of the same seed with the first.

    Example::

        arms = {"FedAvg": job, "FedProx": job.replace(algorithm=FedProx(lr=0.1)), "pooled": fit_all_rows}
        print(atoll.study.run_study(arms, islands, seeds=5))

    Args:
        arms: name -> a job, or a function that takes the data and a seed and returns measures by name.
        data: the data, the same for all seeds; or a function that takes a seed and returns them, so that a seed changes the partition too.
        seeds: the number of seeds, or the seeds.
        folder: the study's folder, with a run folder ``ARM_seed-K`` for each run. The same call continues a study that was stopped: a finished run
            is not repeated as long as the code of your classes and functions that it reaches is the same. ``None``: a temporary folder, which is
            gone with the result.
        metric: the metric to compare, by its final value; by default ``test/accuracy`` or another that every run has.
        engine: see ``simulate``. Each run has one worker, whatever ``parallel`` is, so that results do not depend on it.
        parallel: runs at once; by default one for each core.
        tell: called with a line when a run ends; by default the line goes to stderr.
        options: further arguments of ``simulate``, such as ``devices``.

    Returns:
        The result: ``print(it)``, ``.rows``, ``.differences``, ``.plot()``, ``.to_pandas()``, ``.report()``.

    Raises:
        ConfigError: an arm is neither a job nor a function; a name is not usable; or the folder holds a run with other settings.
        AtollError: a part refuses its setting.
    """
    chosen = seeds_of(seeds)
    labels: list[str] = []
    for name, arm in arms.items():
        if not isinstance(arm, Job) and (not callable(arm) or isinstance(arm, type)):
            raise ConfigError(
                f"{arm!r} is neither a job nor a function",
                where=f"study, {name}" if name else "study",
                remedy="give an atoll.Training(...), or a function of data and seed that returns measures by name",
            )
        labels.append(require_new(label_of({}, name), labels))
    root = Path(tempfile.mkdtemp(prefix="atoll-study-")) if folder is None else Path(folder)
    load = functools.cache(data) if callable(data) else lambda seed: data
    planned, known = list[Planned](), dict[int, dict[str, str]]()
    for label, arm in zip(labels, arms.values(), strict=True):
        code = digest_code(arm, data)
        for seed in chosen:
            rows = known.setdefault(id(load(seed)), digest_data(load(seed)))  # loaded once, before processes are forked
            job, islands = (arm, load) if isinstance(arm, Job) else (FunctionArm(arm, load(seed), seed), _no_data)
            place = RunFolder(root / f"{label}_seed-{seed}")
            start = _starter(job, islands, seed, engine, options if isinstance(arm, Job) else {})
            settings = _settings(job, islands(seed), place, seed, engine, options if isinstance(arm, Job) else {})
            planned.append(Planned(place, start, settings, {**code, **rows}))
    run_planned(planned, parallel, tell or _tell)
    result = StudyResult(root, tuple(one.folder.name for one in planned), metric)
    if folder is None:
        weakref.finalize(result, shutil.rmtree, root, ignore_errors=True)
    return result


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
) -> StudyResult:
    """Run a job under several settings and seeds, and compare them: a study whose arms are the combinations of settings.

    Args:
        job: a job, or several by name.
        islands: the federated data set, or a function of the seed; see `run_study`.
        over: path of a setting -> values to try, such as ``{"algorithm.lr": [0.01, 0.1]}``; every combination is a variant of each job.
        seeds: the number of seeds, or the seeds. A seed changes what ``simulate(seed=...)`` changes: cohorts, mini-batches and the weights of a
            model that is given as a function. A model that is given as a module begins with its own weights.
        folder: the sweep's folder, see `run_study`.
        metric: the metric to compare.
        engine: see ``simulate``.
        parallel: runs at once; by default one for each core.
        tell: called with a line when a run ends.
        options: further arguments of ``simulate``, such as ``devices``.

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
    variants: dict[str, Job] = {}
    for name, one in jobs.items():
        for settings in combinations(over or {}):
            label = require_new(label_of(settings, name), variants)
            variants[label] = functools.reduce(lambda made, item: _with(made, *item), settings.items(), one)
    return run_study(
        variants,
        islands,
        seeds=seeds,
        folder=folder,
        metric=metric,
        engine=engine,
        parallel=parallel,
        tell=tell or functools.partial(_tell, what="sweep"),
        **options,
    )


def _no_data(seed: int) -> Any:
    """The population of a function's run: a party of no data, since the function has its own."""
    del seed
    return {"study": None}


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
    from atoll.simulation import describe_run

    how = {"workers": 1, "errors": "raise", **options}
    return describe_run(
        job,
        as_population(islands, one_form=job.one_form, tables=job.reads == "table"),
        place.path,
        engine,
        how["workers"],
        how["errors"],
        seed,
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


def _tell(line: str, what: str = "study") -> None:
    sys.stderr.write(f"{what}: {line}\n")


# Combinations of settings, their labels, and seeds.


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
