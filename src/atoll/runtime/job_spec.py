"""A job: the configuration of a run between real sites, how a live job is described as one, and the modules that travel with it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import importlib.util
import inspect
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pydantic import model_validator

from atoll.core.addresses import declared_name
from atoll.core.errors import AtollError, ConfigError
from atoll.core.rooms import Own, job_kinds, part_kinds
from atoll.runs import RunConfig, yaml
from atoll.runs.config import job_class, require_soundness, validated
from atoll.runs.parts import PartConfig, part_class, part_type
from atoll.runs.registries import HOME, registry
from atoll.runs.schema import Section, is_value, schema_of

from .bundle import LIMITS, SOURCE, BundleLimits, make_bundle
from .identity import NO_PARTS, Credentials, is_part
from .terms import JobTerms, problem

if TYPE_CHECKING:
    from atoll.core.job import Job
    from atoll.data import Dataset, Islands

__all__ = [
    "JobConfig",
    "JobData",
    "described",
    "importing",
    "load_job",
    "pack_job",
    "parse_job",
    "reference_of",
    "require_equal",
    "require_reachable",
    "require_travels",
]


# ------------------------------------------------------------------ modules that travel with a job: found in its source folder, named as ``module:name``


_REMEDY = (
    "put it into a module of the job's source folder, at the top level, and name it module:name with plain arguments"
)


@contextlib.contextmanager
def importing(source: Path | None) -> Iterator[None]:
    """Find modules in a folder first, and name that folder in errors; unload the modules that this loads afterwards, so that two jobs never mix."""
    home = HOME.set("the folder that `source` names")
    try:
        with _first_from(source):
            yield
    finally:
        HOME.reset(home)


@contextlib.contextmanager
def _first_from(source: Path | None) -> Iterator[None]:
    if source is None:
        yield
        return
    folder, before = str(source.resolve()), set(sys.modules)
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(folder)
        for name, module in list(sys.modules.items()):
            if name not in before and any(_inside(place, Path(folder)) for place in _places(module)):
                del sys.modules[name]


def reference_of(found: Any, where: str) -> str:
    """Return ``module:name`` of a class or function that others can import under this name.

    Raises:
        ConfigError: it is a lambda, a closure, a live object, or defined in the script itself.
    """
    name, module = getattr(found, "__qualname__", None), getattr(found, "__module__", None)
    if not isinstance(name, str) or not isinstance(module, str):
        raise _make_refusal(f"a live {type(found).__name__} cannot travel", where)
    require_name(f"{module}:{name}", where, found)
    return declared_name(found)


def require_name(reference: str, where: str, found: Any = None) -> str:
    """Refuse a ``module:name`` that means nothing, or something else, in another process.

    Raises:
        ConfigError: it is local, defined in the script itself, or (``found`` given) another object has that name.
    """
    module, _, name = reference.partition(":")
    if module == "__main__":
        raise _make_refusal(f"{name} is defined in the script itself, which other machines do not have", where)
    if "<lambda>" in name:
        raise _make_refusal("a lambda cannot travel", where)
    if "<locals>" in name:
        raise _make_refusal(f"{name} is made inside a function and cannot travel", where)
    if found is not None:
        here: Any = sys.modules.get(module)
        for part in name.split("."):
            here = getattr(here, part, None)
        if here is not found:
            raise _make_refusal(f"{reference} is not the object that this name imports", where)
    return reference


def require_reachable(reference: str, where: str, source: Path | None) -> None:
    """Refuse a ``module:name`` whose module sites cannot import: it must be in the source folder, be installed, or be Atoll's.

    Raises:
        ConfigError: the module is not found, or lies in a folder that does not travel.
    """
    require_name(reference, where)
    root = reference.partition(":")[0].partition(".")[0]
    if root == "atoll" or root in sys.stdlib_module_names:
        return
    with importing(source):
        spec = importlib.util.find_spec(root)
    if spec is None:
        raise _make_refusal(f"there is no module {root!r} in the source folder, and none is installed", where)
    places = [Path(p) for p in ([spec.origin] if spec.origin else list(spec.submodule_search_locations or ()))]
    allowed = [Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")]
    allowed += [] if source is None else [source.resolve()]
    if not all(any(_inside(place, folder) for folder in allowed) for place in places):
        raise _make_refusal(f"module {root!r} lies in {places[0].parent}, which does not travel with the job", where)


def _places(module: ModuleType) -> list[Path]:
    file = getattr(module, "__file__", None)
    return [Path(p) for p in ([file] if file else list(getattr(module, "__path__", ())))]


def _inside(place: Path, folder: Path) -> bool:
    return place.resolve().is_relative_to(folder.resolve())


def _make_refusal(what: str, where: str) -> ConfigError:
    return ConfigError(what, where=where, remedy=_REMEDY)


# ------------------------------------------------------------------ describes a live job as plain settings that make it again


_LIVE = "make it in a function of the job's source folder and name that as module:name"


def described(job: Job, model: Any = None) -> dict[str, Any]:
    """Return the settings of a job. ``require_equal`` checks that they make an equal one.

    Args:
        job: the job.
        model: the model's description; by default the model's own.

    Raises:
        ConfigError: a part is not plain data, or cannot be imported under its name.
    """
    kind: Any = type(job)
    fields = schema_of(kind).model.model_fields
    said: dict[str, Any] = {"job": _kind(kind)}
    for field in dataclasses.fields(kind):
        value = getattr(job, field.name)
        if field.name in fields:
            given = field.name == "model" and model is not None
            said[field.name] = model if given else _field(fields[field.name], value, field.name)
        elif not _is_default(field, value):
            raise ConfigError(
                f"{len(value)} {field.name} cannot travel"
                if isinstance(value, list | tuple)
                else f"{field.name} cannot travel",
                where=f"{kind.__name__}.{field.name}",
                remedy="use a stop rule or a tracker, or write a program: module:name",
            )
    return said


def _kind(kind: type[Job]) -> str:
    """Return the value of ``job:`` for a class of jobs."""
    known = next((name for name in job_kinds() if job_class(name) is kind), None)
    return reference_of(kind, "job") if known is None else known


def _field(info: Any, value: Any, where: str) -> Any:
    """Return the value of a field as a configuration gives it."""
    marks = [type(mark) for mark in info.metadata]
    part = info.annotation
    if Own in marks:
        return value if isinstance(value, str) else reference_of(value, where)
    if inspect.isclass(part) and issubclass(part, PartConfig) and part_kinds()[part.kind].costly:
        return _model(value)
    if inspect.isclass(part) and issubclass(part, Section) and value is not None:
        return _settings(value, where)  # one class alone fits, so that its name is no setting
    return _setting(value, where)


def require_equal(job: Job, made: Job) -> None:
    """Refuse a description that makes another job.

    Raises:
        ConfigError: it makes another job; the error names the parts that differ.
    """
    kind: Any = type(job)
    for field in dataclasses.fields(kind):
        old, new = getattr(job, field.name), getattr(made, field.name)
        if field.name != "model" and not _equal(old, new):
            raise ConfigError(
                f"{old!r} would become {new!r}: not all of it is a setting",
                where=f"{kind.__name__}.{field.name}",
                remedy=f"leave what is not a setting at its default, or {_LIVE}",
            )


def _equal(old: Any, new: Any) -> bool:
    if isinstance(old, list | tuple) and isinstance(new, list | tuple):
        return len(old) == len(new) and all(map(_equal, old, new))
    return bool(old == new)


def _part(kind: str, part: Any, where: str) -> dict[str, Any]:
    """Return a part's name and settings."""
    own, found = type(part).__name__, registry(kind)
    # A name that `register` gave a part here says nothing elsewhere, unless it is the name of the class.
    names = [
        name for name, made in found.parts().items() if made is type(part) and (name == own or name not in found.extra)
    ]
    return {"name": names[0] if names else reference_of(type(part), where), **_settings(part, where)}


