"""The terms of a job: what daemons must know of it, and what a scheduler does about it. Reading them imports no user code."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from atoll.core.errors import AtollError, ConfigError, JobError
from atoll.runs import yaml
from atoll.runs.schema import Problem, Section, collect, names_at, refused

from .identity import is_part
from .resources import Answer, Resources, bytes_of

__all__ = [
    "VALUES",
    "Action",
    "Answer",
    "Deploy",
    "JobTerms",
    "Offer",
    "Refuse",
    "Release",
    "ResourcesConfig",
    "Wait",
    "Want",
    "job_tree",
    "problem",
    "read_terms",
]


# ------------------------------------------------------------------ what a scheduler needs to know about a job, and the actions that it returns


@dataclass(frozen=True, kw_only=True)
class Want:
    """A job that waits for sites.

    Attributes:
        job: its id; jobs are served in the order of their ids.
        need: what it asks of every site.
        sites: the only sites that it may use; None for all of the project, absent ones included.
        quorum: how many sites it needs at least; None for all that it may use.
        floor: how many are enough after waiting ``patience`` for absent ones; None for the quorum.
        patience: seconds to wait for absent sites.
        helpers: sites without clients. The job needs every one of them, and they count for no quorum.
    """

    job: str
    need: Resources
    sites: tuple[str, ...] | None = None
    quorum: int | None = None
    floor: int | None = None
    patience: float = 600.0
    helpers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Offer:
    """Ask a site whether it takes a job; a yes holds the resources there. The answer goes to ``Scheduler.take_answer`` with the ticket."""

    job: str
    site: str
    need: Resources
    ticket: int


@dataclass(frozen=True)
class Release:
    """Tell a site to hold nothing for a job any more. It must not overtake an offer that was sent before it."""

    job: str
    site: str


@dataclass(frozen=True)
class Deploy:
    """Start an attempt: every one of these sites holds the resources now. Call ``Scheduler.end_job`` when it has ended."""

    job: str
    sites: tuple[str, ...]


@dataclass(frozen=True)
class Refuse:
    """The job cannot run: it has failed with this error. The scheduler has forgotten it."""

    job: str
    error: JobError


@dataclass(frozen=True)
class Wait:
    """Why the job waits, in words, whenever that changes."""

    job: str
    why: str


Action = Offer | Release | Deploy | Refuse | Wait
"""The actions that a scheduler asks for, in order."""


# ------------------------------------------------------------------ the terms of a job: what daemons must know of it. Reading them imports no user code


VALUES = 10_000
"""Most values in a job's file: about a second to read."""
_NAME = 200
"""Most characters of a job's name."""


def problem(setting: str, text: str, remedy: str) -> PydanticCustomError:
    """Return the error for an unusable setting, as a validator raises it."""
    return PydanticCustomError("part", "job", {"problems": [Problem((setting,), text, remedy)]})


class ResourcesConfig(Section):
    """What a job asks of every site.

    Attributes:
        cpus: processor cores; 0.5 is half of one.
        memory: bytes, or for example ``4GiB``; 0 asks for none and sets no limit.
        gpus: whole devices.
    """

    cpus: float = 1.0
    memory: int | str = 0
    gpus: int = 0

    @model_validator(mode="after")
    def _accepted(self) -> ResourcesConfig:
        for name in type(self).model_fields:
            value = getattr(self, name)
            try:
                Resources(**{name: bytes_of(value) if name == "memory" else value})
            except AtollError as error:
                raise problem(name, f"={value!r} is not an amount", str(error.remedy)) from error
        return self

    def build(self) -> Resources:
        """Return the amounts."""
        return Resources(self.cpus, bytes_of(self.memory), self.gpus)


