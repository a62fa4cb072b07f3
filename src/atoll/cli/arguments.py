"""Arguments that several commands share."""

from __future__ import annotations

from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from atoll.core.errors import CheckpointError, nearest

if TYPE_CHECKING:
    from atoll.runs import RunFolder

    from .output import Output

__all__ = ["Json", "Root", "find_run", "find_runs", "output_of"]

Json = Annotated[bool, typer.Option("--json", help="Exactly one JSON object on stdout; progress on stderr.")]
Root = Annotated[Path, typer.Option("--root", help="The folder of the run folders.", metavar="FOLDER")]


def output_of(context: typer.Context) -> Output:
    """The output of this command."""
    found: Output = context.obj
    return found


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
