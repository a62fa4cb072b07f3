"""The configuration of a run as plain text: the kind of job, its settings, and where and how it runs."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import Field, ValidationError, create_model, model_validator
from pydantic_core import PydanticCustomError

from atoll.core.addresses import load_object
from atoll.core.errors import AtollError, ConfigError, nearest
from atoll.core.job import Job
from atoll.core.rooms import Own, job_kinds, part_kinds

from . import yaml
from .parts import PartConfig, argument, part_class, refusing
from .policy import PolicyConfig
from .registries import imported, registry
from .schema import Problem, Section, closest, collect, names_at, refused, schema_of

if TYPE_CHECKING:
    from .parts import PartConfig as CorruptionPart
    from .parts import PartConfig as DevicesPart
    from .parts import PartConfig as PartitionPart
    from .parts import PartConfig as SourcePart
    from .parts import PartConfig as TrackerPart
else:
    CorruptionPart, DevicesPart, PartitionPart, SourcePart, TrackerPart = map(
        part_class, ("corruption", "device model", "partition", "data source", "tracker")
    )

__all__ = [
    "DEFAULT_JOB",
    "DataConfig",
    "RunConfig",
    "config_class",
    "job_class",
    "json_schema",
    "load_config",
    "parse_config",
    "parse_data",
    "require_soundness",
    "to_job",
]

DEFAULT_JOB = "training"
"""The kind of job of a configuration without ``job:``."""

C = TypeVar("C", bound="RunConfig")

_MADE: dict[Any, Any] = {}
"""Classes that `config_class` has made, by base and kind."""


class DataConfig(Section):
    """The source of the data, and how they are divided.

    Attributes:
        source: a data set by name, a reader with its path, a generator, or ``module:factory``.
        partition: how rows are divided among clients; leave it out if the source is divided already.
        corruptions: corruptions to apply, each with the ``share`` of the clients it affects.
        corruption_seed: the seed that chooses the corrupted clients.
        held_out: share of each client's rows on which nobody trains, and ``clients/…`` and ``personal/…`` are measured.
    """

    source: SourcePart
    partition: PartitionPart | None = None
    corruptions: list[CorruptionPart] = Field(default_factory=list)
    corruption_seed: int = 0
    held_out: float | None = Field(default=None, gt=0.0, lt=1.0)

    @model_validator(mode="after")
    def _shares(self) -> DataConfig:
        for i, part in enumerate(self.corruptions):
            share = part.args.get("share")
            if isinstance(share, bool) or not isinstance(share, int | float) or not 0.0 <= share <= 1.0:
                said = "is missing" if share is None else f"={share!r} is not a share of the clients"
                problem = Problem(("corruptions", i, "share"), said, "give a number from 0 to 1, as in share: 0.2")
                raise PydanticCustomError("part", "share", {"problems": [problem]})
        return self

    def islands(self, *, one_form: bool = False) -> Any:
        """Load, divide and corrupt the data: a federated data set, or whatever else ``simulate`` takes.

        Args:
            one_form: whether the job needs data of one form; see `atoll.core.job.Job`.

        Raises:
            DataError: the data cannot be loaded, or cannot be divided like this.
            ConfigError: the source needs a partition, or must not have one.
        """
        from atoll.data import Dataset, Islands, corrupt
        from atoll.data.federated import as_population

        made: Any = self.source.build("data.source")
        if isinstance(made, Dataset):
            if self.partition is None:
                raise ConfigError(
                    f"{self.source.name} is one data set, not yet divided among clients",
                    where="data.partition",
                    remedy="add for example {name: dirichlet, parties: 100, alpha: 0.3}",
                )
            made = self.partition.build("data.partition", made)
        elif self.partition is not None:
            raise ConfigError(
                f"{self.source.name} is divided among clients already",
                where="data.partition",
                remedy="remove the partition",
            )
        made = as_population(made, one_form=one_form)
        if not isinstance(made, Islands):
            for setting, there in (("corruptions", self.corruptions), ("held_out", self.held_out)):
                if there:
                    raise ConfigError(
                        f"{self.source.name} has data of a kind of its own, and {setting} needs data sets",
                        where=f"data.{setting}",
                        remedy=f"remove {setting}, or return data sets",
                    )
        if self.corruptions:
            groups = {p.build(f"data.corruptions[{i}]"): p.args["share"] for i, p in enumerate(self.corruptions)}
            made = corrupt(made, groups, seed=self.corruption_seed)
        return made if self.held_out is None else made.with_held_out(self.held_out)


class RunConfig(Section):
    """The settings of a whole run; `config_class` adds those of the job.

    Attributes:
        job: the kind of job, such as ``training`` or ``program``, or a class of your own as ``module:Class``.
        name: a short name for tables and the run folder.
        data: the data.
        trackers: further receivers of each round's record.
        seed: the seed of everything reproducible.
        devices: the model of devices and links, for simulated time.
        policy: the policy of each island; by default none.
        policies: maps an island's name to its policy, which replaces ``policy``.
        errors: whether a task that raises stops the run, or its client counts as silent.
        engine: the engine that runs the job.
        workers: number of processes; by default the engine chooses.
        folder: the run folder; by default a new one below ``runs``.
        ledger: the file of a privacy ledger that outlives the run, which all runs that name it spend from; by default the run has its own.
    """

    job: str = DEFAULT_JOB
    name: str = "run"
    data: DataConfig
    trackers: list[TrackerPart] = Field(default_factory=list)
    seed: int = 0
    devices: DevicesPart | None = None
    policy: PolicyConfig | None = None
    policies: dict[str, PolicyConfig] = Field(default_factory=dict)
    errors: Literal["raise", "drop"] = "raise"
    engine: str = "batched"
    workers: int | None = None
    folder: str | None = None
    ledger: str | None = None

    @model_validator(mode="after")
    def _accepted(self) -> RunConfig:
        """Make each section once, so that its errors have a place, and let the job check all settings together."""
        for key in type(self).settings_of_job():
            value = getattr(self, key)
            if isinstance(value, Section) and value.makes is not None:
                with refusing(list(type(value).model_fields), type(value).__name__, (key,)):
                    argument(value, key)
        kind = type(self).makes
        if kind is not None:
            with refusing(type(self).settings_of_job(), kind.__name__):
                kind.require_settings({key: _found(getattr(self, key)) for key in type(self).settings_of_job()})
        return self

    @classmethod
    def settings_of_job(cls) -> list[str]:
        """The names of the job's own settings."""
        return [] if cls.makes is None else [name for name in cls.model_fields if name in schema_of(cls.makes).names]

    def made(self, *, checking: bool = False) -> Job:
        """Make the job.

        Args:
            checking: only check whether the settings fit together; a costly part, such as a model, is not made.

        Raises:
            AtollError: the settings do not fit together.
        """
        kind: Any = type(self).makes
        if kind is None:
            raise ConfigError("these settings belong to no job", where="RunConfig", remedy="use parse_config")
        return kind(**{key: self._setting(key, checking) for key in self.settings_of_job()})  # type: ignore[no-any-return]

    def _setting(self, key: str, checking: bool) -> Any:
        value = getattr(self, key)
        if checking and isinstance(value, PartConfig) and part_kinds()[value.kind].costly:
            return _found(value)
        own = next((one for one in type(self).model_fields[key].metadata if isinstance(one, Own)), None)
        if own is not None and own.always and not all(str(value).partition(":")):
            raise ConfigError(f"{key}={value!r} is not module:name", remedy=f"name your {own.kind} as module:name")
        if own is not None and isinstance(value, str) and ":" in value:
            return imported(value, own.kind, where=key if own.always else None)
        return argument(value, key)

    def islands(self) -> Any:
        """The federated data set."""
        made = type(self).makes
        return self.data.islands(one_form=made is not None and made.one_form)

    def plain(self) -> dict[str, Any]:
        """All settings as plain YAML and JSON values."""
        return self.model_dump()

    def to_yaml(self) -> str:
        """All settings as YAML, defaults included, so that a later version's defaults change nothing."""
        return yaml.dump(self.plain())

    def digest(self) -> str:
        """Twelve hexadecimal digits that are equal for two runs that compute the same."""
        said = {k: v for k, v in self.plain().items() if k not in ("name", "folder", "trackers")}
        if said["job"] == DEFAULT_JOB:
            del said["job"]
        if (said["data"] or {}).get(
            "held_out", 0
        ) is None:  # as before it was a setting; between sites there may be no data
            said["data"] = {key: value for key, value in said["data"].items() if key != "held_out"}
        for name in ("policy", "policies"):
            if not said[name]:
                del said[name]
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:12]

    def differences(self, other: RunConfig) -> list[str]:
        """The paths of the settings that differ."""
        return list(differing(self.plain(), other.plain()))