class JobTerms(Section):
    """Where and how a job runs.

    Attributes:
        name: a short word for tables.
        sites: the names of the sites, or ``all`` of the project.
        min_sites: how many of them are enough to start; by default all.
        patience: seconds without any progress after which a party is lost: the one rule of liveness.
        on_lost: what happens to the job then: it fails, naming the party, or goes on without it.
        on_outlier: what happens to a reply whose update or loss stands far outside its cohort: a warning, or it is rejected.
        attempts: most attempts in a row that may die without a new checkpoint, or a step that the roles of a session agree on.
        resources: what it asks of every site.
        helpers: parties beside the clients, name -> role; helpers of the project play them. Atoll fills this in when the
            job is submitted.
        direct: let the roles of sessions talk from site to site, if sites listen for each other; otherwise the
            server relays everything.
        source: a folder of modules that travels with the job, relative to the job's file.
    """

    name: str = "job"
    sites: Literal["all"] | list[str] = "all"
    min_sites: int | None = None
    patience: float = 600.0
    on_lost: Literal["fail", "drop"] = "fail"
    on_outlier: Literal["warn", "reject"] = "warn"
    attempts: int = 20
    direct: bool = False
    helpers: dict[str, str] | None = None
    resources: ResourcesConfig = Field(default_factory=ResourcesConfig)
    source: str | None = None

    @model_validator(mode="after")
    def _possible(self) -> JobTerms:
        if len(self.name) > _NAME:
            raise problem("name", f"has {len(self.name)} characters", f"use at most {_NAME}")
        named = None if self.sites == "all" else self.sites
        if named is not None and (not named or len(set(named)) < len(named) or not all(named)):
            raise problem("sites", f"={named!r} names no site, or a site twice", "write all, or each site once")
        most = math.inf if named is None else len(named)
        if self.min_sites is not None and not 1 <= self.min_sites <= most:
            raise problem("min_sites", f"={self.min_sites} of {most:g} sites", "use at least 1 and at most all of them")
        for name, role in (self.helpers or {}).items():
            if not 0 < len(name) <= 1000 or not name.isprintable() or not is_part(role):
                raise problem("helpers", f"={ {name: role} } is no helper", "leave it out: Atoll asks the job itself")
        if not 0 < self.patience < math.inf:
            raise problem("patience", f"={self.patience}", "give the seconds without progress that are allowed")
        if self.attempts < 1:
            raise problem("attempts", f"={self.attempts}", "use at least 1")
        return self

    def floor(self, sites: int) -> int:
        """Return how many of an attempt's sites are enough to go on: all, unless the job goes on without lost sites."""
        return min(self.min_sites or 1, sites) if self.on_lost == "drop" else sites

    def want(self, job: str, sites: tuple[str, ...] = (), helpers: Collection[str] = ()) -> Want:
        """Return what the scheduler needs.

        Args:
            job: the job's id.
            sites: those of its earlier attempts: a resumed job must have the same parties.
            helpers: the sites of its helpers.
        """
        need, also, clients = self.resources.build(), tuple(helpers), tuple(s for s in sites if s not in helpers)
        if not clients:
            named = None if self.sites == "all" else tuple(self.sites)
            return Want(job=job, need=need, sites=named, quorum=self.min_sites, patience=self.patience, helpers=also)
        floor = self.floor(len(clients)) if self.on_lost == "drop" else None
        return Want(job=job, need=need, sites=clients, floor=floor, patience=self.patience, helpers=also)


def job_tree(content: bytes, where: str = "job.yaml") -> dict[str, Any]:
    """Return the settings in a job's file. Reading as many as are allowed takes about a second: do it in a thread.

    Raises:
        ConfigError: it is not text, not YAML, not a mapping, or has too many values.
    """
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise ConfigError("it is not text in UTF-8", where=where, remedy="submit the job again") from error
    tree = yaml.parse(text, where, VALUES)
    if not isinstance(tree, dict):
        raise ConfigError(f"a job is a mapping, not {type(tree).__name__}", where=where, remedy="start with name:")
    return tree


def read_terms(tree: Mapping[str, Any], where: str = "job.yaml") -> JobTerms:
    """Return the terms among a job's settings; the job's own process reads the rest.

    Args:
        tree: the settings.
        where: the place that errors name.

    Raises:
        ConfigError: they cannot be used.
    """
    own = {key: value for key, value in tree.items() if key in JobTerms.model_fields}
    try:
        return JobTerms.model_validate(own)
    except ValidationError as error:
        raise refused(collect(error, own, lambda loc: names_at(JobTerms, loc)), where) from error
