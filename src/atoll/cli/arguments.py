"""Arguments that several commands share."""

from __future__ import annotations

import functools
import inspect
from dataclasses import asdict, dataclass
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atoll.core.errors import CheckpointError, ConfigError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.runs import RunFolder

    from .output import Output

__all__ = ["FileOptions", "Json", "Root", "find_run", "find_runs", "output_of", "sharing"]

Json = Annotated[bool, typer.Option("--json", help="Exactly one JSON object on stdout; progress on stderr.")]
Root = Annotated[Path, typer.Option("--root", help="The folder of the run folders.", metavar="FOLDER")]


@dataclass(frozen=True)
class FileOptions:
    """How the text of CSV files is written, the same for every command that reads some: share it with `sharing`."""

    delimiter: Annotated[
        str, typer.Option("--delimiter", help="Separator of the values of CSV files, such as ';'.")
    ] = ","
    decimal: Annotated[str, typer.Option("--decimal", help="Decimal sign of CSV files: . or ,")] = "."
    encoding: Annotated[str, typer.Option("--encoding", help="Encoding of CSV files, such as latin-1.")] = "utf-8"

    def plain(self) -> dict[str, str]:
        """As arguments of the readers in `atoll.data`; nobody can type a tab, so that ``tab``, or a backslash and a t, stand for one.

        Raises:
            ConfigError: the separator has more than one character.
        """
        delimiter = "\t" if self.delimiter in ("\\t", "tab") else self.delimiter
        if len(delimiter) != 1:
            raise ConfigError(f"--delimiter {self.delimiter!r}", remedy=r"give one character, such as ';' or '\t'")
        return {**asdict(self), "delimiter": delimiter}


def output_of(context: typer.Context) -> Output:
    """The output of this command."""
    found: Output = context.obj
    return found


def sharing(options: type[Any]) -> Callable[[Callable[..., int | None]], Callable[..., int | None]]:
    """Give a command the fields of a dataclass as options: it gets them together, as its argument ``options``.

    Typer reads a command's options from its signature, so those that several commands share would stand in each.
    """

    def add_options(command: Callable[..., int | None]) -> Callable[..., int | None]:
        own = inspect.signature(command, eval_str=True).parameters
        shared = inspect.signature(options, eval_str=True).parameters
        named = {name: p for one in own for name, p in (shared if one == "options" else {one: own[one]}).items()}

        @functools.wraps(command)
        def run(**values: Any) -> int | None:
            together = options(**{name: values.pop(name) for name in shared})
            return command(**values, options=together)

        run.__dict__["__signature__"] = inspect.Signature(
            [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in named.values()]
        )
        run.__annotations__ = {name: p.annotation for name, p in named.items()}
        return run

    return add_options


def find_runs(names: list[str], root: Path) -> list[RunFolder]:
    """Find runs by paths, names, or patterns of either; a pattern adds runs that are not there yet.

    Raises:
        CheckpointError: there is no such run, or none matches.
    """
    from atoll.runs import RunFolder

    found: list[RunFolder] = []
    for name in names:
        if not set(name) & set("*?["):
            found.append(find_run(name, root))
            continue
        paths = [Path(path) for path in (*glob(name), *glob(str(root / name)))]  # noqa: PTH207 - a pattern may be absolute
        runs = {path.resolve(): path for path in sorted(paths) if (path / "config.yaml").exists()}
        if not runs:
            raise CheckpointError(f"no run matches {name!r}", where=str(root), remedy="list the runs with `atoll runs`")
        known = {one.path.resolve() for one in found}
        found += [RunFolder(path) for place, path in runs.items() if place not in known]
    return found


def find_run(name: str, root: Path) -> RunFolder:
    """Find a run by the path of its folder, or by its name below the root.

    Raises:
        CheckpointError: there is no such run.
    """
    from atoll.runs import RunFolder, runs_in

    for path in (Path(name), root / name):
        if path.is_dir():
            return RunFolder(path).require()
    known = [folder.name for folder in runs_in(root)]
    raise CheckpointError(
        f"there is no run {name!r}.{nearest(name, known)}", where=str(root), remedy="list the runs with `atoll runs`"
    )