def _found(value: Any) -> Any:
    """A part as found by name; any other setting unchanged."""
    return registry(value.kind).find(value.name)[1] if isinstance(value, PartConfig) else value


def differing(a: Any, b: Any, path: str = "") -> Iterable[str]:
    """The paths at which two trees of settings differ."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in dict.fromkeys((*a, *b)):
            yield from differing(a.get(key), b.get(key), f"{path}.{key}" if path else key)
    elif a != b:
        yield path


def job_class(name: Any) -> type[Job]:
    """The class of a kind of job, as named by ``job:``.

    Raises:
        ConfigError: there is no such kind, or it is not a class of jobs.
    """
    kinds = job_kinds()
    if isinstance(name, str) and ":" in name:
        found = imported(name, "kind of job", where="job")
    elif isinstance(name, str) and name in kinds:
        found = load_object(kinds[name])
    else:
        raise ConfigError(
            f"job={name!r} is not a kind of job.{nearest(str(name), kinds)}",
            remedy=f"use one of {', '.join(sorted(kinds))}, or a class of your own as module:Class",
        )
    if not isinstance(found, type) or not issubclass(found, Job):
        raise ConfigError(
            f"job={name!r} is not a class of jobs", remedy="name a frozen dataclass that extends atoll.core.job.Job"
        )
    return found


def config_class(base: type[C], kind: type[Job]) -> type[C]:
    """Add the settings of a kind of job to those of every run.

    The settings are read from the fields of the job's class, as for every part: no job needs to be registered.

    Raises:
        ConfigError: a setting of the job has the name of one of every run, or a required setting cannot be written as text.
    """
    if (base, kind) in _MADE:
        known: type[C] = _MADE[base, kind]
        return known
    part: Any = kind
    schema = schema_of(part)
    twice = sorted(set(schema.names) & set(base.model_fields))
    if twice or not schema.configurable:
        said = (
            f"{', '.join(twice)} are settings of every run too"
            if twice
            else "a required setting cannot be written as text"
        )
        raise ConfigError(
            f"{kind.__name__}: {said}",
            where="job",
            remedy="give its fields other names"
            if twice
            else "annotate its fields with plain types or with kinds of parts",
        )
    fields: dict[str, Any] = {name: (info.annotation, info) for name, info in schema.model.model_fields.items()}
    with warnings.catch_warnings():
        # A job's setting may have the name of a constructor, as Linkage's `of`: that is called on the base alone.
        warnings.filterwarnings("ignore", message='Field name "of"', category=UserWarning)
        made: Any = create_model(base.__name__, __base__=base, __doc__=base.__doc__, **fields)
    made.makes = kind
    _MADE[base, kind] = made
    finished: type[C] = made
    return finished


def parse_config(tree: Any, where: str = "configuration") -> RunConfig:
    """Check a configuration as far as possible without the data and the model.

    Raises:
        ConfigError: names the path, the value and the nearest valid key of every problem.
        CompositionError: parts do not fit together, such as a secure reducer and a stage that cannot be summed.
    """
    if not isinstance(tree, dict):
        raise ConfigError(
            f"a configuration is a mapping, not {type(tree).__name__}",
            where=where,
            remedy="begin with data:, model: and algorithm:",
        )
    config = validated(RunConfig, tree, where)
    _check_engine(config, where)
    require_soundness(config, where)
    return config


def validated(base: type[C], tree: Mapping[str, Any], where: str) -> C:
    """Return a configuration of the kind of job that ``tree`` names.

    Raises:
        ConfigError: names the path, the value and the nearest valid key of every problem.
    """
    try:
        made = config_class(base, job_class(tree.get("job", DEFAULT_JOB)))
    except ConfigError as error:
        raise ConfigError(error.what, where=where, remedy=error.remedy) from error
    try:
        return made.model_validate(tree)
    except ValidationError as error:
        raise refused(collect(error, tree, lambda loc: names_at(made, loc)), where) from error


def require_soundness(config: RunConfig, where: str) -> None:
    """Refuse settings that do not fit together, before the data and the model are made.

    Raises:
        AtollError: the job or a part refuses them.
    """
    try:
        config.made(checking=True)
        if config.devices is not None:
            config.devices.build("devices")
    except AtollError as error:
        whole = error.where in (None, job_class(config.job).__name__)
        place = where if whole else f"{where}: {error.where}"
        raise type(error)(error.what, where=place, remedy=error.remedy) from error


def parse_data(tree: Any, where: str = "data") -> DataConfig:
    """Check a data section alone.

    Raises:
        ConfigError: names the path, the value and the nearest valid key of every problem.
    """
    try:
        return DataConfig.model_validate(tree)
    except ValidationError as error:
        raise refused(collect(error, tree, lambda loc: names_at(DataConfig, loc)), where) from error


def load_config(path: str | Path, settings: Iterable[str] = ()) -> RunConfig:
    """Read a configuration file and apply ``a.b=value`` settings.

    Raises:
        ConfigError: the file, a setting or the whole configuration is invalid.
    """
    tree = yaml.read(path)
    if isinstance(tree, dict):
        for setting in settings:
            yaml.override(tree, setting)
    return parse_config(tree, str(path))


def to_job(config: RunConfig) -> tuple[Job, Any]:
    """Make the job and the islands of a configuration."""
    islands = config.islands()
    return config.made(), islands


def json_schema(job: str = DEFAULT_JOB) -> dict[str, Any]:
    """The JSON Schema of a configuration file of a kind of job, for editors."""
    schema = config_class(RunConfig, job_class(job)).model_json_schema()
    for kind in part_kinds():
        name = part_class(kind).__name__
        if name in schema["$defs"]:
            described = part_class(kind).described()
            schema["$defs"] = {**described.pop("$defs"), **schema["$defs"], name: described}
    if job != DEFAULT_JOB:
        schema["required"] = ["job", *schema.get("required", [])]
    schema["properties"]["job"] = {**schema["properties"]["job"], "const": job}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _check_engine(config: RunConfig, where: str) -> None:
    from atoll.engines import ENGINES

    if config.engine not in ENGINES:
        meant = closest(config.engine, list(ENGINES))
        hint = f". Did you mean {meant!r}?" if meant else ""
        raise ConfigError(
            f"engine={config.engine!r} is not an engine{hint}",
            where=where,
            remedy=f"use one of {', '.join(sorted(ENGINES))}",
        )
