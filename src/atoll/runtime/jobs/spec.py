"""A job: the configuration of a run between real sites, which hold the data."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import model_validator

from atoll.core.errors import AtollError, ConfigError
from atoll.runs import RunConfig, yaml
from atoll.runs.config import require_soundness, validated
from atoll.runs.parts import part_class
from atoll.runs.schema import Section

from ..bundles.modules import importing
from ..identity import NO_PARTS, is_part
from .terms import JobTerms, problem

if TYPE_CHECKING:
    from atoll.core.job import Job
    from atoll.data import Dataset, Islands

__all__ = ["JobConfig", "JobData", "load_job", "parse_job"]

if TYPE_CHECKING:
    from atoll.runs.parts import PartConfig as SourcePart
else:
    SourcePart = part_class("data source")


class JobData(Section):
    """Rows that the server itself holds; all others stay at the sites.

    Attributes:
        test: a source of rows to test models on; if its data set has a test part, that part.
    """

    test: SourcePart | None = None


class JobConfig(JobTerms, RunConfig):
    """A whole job: the terms, and the settings of a kind of job, as in a run.

    Attributes:
        data: what the server itself holds.
    """

    name: str = "job"
    data: JobData | None = None  # type: ignore[assignment]

    @model_validator(mode="after")
    def _whole(self) -> JobConfig:
        if self.devices is not None:
            raise problem("devices", "are those of a simulation", "remove them: real sites are as fast as they are")
        if self.policy is not None or self.policies:
            raise problem(
                "policy" if self.policies == {} else "policies",
                "is each site's own",
                "remove it: a site's policy is in the file that it passes as --data",
            )
        for name in ("engine", "workers"):
            if getattr(self, name) != type(self).model_fields[name].default:
                raise problem(name, f"={getattr(self, name)!r} is for simulations", "remove it: tasks run at the sites")
        if self.ledger is not None:
            raise problem(
                "ledger", f"={self.ledger!r} is for simulations", "remove it: each site has a ledger of its own"
            )
        if self.folder is not None:
            raise problem("folder", f"={self.folder!r} is the server's choice", "remove it; atoll result fetches it")
        return self

    @classmethod
    def of(cls, job: Job, *, model: Any = None, **terms: Any) -> JobConfig:
        """Describe a live job as a configuration.

        Args:
            job: a training, or a job of another kind; all of its parts must be plain data, and their classes known to
                Atoll or in an importable module.
            model: the model's description, such as ``{"name": "mlp", "features": 64, "outputs": 10}``; by default
                ``job.model``'s own.
            terms: settings of ``JobTerms``, and ``seed``.

        Raises:
            ConfigError: something in it is a live object, a closure, or defined in the script itself; the remedy is to
                name it.
        """
        from .describe import described, require_equal

        made = parse_job({**described(job, model), **terms}, "JobConfig.of", source=terms.get("source"))
        with importing(made.source_folder):
            require_equal(job, made.made(checking=True))
        return made

    @property
    def source_folder(self) -> Path | None:
        """Return the folder of its modules."""
        return None if self.source is None else Path(self.source)

    def complete(self) -> JobConfig:
        """The same job with its helpers written down, as the server must know of them before anything of the job runs.

        Raises:
            ConfigError: it names other helpers than it needs, or what makes the program fails.
        """
        with importing(self.source_folder):
            try:
                needed = dict(self.made(checking=True).helpers())
            except AtollError:
                raise
            except Exception as error:
                raise ConfigError(
                    f"nobody can say whether it has helpers: {type(error).__name__}: {error}",
                    where=self.name,
                    remedy="repair what makes the program; or give it an attribute `others`, which is looked at without calling it",
                ) from error
        if self.helpers is not None and self.helpers != needed:
            raise ConfigError(
                f"helpers={self.helpers}, and the job needs {needed}", where=self.name, remedy="leave helpers out"
            )
        wrong = [f"{name!r} as {role!r}" for name, role in needed.items() if not is_part(role)]
        if wrong:
            raise ConfigError(
                f"it needs {wrong[0]}, which no helper plays",
                where=f"{self.name}, others",
                remedy=f"use 1 to 64 printable characters, and not one of: {', '.join(NO_PARTS)}",
            )
        return self.model_copy(update={"helpers": needed})

    def test_set(self) -> Dataset | None:
        """Load the rows that the server holds.

        Raises:
            DataError: they cannot be loaded.
            ConfigError: the source has no rows of a server.
        """
        if self.data is None or self.data.test is None:
            return None
        from atoll.data import Dataset

        made: Dataset | Islands = self.data.test.build("data.test")
        if made.test is not None:
            return made.test
        if isinstance(made, Dataset):
            return made
        raise ConfigError(
            f"{self.data.test.name} gives clients, but no test rows", where="data.test", remedy="name one data set"
        )

    def islands(self) -> Any:
        """Refuse: a job has no islands here.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("the data of a job is at its sites", where=self.name, remedy="submit it: atoll submit JOB")


def parse_job(tree: Any, where: str = "job", source: str | Path | None = None) -> JobConfig:
    """Check a job, except for what only the data and the model can show.

    Args:
        tree: its settings.
        where: the place that errors name.
        source: the folder of its modules; the check imports them, as every process of the job will.

    Raises:
        ConfigError: something is wrong; the error names path, value and nearest valid key of each mistake.
        CompositionError: parts that do not fit together.
    """
    if not isinstance(tree, dict):
        raise ConfigError(
            f"a job is a mapping, not {type(tree).__name__}", where=where, remedy="start with name:, sites: and model:"
        )
    with importing(None if source is None else Path(source)):
        job = validated(JobConfig, tree, where)
        require_soundness(job, where)
    return job


def load_job(path: str | Path, settings: Iterable[str] = (), where: str | None = None) -> JobConfig:
    """Read a job and apply ``a.b=value`` settings. Its ``source`` is an absolute path afterwards.

    Args:
        path: the file, or the folder of a ``job.yaml``.
        settings: as ``atoll run --set`` takes them.
        where: the place that errors name; by default the file.

    Raises:
        ConfigError: the file, a setting or the job cannot be used, or there is no source folder.
    """
    file = Path(path) / "job.yaml" if Path(path).is_dir() else Path(path)
    tree = yaml.read(file)
    source = None
    if isinstance(tree, dict):
        for setting in settings:
            yaml.override(tree, setting)
        if isinstance(tree.get("source"), str):
            source = (file.parent / tree["source"]).resolve()
            if not source.is_dir():
                raise ConfigError(
                    f"source={tree['source']!r} is not a folder", where=where or str(file), remedy="name a folder"
                )
            tree["source"] = str(source)
    return parse_job(tree, where or str(file), source)
