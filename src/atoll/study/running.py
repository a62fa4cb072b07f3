"""Runs the runs of a study: several at once, each on one core, in folders that can be resumed, and that say which code they ran."""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any

from atoll.core.errors import AtollError, CheckpointError, ConfigError
from atoll.core.persistence.files import as_json, write_bytes
from atoll.engines.processes import cores
from atoll.runs import yaml
from atoll.runs.config import differing
from atoll.runs.folder import RunFolder

from .code import DATA, changed_names

__all__ = ["Planned", "run_planned"]

Tell = Callable[[str], None]

_ASIDE = ("name", "folder", "trackers", "workers")
"""Settings that change no result."""

_CODE = "code.json"
"""The file of a study's folder with the digests of the code of each run, see `atoll.study.code`."""
_SUPERSEDED = "superseded"
"""The folder beside the runs to which runs of other code are moved."""

_MOST_NAMES = 5
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True)
class Planned:
    """One run of a study.

    Attributes:
        folder: its run folder.
        start: runs it in the folder, or continues it.
        settings: all its settings, as its folder keeps them.
        code: digests of the user's code that it runs.
    """

    folder: RunFolder
    start: Callable[[RunFolder, bool], Any]
    settings: Mapping[str, Any]
    code: Mapping[str, str] = field(default_factory=dict)

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


def _supersede_runs(planned: Sequence[Planned], tell: Tell) -> None:
    """Move runs of other code aside, so that they run anew, and write down the code of today.

    The results of an edited class must not pass for those of today's. Nothing is lost: such runs lie in ``superseded``, beside the others.
    """
    for root in dict.fromkeys(one.folder.path.parent for one in planned):
        file = root / _CODE
        known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        here = {one.folder.name: one for one in planned if one.folder.path.parent == root}
        for name, one in here.items():
            if one.folder.begun and (why := _why_again(known.get(name), one.code)):
                aside = root / _SUPERSEDED
                aside.mkdir(exist_ok=True)
                number = sum(other.name.startswith(f"{name}.") for other in aside.iterdir()) + 1
                one.folder.path.rename(aside / f"{name}.{number}")
                tell(f"{name} runs again, {why}; the old run is in {_SUPERSEDED}/{name}.{number}")
        root.mkdir(parents=True, exist_ok=True)
        now = {name: {"python": _python(), "code": dict(one.code)} for name, one in here.items()}
        write_bytes(file, as_json({**known, **now}, indent=2).encode())


def _why_again(before: Mapping[str, Any] | None, code: Mapping[str, str]) -> str:
    """Return why a run counts no more; empty if it counts."""
    if before is None or before["python"] != _python():
        ran = "what it ran is not known" if before is None else f"it ran under Python {before['python']}"
        return f"{ran}, and your code cannot be compared" if code else ""
    old = before["code"]
    known = any(name.startswith(DATA) for name in old)  # earlier versions noted no data
    changed = [name for name in changed_names(old, code) if known or not name.startswith(DATA)]
    more = f" and {len(changed) - _MOST_NAMES} more" if len(changed) > _MOST_NAMES else ""
    rows = sum(name.startswith(DATA) for name in changed)
    what = "data have" if changed and rows == len(changed) else "code and data have" if rows else "code has"
    return f"since your {what} changed: {', '.join(changed[:_MOST_NAMES])}{more}" if changed else ""


def _python() -> str:
    return f"{sys.version_info[0]}.{sys.version_info[1]}"  # compiled code is the same within these


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
        raise ConfigError(f"parallel={parallel!r}", where="study", remedy="use at least 1")
    for one in planned:
        one.require_same()
    _supersede_runs(planned, tell)
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
