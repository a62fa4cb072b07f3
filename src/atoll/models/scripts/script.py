"""A training script as a model: what to run, and what is trained."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from atoll.core.calls import checked_call
from atoll.core.errors import ConfigError
from atoll.core.rooms import Named
from atoll.learn.learner import LearnerSettings

__all__ = ["Script", "script"]


@dataclass(frozen=True, kw_only=True)
class Script:
    """A training script as a client; see `atoll.client` for what it adds.

    Every client has a process of its own. It begins when the client is first asked, lives through the rounds, and ends with the job. Between
    Atoll and the script, messages cross a pair of sockets: arrays and plain values, never pickle. In ``arguments``, ``folder``, ``environment`` and
    ``log``, ``{client}`` is the client's name and ``{source}`` the script's folder on its machine: a job's files are beside the script.

    Attributes:
        script: a Python file, relative to the source folder of a job, or to the working folder.
        model: what is trained: a PyTorch module or estimator, a dict of arrays, or a function that makes one (in a file: a part, as in
            ``{name: "nets:net", hidden: 16}``). Its trainable parameters travel. Atoll measures PyTorch modules and estimators on the server's rows.
        speaks: how it talks: ``atoll`` (`atoll.client`), or ``nvflare``: a script of NVFlare's client API, unchanged.
        arguments: the script's command line.
        command: what runs the script instead of this Python, such as ``["python3.12"]``. It must hand down open files.
        folder: its working folder; by default that of the job's process.
        environment: environment variables, besides those of the job's process.
        log: a file that its output is added to, instead of the job's log.
        settings: plain values for the script, ``task.settings``.
        evaluates: whether it also answers tasks of the kind ``evaluate``, for ``Evaluation(clients=...)``; then Atoll measures nothing itself.
        between: between rounds ``keep`` the process as it is, ``release`` the unused memory of accelerators, or ``restart`` it.
        patience: seconds without progress (a message, output or processor time) after which it counts as hung.
        alive: most processes that one worker keeps at once; the one that was idle longest ends, and begins again when its client is asked.
    """

    part: ClassVar[str] = "script"
    """Its name in a configuration."""

    script: str
    model: Annotated[Any, Named("model")]
    speaks: Literal["atoll", "nvflare"] = "atoll"
    arguments: Sequence[str] = ()
    command: Sequence[str] = ()
    folder: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    log: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    evaluates: bool = False
    between: Literal["keep", "release", "restart"] = "keep"
    patience: float = 600.0
    alive: int = 8

    def __post_init__(self) -> None:
        if self.between not in ("keep", "release", "restart"):
            raise ConfigError(f"between={self.between!r}", where="Script", remedy="use keep, release or restart")
        if self.speaks not in ("atoll", "nvflare"):
            raise ConfigError(f"speaks={self.speaks!r}", where="Script", remedy="use atoll or nvflare")
        if not 0 < self.patience < math.inf:
            raise ConfigError(f"patience={self.patience}", where="Script", remedy="use seconds above 0, such as 600.0")
        if self.alive < 1:
            raise ConfigError(f"alive={self.alive}", where="Script", remedy="use at least 1 process")
        if self.script.startswith("-"):
            raise ConfigError(
                f"script={self.script!r}", where="Script", remedy="name a Python file, such as 'train.py'"
            )

    def learner(self, settings: LearnerSettings, data: Any) -> Any:
        """Return a learner for a training.

        Raises:
            ConfigError: there is no such script.
            CompositionError: the algorithm changes the local step, which is the script's own.
        """
        from .learner import ScriptLearner

        return ScriptLearner(self, settings, data)

    def words(self, file: Path) -> list[str]:
        """Return the command line that runs the script."""
        speaking = () if self.speaks == "atoll" else ("-m", "atoll.client.flare")
        return [*(self.command or (sys.executable, "-u")), *speaking, str(file), *self.arguments]

    def file(self) -> Path:
        """Return where the script is: in the folder of a job's modules, or in the working folder.

        Raises:
            ConfigError: it is not there.
        """
        if Path(self.script).is_absolute():
            places = [Path(self.script)]
        else:
            places = [Path(folder or ".") / self.script for folder in dict.fromkeys(["", *sys.path])]
        found = next((place for place in places if place.is_file()), None)
        if found is None:
            raise ConfigError(
                f"there is no script {self.script!r}",
                where="Script.script",
                remedy="name a file of the job's source folder, or of the working folder",
            )
        return found.resolve()


@checked_call
def script(
    script: str,
    model: Annotated[Any, Named("model")],
    speaks: Literal["atoll", "nvflare"] = "atoll",
    arguments: Sequence[str] = (),
    command: Sequence[str] = (),
    folder: str | None = None,
    environment: Mapping[str, str] | None = None,
    log: str | None = None,
    settings: Mapping[str, str | int | float | bool] | None = None,
    evaluates: bool = False,
    between: Literal["keep", "release", "restart"] = "keep",
    patience: float = 600.0,
    alive: int = 8,
) -> Script:
    """A training script that runs as a process of its own at each client; see `Script` for the settings."""
    return Script(
        script=script, model=model, speaks=speaks, arguments=tuple(arguments), command=tuple(command), folder=folder,
        environment=environment or {}, log=log, settings=settings or {}, evaluates=evaluates, between=between,
        patience=patience, alive=alive,
    )  # fmt: skip
