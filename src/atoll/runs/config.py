"""The configuration of a run: everything that a training needs, as plain text."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from atoll.core.errors import AtollError, ConfigError
from atoll.learn.evaluation import Evaluation
from atoll.learn.targets import LOSS_NAMES
from atoll.privacy import Budget

from . import yaml
from .parts import (
    AggregationPart,
    AlgorithmPart,
    CorruptionPart,
    DevicesPart,
    ModelPart,
    PacingPart,
    Part,
    PartitionPart,
    ReducerPart,
    SelectionPart,
    SourcePart,
    StagePart,
    StopPart,
    TopologyPart,
    TrackerPart,
    argument,
    refusing,
)
from .problems import Loc, Problem, closest, collect, refused
from .registries import imported, registry
from .schema import Section, names_at, schema_of

if TYPE_CHECKING:
    from atoll.data import Islands
    from atoll.learn import Training

__all__ = ["DataConfig", "RunConfig", "json_schema", "load_config", "parse_config", "parse_data", "to_job"]

if TYPE_CHECKING:
    _EvaluationFields = Section
else:
    _EvaluationFields = schema_of(Evaluation).model


class EvaluationConfig(_EvaluationFields):
    """What is measured, and how often: the settings of ``atoll.Evaluation``."""

    @model_validator(mode="after")
    def _accepted(self) -> EvaluationConfig:
        with refusing(list(type(self).model_fields), "Evaluation"):
            self.build("evaluation")
        return self

    def build(self, path: str) -> Evaluation:
        """Make it."""
        return Evaluation(**{name: argument(getattr(self, name), f"{path}.{name}") for name in type(self).model_fields})


class BudgetConfig(Section):
    """How much privacy each client may spend: the settings of ``atoll.privacy.Budget``."""

    epsilon: float
    delta: float = 1e-5
    clients: dict[str, float] = Field(default_factory=dict)
    method: Literal["exact", "moments"] = "exact"
    on_excess: Literal["refuse", "stop"] = "refuse"

    @model_validator(mode="after")
    def _accepted(self) -> BudgetConfig:
        with refusing(list(type(self).model_fields), "Budget"):
            self.build()
        return self

    def build(self) -> Budget:
        """Make it."""
        return Budget(self.epsilon, self.delta, self.clients, self.method, self.on_excess)


def _default(kind: type[Part], name: str) -> Any:
    """A part with its own defaults."""
    return Field(default_factory=lambda: kind.model_validate(name))


class DataConfig(Section):
    """Where the data come from and how they are divided.

    Attributes:
        source: a data set by name, a reader with its path, a generator, or ``module:factory``.
        partition: how rows become clients; absent when the source is divided already.
        corruptions: what is spoiled, each with the ``share`` of the clients.
        corruption_seed: which clients are spoiled.
    """

    source: SourcePart
    partition: PartitionPart | None = None
    corruptions: list[CorruptionPart] = Field(default_factory=list)
    corruption_seed: int = 0

    @model_validator(mode="after")
    def _shares(self) -> DataConfig:
        for i, part in enumerate(self.corruptions):
            share = part.args.get("share")
            if isinstance(share, bool) or not isinstance(share, int | float) or not 0.0 <= share <= 1.0:
                said = "is missing" if share is None else f"={share!r} is no share of the clients"
                problem = Problem(("corruptions", i, "share"), said, "give a number from 0 to 1, as in share: 0.2")
                raise PydanticCustomError("part", "share", {"problems": [problem]})
        return self

    def islands(self) -> Islands:
        """Load, divide and spoil.

        Raises:
            DataError: the data cannot be had, or do not divide like this.
            ConfigError: the source needs a partition, or must not have one.
        """
        from atoll.data import Dataset, corrupt

        made = self.source.build("data.source")
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
                f"{self.source.name} brings its clients along",
                where="data.partition",
                remedy="remove the partition",
            )
        if self.corruptions:
            groups = {p.build(f"data.corruptions[{i}]"): p.args["share"] for i, p in enumerate(self.corruptions)}
            made = corrupt(made, groups, seed=self.corruption_seed)
        return made  # type: ignore[no-any-return]


class RunConfig(Section):
    """A whole run.

    Attributes:
        name: a short word for tables and the run's folder.
        data: the data.
        model: the model, by name or as ``module:factory``.
        algorithm: what clients and server compute.
        topology: who talks to whom.
        selection: who is invited.
        aggregation: how the replies of a cohort stand for the population.
        pacing: when a round ends.
        uplink: stages on the way up.
        downlink: a compressor on the way down, in place of the algorithm's own.
        reducer: how replies become one.
        budget: how much privacy each client may spend; by default nobody counts.
        rounds: most rounds.
        stop: further stop rules.
        evaluation: what is measured.
        keep_best: a metric: the result is the model of its best round.
        loss: a name, ``auto``, or your own as ``module:name``.
        compile: auto, always or never.
        buffers: of normalisation layers.
        checkpoint_every: rounds between checkpoints.
        trackers: who else is told of every round.
        seed: of everything reproducible.
        devices: the model of devices and links, for simulated time.
        errors: a task that raises stops the run, or counts as a silent client.
        engine: what runs it.
        workers: processes; by default the engine chooses.
        device: cpu, cuda, mps or auto.
        folder: the run folder; by default a new one below ``runs``.
    """

    name: str = "run"
    data: DataConfig
    model: ModelPart
    algorithm: AlgorithmPart = _default(AlgorithmPart, "FedAvg")
    topology: TopologyPart = _default(TopologyPart, "Star")
    selection: SelectionPart = _default(SelectionPart, "Uniform")
    aggregation: AggregationPart = _default(AggregationPart, "Renormalised")
    pacing: PacingPart = _default(PacingPart, "Synchronous")
    uplink: list[StagePart] = Field(default_factory=list)
    downlink: StagePart | None = None
    reducer: ReducerPart = _default(ReducerPart, "Plain")
    budget: BudgetConfig | None = None
    rounds: int = 50
    stop: list[StopPart] = Field(default_factory=list)
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig)
    keep_best: str | None = None
    loss: str = "auto"
    compile: Literal["auto", "always", "never"] = "auto"
    buffers: Literal["averaged", "local"] = "averaged"
    checkpoint_every: int = 1
    trackers: list[TrackerPart] = Field(default_factory=list)
    seed: int = 0
    devices: DevicesPart | None = None
    errors: Literal["raise", "drop"] = "raise"
    engine: str = "batched"
    workers: int | None = None
    device: str = "cpu"
    folder: str | None = None

    @model_validator(mode="after")
    def _known_loss(self) -> RunConfig:
        if self.loss in ("auto", *LOSS_NAMES) or ":" in self.loss or _learns_itself(self.model):
            return self
        meant = closest(self.loss, LOSS_NAMES)
        text = f"={self.loss!r} is no loss" + (f". Did you mean {meant!r}?" if meant else "")
        remedy = f"use auto, {', '.join(LOSS_NAMES)}, or your own (outputs, targets) -> mean as module:name"
        raise PydanticCustomError("part", "loss", {"problems": [Problem(("loss",), text, remedy)]})

    def job(self) -> tuple[Training, Islands]:
        """The training and the islands it runs on."""
        islands = self.data.islands()
        return self.training(self.model.build("model")), islands

    def training(self, model: Any) -> Training:
        """The training of a model.

        Raises:
            AtollError: the settings do not go together.
        """
        from atoll.learn import Training

        return Training(
            model=model,
            algorithm=self.algorithm.build("algorithm"),
            topology=self.topology.build("topology"),
            selection=self.selection.build("selection"),
            aggregation=self.aggregation.build("aggregation"),
            pacing=self.pacing.build("pacing"),
            uplink=tuple(part.build(f"uplink[{i}]") for i, part in enumerate(self.uplink)),
            downlink=None if self.downlink is None else self.downlink.build("downlink"),
            reducer=self.reducer.build("reducer"),
            stop=tuple(part.build(f"stop[{i}]") for i, part in enumerate(self.stop)),
            evaluation=self.evaluation.build("evaluation"),
            budget=None if self.budget is None else self.budget.build(),
            loss=_own_loss(self.loss) if ":" in self.loss else self.loss,
            **{name: getattr(self, name) for name in _SAME},
        )

    def plain(self) -> dict[str, Any]:
        """All settings as YAML and JSON have them."""
        return self.model_dump()

    def to_yaml(self) -> str:
        """All settings, defaults included, so that a later version's defaults change nothing."""
        return yaml.dump(self.plain())

    def digest(self) -> str:
        """Twelve hex digits that two runs share when they compute the same."""
        said = {k: v for k, v in self.plain().items() if k not in ("name", "folder", "trackers")}
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:12]

    def differences(self, other: RunConfig) -> list[str]:
        """Paths of the settings that differ."""
        return list(differing(self.plain(), other.plain()))