def _settings(part: Any, where: str) -> dict[str, Any]:
    """Return the settings of a dataclass that differ from their defaults."""
    if not _is_plain(type(part)):
        raise ConfigError(f"a live {type(part).__name__} cannot travel", where=where, remedy=_LIVE)
    kind: Any = type(part)
    names = schema_of(kind).names
    said: dict[str, Any] = {}
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        if not field.init or _is_default(field, value):
            continue
        if field.name not in names:
            raise ConfigError(
                f"a live {type(value).__name__} cannot travel", where=f"{where}.{field.name}", remedy=_LIVE
            )
        said[field.name] = _field(schema_of(kind).model.model_fields[field.name], value, f"{where}.{field.name}")
    return said


def _is_plain(kind: type) -> bool:
    """Tell whether an object is its fields alone: of a frozen dataclass, or of a subclass that adds no attributes."""
    for base in kind.__mro__ if is_value(kind) else ():
        if "__dataclass_params__" in vars(base):
            return True
        if "__init__" in vars(base) or "__new__" in vars(base):
            return False
    return False


def _is_default(field: dataclasses.Field[Any], value: Any) -> bool:
    if field.default is not dataclasses.MISSING:
        return type(value) is type(field.default) and _equal(field.default, value)
    return field.default_factory is not dataclasses.MISSING and _equal(field.default_factory(), value)


def _setting(value: Any, where: str) -> Any:
    if type(value) in (str, int, float, bool, type(None)):
        return value
    if isinstance(value, list | tuple):
        return [_setting(inner, f"{where}[{i}]") for i, inner in enumerate(value)]
    if isinstance(value, Mapping):
        return {str(key): _setting(inner, f"{where}.{key}") for key, inner in value.items()}
    for base in type(value).__mro__:
        kind = part_type(base.__name__)
        if kind is not None:
            return _part(kind.kind, value, where)
    return _settings(value, where)


