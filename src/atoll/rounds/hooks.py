"""Hooks: what user code does before and after the steps of a run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from atoll.core.federation.ending import StopRun

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.party import Parties

__all__ = ["Heard", "Hooks"]

logger = logging.getLogger(__name__)


class Hooks:
    """Base class of callbacks that hear every step of a run: override the methods that you need, and give an object as a callback.

    ====================  ==================================================  =============================================
    method                when                                                what NVIDIA FLARE calls it
    ====================  ==================================================  =============================================
    ``run_begins``        before the first round, or the first after a resume  ``START_RUN``
    ``round_begins``      before a round                                      ``ROUND_STARTED``
    ``before_training``   clients are about to be asked                       ``BEFORE_TASK_DATA_FILTER``
    ``after_training``    their replies are in                                ``AFTER_TASK_RESULT_FILTER``
    ``before_aggregation``  the algorithm is about to fold them               ``BEFORE_AGGREGATION``
    ``after_aggregation``  there is a new model                               ``END_AGGREGATION``
    ``evaluated``         the model was measured                              ``GLOBAL_MODEL_EVALUATED``
    ``best_found``        it is the best so far, by ``keep_best``             ``GLOBAL_BEST_MODEL_AVAILABLE``
    ``round_ends``        the round is recorded                               ``ROUND_DONE``
    ``saved``             a checkpoint is on disk                             ``AFTER_CHECKPOINT``
    ``run_ends``          after the last round                                ``END_RUN``
    ====================  ==================================================  =============================================

    A program announces steps of its own with ``fed.announce(name, **facts)``; ``heard`` gets those. Raise ``StopRun`` to end the run after the
    round. Any other exception of a hook is logged with the hook's name and step, is in the round's row (``hook_errors``), and ends nothing.
    Training and aggregation are steps of rounds with a server. Topologies without one have neither, and asynchronous pacings number aggregations by the
    model's version and have no training steps.
    """

    def run_begins(self, done: int) -> None:
        """Hear that the run begins; ``done`` rounds were done before, by the run that it resumes."""

    def round_begins(self, number: int) -> None:
        """Hear that a round begins."""

    def before_training(self, number: int, phase: str, clients: Parties) -> None:
        """Hear who is asked: ``clients.names``."""

    def after_training(self, number: int, phase: str, clients: Parties, silent: Parties) -> None:
        """Hear whose replies are in, and who did not reply."""

    def before_aggregation(self, number: int, phase: str, params: Any) -> None:
        """Hear the model before the replies are folded."""

    def after_aggregation(self, number: int, phase: str, params: Any) -> None:
        """Hear the model after the replies are folded."""

    def evaluated(self, number: int, row: Mapping[str, Any]) -> None:
        """Hear what was measured after a round."""

    def best_found(self, number: int, metric: str, value: float) -> None:
        """Hear that the model of this round is the best so far."""

    def round_ends(self, row: Mapping[str, Any]) -> None:
        """Hear the row of a round."""

    def saved(self, number: int) -> None:
        """Hear that the state after a round is on disk."""

    def run_ends(self, reason: str) -> None:
        """Hear why the run ended."""

    def heard(self, step: str, facts: Mapping[str, Any]) -> None:
        """Hear a step that a program announced under a name of its own."""

    def __call__(self, row: dict[str, Any]) -> None:
        """Do nothing: ``round_ends`` is called in its place."""


class Heard:
    """The hooks of a run, which hear what its program announces.

    Args:
        callbacks: a job's callbacks; those that are no ``Hooks`` are left out.
        fed: the program's federation.
    """

    def __init__(self, callbacks: Sequence[Callable[[dict[str, Any]], None]], fed: Federation) -> None:
        self.hooks = [one for one in callbacks if isinstance(one, Hooks)]
        self.world = fed.world
        self.errors: dict[str, str] = {}
        self.world.hear = self.tell if self.hooks else None

    def tell(self, step: str, facts: dict[str, Any]) -> None:
        """Tell every hook of a step."""
        known = step in vars(Hooks) and not step.startswith("_")
        for hook in self.hooks:
            try:
                if known:
                    getattr(hook, step)(**facts)
                else:
                    hook.heard(step, facts)
            except StopRun as stop:
                self.world.asked = str(stop) or f"{type(hook).__name__}.{step} asked to stop"
            except Exception as error:
                name = f"{type(hook).__name__}.{step}"
                self.errors[name] = f"{type(error).__name__}: {error}"
                logger.warning("the hook %s failed: %s", name, self.errors[name], exc_info=error)

    def taken(self) -> dict[str, Any]:
        """Return the errors since the last call, for a row."""
        errors, self.errors = self.errors, {}
        return {"hook_errors": errors} if errors else {}