def _learns_itself(model: Any) -> bool:
    """Whether a model is its own learner, which may have losses that only it knows."""
    if model is None or ":" not in model.name:
        return False
    return hasattr(registry("model").find(model.name)[1], "learner")


def _own_loss(name: str) -> Any:
    """A loss of the user's own, which is called with outputs and targets."""
    found = imported(name, "loss")
    if inspect.isclass(found):
        raise ConfigError(
            f"loss={name!r} is a class, and a loss is called with outputs and targets",
            remedy=f"name a function (outputs, targets) -> mean, such as one that calls {found.__name__}()",
        )
    return found


_SAME = ("rounds", "keep_best", "device", "compile", "buffers", "checkpoint_every")


def differing(a: Any, b: Any, path: str = "") -> Iterable[str]:
    """Paths in which two trees of settings differ."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in dict.fromkeys((*a, *b)):
            yield from differing(a.get(key), b.get(key), f"{path}.{key}" if path else key)
    elif a != b:
        yield path


def parse_config(tree: Any, where: str = "configuration") -> RunConfig:
    """Check a configuration, all but what only the data and the model can tell.

    Raises:
        ConfigError: it names the path, the value and the nearest valid key of everything that is wrong.
        CompositionError: parts that do not go together, such as a secure reducer and a stage that cannot be summed.
    """
    if not isinstance(tree, dict):
        raise ConfigError(
            f"a configuration is a mapping, not {type(tree).__name__}",
            where=where,
            remedy="begin with data:, model: and algorithm:",
        )
    try:
        config = RunConfig.model_validate(tree)
    except ValidationError as error:
        raise refused(collect(error, tree, _names_at), where) from error
    _check_engine(config, where)
    try:
        config.training(model=None)
        if config.devices is not None:
            config.devices.build("devices")
    except AtollError as error:
        place = where if error.where is None else f"{where}: {error.where}"
        raise type(error)(error.what, where=place, remedy=error.remedy) from error
    return config


def parse_data(tree: Any, where: str = "data") -> DataConfig:
    """Check a description of data alone.

    Raises:
        ConfigError: it names the path, the value and the nearest valid key of everything that is wrong.
    """
    try:
        return DataConfig.model_validate(tree)
    except ValidationError as error:
        raise refused(collect(error, tree, lambda loc: names_at(DataConfig, loc)), where) from error


def load_config(path: str | Path, settings: Iterable[str] = ()) -> RunConfig:
    """Read a configuration file and apply ``a.b=value`` settings.

    Raises:
        ConfigError: the file, a setting or the whole cannot be used.
    """
    tree = yaml.read(path)
    if isinstance(tree, dict):
        for setting in settings:
            yaml.override(tree, setting)
    return parse_config(tree, str(path))


def to_job(config: RunConfig) -> tuple[Training, Islands]:
    """The training and the islands of a configuration."""
    return config.job()


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a configuration file, for editors."""
    schema = RunConfig.model_json_schema()
    for kind in Part.__subclasses__():
        if kind.__name__ in schema["$defs"]:
            described = kind.described()
            schema["$defs"] = {**described.pop("$defs"), **schema["$defs"], kind.__name__: described}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _names_at(loc: Loc) -> list[str]:
    """The valid keys of the section at a path."""
    return names_at(RunConfig, loc)


def _check_engine(config: RunConfig, where: str) -> None:
    from atoll.engines import ENGINES

    if config.engine not in ENGINES:
        meant = closest(config.engine, list(ENGINES))
        hint = f". Did you mean {meant!r}?" if meant else ""
        raise ConfigError(
            f"engine={config.engine!r} is no engine{hint}",
            where=where,
            remedy=f"use one of {', '.join(sorted(ENGINES))}",
        )