def _model(model: Any) -> Any:
    """Describe a model: a function by its name, a partial with its arguments, a dataclass with its fields."""
    if isinstance(model, functools.partial) and not model.args:
        settings = {key: _setting(value, f"model.{key}") for key, value in model.keywords.items()}
        return {"name": reference_of(model.func, "model"), **settings}
    if inspect.isfunction(model) or inspect.isclass(model):
        return {"name": reference_of(model, "model")}
    if _is_plain(type(model)):
        name = getattr(type(model), "part", None) or reference_of(type(model), "model")
        return {"name": name, **_settings(model, "model")}
    raise ConfigError(
        f"a live {type(model).__name__} cannot travel",
        where="Training.model",
        remedy='describe how it is made, as in JobConfig.of(training, model={"name": "mlp", "features": 64, "outputs": 10}), '
        "or name your own function as module:name",
    )


# ------------------------------------------------------------------ a job: the configuration of a run between real sites, which hold the data


if TYPE_CHECKING:
    from atoll.runs.parts import PartConfig as SourcePart
else:
    SourcePart = part_class("data source")


class JobData(Section):
    """Rows that the server itself holds; all others stay at the sites.

    Attributes:
        test: a source of rows to test models on; if its data set has a test part, that part.
        public: a source of rows that are nobody's secret, such as those on which a model imitates others; see `atoll.data.Islands.with_public`. They may be generated, and need no labels.
    """

    test: SourcePart | None = None
    public: SourcePart | None = None


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
        """Load the rows that the server holds to test models on.

        Raises:
            DataError: they cannot be loaded.
            ConfigError: the source has no rows of a server.
        """
        return None if self.data is None else _rows_at_server(self.data.test, "data.test")

    def public_set(self) -> Dataset | None:
        """Load the public rows that the server holds.

        Raises:
            DataError: they cannot be loaded.
            ConfigError: the source gives clients.
        """
        return None if self.data is None else _rows_at_server(self.data.public, "data.public")

    def islands(self) -> Any:
        """Refuse: a job has no islands here.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("the data of a job is at its sites", where=self.name, remedy="submit it: atoll submit JOB")


def _rows_at_server(source: SourcePart | None, where: str) -> Dataset | None:
    """Return the rows of a source that the server holds: its test part, if it has one."""
    if source is None:
        return None
    from atoll.data import Dataset

    made: Dataset | Islands = source.build(where)
    if made.test is not None:
        return made.test
    if isinstance(made, Dataset):
        return made
    raise ConfigError(f"{source.name} gives clients, but no test rows", where=where, remedy="name one data set")


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


# ------------------------------------------------------------------ what may travel: names of modules and plain arguments, but no live objects


def require_travels(job: JobConfig) -> None:
    """Refuse a job that other machines could not rebuild from its text and its source folder.

    Raises:
        ConfigError: a lambda, a closure, a live object, something defined in the script itself, or a module that does
            not travel; the error names the setting.
    """
    tree = job.plain()
    _require_plain(tree, "")
    names = [
        (path, name) for path, name in _parts({k: v for k, v in tree.items() if k != "arguments"}, "") if ":" in name
    ]
    fields = type(job).model_fields.items()
    own = [key for key, field in fields if any(isinstance(mark, Own) for mark in field.metadata)]
    names += [(key, tree[key]) for key in own if isinstance(tree.get(key), str) and ":" in tree[key]]
    for path, name in names:
        require_reachable(name, f"{job.name}: {path}", job.source_folder)


def pack_job(
    job: JobConfig,
    credentials: Credentials,
    limits: BundleLimits = LIMITS,
    *,
    nonce: str | None = None,
    now: float | None = None,
) -> bytes:
    """Sign a job: its whole configuration, defaults and helpers included, and its source folder. See ``make_bundle`` for nonce and time.

    Raises:
        ConfigError: it cannot travel.
        BundleError: something in the source folder cannot travel.
        IdentityError: the credentials cannot sign.
    """
    require_travels(job)
    home = job.complete().model_copy(update={"source": None if job.source is None else SOURCE})
    return make_bundle(home.to_yaml().encode(), job.source_folder, credentials, limits, nonce=nonce, now=now)


def _require_plain(value: Any, path: str) -> None:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _require_plain(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            _require_plain(inner, f"{path}[{number}]")
    elif type(value) not in (str, int, float, bool, type(None)):
        raise ConfigError(
            f"a live {type(value).__name__} cannot travel",
            where=path,
            remedy="give numbers, words, lists and mappings; make the object in your own function and name that as module:name",
        )


def _parts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield the names of all parts in a tree."""
    if isinstance(value, Mapping):
        if path and isinstance(value.get("name"), str):
            yield path, value["name"]
        for key, inner in value.items():
            yield from _parts(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _parts(inner, f"{path}[{number}]")
