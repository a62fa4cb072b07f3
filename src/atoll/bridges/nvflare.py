"""Scripts that speak NVFlare's client API (``flare.init``, ``receive``, ``send``): ``python -m atoll.bridges.nvflare SCRIPT ARGUMENTS`` runs one unchanged.

NVFlare is installed beside it: the script's ``FLModel`` and functions are NVFlare's own, and only what is behind them is Atoll.
"""

from __future__ import annotations

import importlib
import math
import numbers
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from atoll.client.connection import MOST_EXAMPLES, Connection, connect
from atoll.core.errors import ConfigError, DataError
from atoll.core.extras import need

__all__ = ["FlareApi", "main"]

_STEPS = "NUM_STEPS_CURRENT_ROUND"
"""The entry of a model's ``meta`` by which NVFlare weighs it; without it every model weighs the same."""
_API = "nvflare.client.api"


def _read_steps(meta: Mapping[str, Any]) -> float:
    """The weight of a reply, as in NVFlare 1 if it says none.

    Raises:
        DataError: it is no number, negative, NaN, infinite or above 2^53.
    """
    given = meta.get(_STEPS, 1.0)
    steps = float(given) if isinstance(given, numbers.Real) else math.nan
    if not 0 <= steps <= MOST_EXAMPLES:
        raise DataError(
            f"meta[{_STEPS!r}] = {given!r}",
            where="flare.send",
            remedy="count the local steps: a number from 0 to 2^53, the reply's weight in the mean",
        )
    return steps


class FlareApi:
    """What NVFlare calls an API engine: the methods behind ``flare.receive`` and its like.

    Args:
        fed: the connection.
    """

    def __init__(self, fed: Connection) -> None:
        self._fed = fed
        self._rounds = fed.rounds()
        self._task: Any = None
        self._model: Any = importlib.import_module("nvflare.app_common.abstract.fl_model")

    def _awaited(self) -> Any:
        """Return the task that is to be answered; ``None`` if the job is over."""
        if self._task is None:
            self._task = next(self._rounds, None)
        return self._task

    def init(self, rank: str | None = None) -> None:
        """Refuse a process that is not the first: a script has one connection.

        Raises:
            ConfigError: the rank is not 0.
        """
        if str(rank or "0") != "0":
            raise ConfigError(
                f"rank={rank}", where="flare.init", remedy="let the process of rank 0 speak to the federation"
            )

    def is_running(self) -> bool:
        """Wait for the next task; tell whether there is one."""
        return self._awaited() is not None

    def receive(self, timeout: float | None = None) -> Any:
        """Return the next task's model as an ``FLModel``, whose rounds count from 0; ``None`` if the job is over. A task waits as long as the job does."""
        del timeout
        task = self._awaited()
        if task is None:
            return None
        return self._model.FLModel(params=dict(task.model), current_round=task.round - 1, start_round=0, meta={})

    def send(self, model: Any, clear_cache: bool = True) -> None:
        """Answer the task.

        Raises:
            DataError: nothing was received, the model has what has no counterpart, or its number of steps is no weight.
        """
        del clear_cache
        task = self._task
        if task is None:
            raise DataError(
                "no model was received", where="flare.send", remedy="call flare.receive() first, once a round"
            )
        if model.optimizer_params:
            raise DataError(
                "optimizer_params have no counterpart in Atoll",
                where="flare.send",
                remedy="keep the optimizer's state in the script",
            )
        params = model.params
        if params is not None and model.params_type == self._model.ParamsType.DIFF:
            params = {name: task.model[name] + difference for name, difference in params.items()}
        task.reply(params, examples=_read_steps(model.meta), metrics=model.metrics)
        self._task = None

    def system_info(self) -> dict[str, str]:
        """Return the names of the client and of the job."""
        return {"site_name": self.get_site_name(), "job_id": self.get_job_id()}

    def get_config(self) -> Mapping[str, Any]:
        """Return the job's settings for the script."""
        return self._fed.settings

    def get_job_id(self) -> str:
        """Return a name for the job: a script does not know its own."""
        return "atoll"

    def get_site_name(self) -> str:
        """Return the client's name."""
        return self._fed.name

    def get_task_name(self) -> str:
        """Return ``train`` or ``evaluate``."""
        task = self._awaited()
        return "" if task is None else str(task.kind)

    def is_train(self) -> bool:
        """Tell whether the task is to train."""
        return self.get_task_name() == "train"

    def is_evaluate(self) -> bool:
        """Tell whether the task is to evaluate."""
        return self.get_task_name() == "evaluate"

    def is_submit_model(self) -> bool:
        """Return False: Atoll keeps each client's best model nowhere."""
        return False

    def log(self, key: str, value: Any, data_type: Any, **more: Any) -> None:
        """Write a value to the job's log."""
        del data_type, more
        sys.stdout.write(f"{key} {value}\n")

    def clear(self) -> None:
        """Do nothing: nothing is cached."""

    def shutdown(self) -> None:
        """Do nothing: the conversation ends with the script."""


def main(argv: list[str]) -> None:
    """Run a script of NVFlare's client API."""
    need("nvflare", "nvflare", "A script of NVFlare's client API")
    script, *arguments = argv
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).parent)  # as when Python runs the script itself
    with connect() as fed:
        api = FlareApi(fed)

        def context(rank: str | None = None, config_file: str | None = None) -> Any:
            del config_file
            api.init(rank)
            return SimpleNamespace(api=api, rank=rank)

        # flare.init makes its context by this name, and every other function asks that context.
        importlib.import_module(_API).APIContext = context  # type: ignore[attr-defined]
        runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
