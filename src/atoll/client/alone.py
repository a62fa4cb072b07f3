"""One local round for a script that was started by hand."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from .weights import Untouched, state_of

__all__ = ["Alone", "LocalTask"]


class LocalTask:
    """The one task of a script that runs alone; it has what a `ScriptTask` has."""

    round = 1
    kind = "train"
    seed = 0

    def __init__(self, model: Any) -> None:
        self.model = Untouched() if model is None else state_of(model)
        self.settings: dict[str, Any] = {}
        self.answered = False

    def load(self, model: Any) -> None:
        """Leave the model as it is: the round begins with the script's own."""

    def reply(
        self, model: Any = None, *, examples: float | None = None, metrics: Mapping[str, Any] | None = None
    ) -> None:
        """Say what the round gave."""
        del model
        self.answered = True
        rows = "" if examples is None else f", {examples:g} examples"
        told = "".join(f", {name} {float(value):.6g}" for name, value in (metrics or {}).items())
        sys.stdout.write(f"outside a federation: one local round{rows}{told}\n")


class Alone:
    """A federation of one round with nobody else.

    Args:
        model: the script's model, if it gave one.
    """

    def __init__(self, model: Any) -> None:
        self._model = model

    def rounds(self) -> Iterator[LocalTask]:
        """Yield the one task."""
        with _loading_nothing():
            yield LocalTask(self._model)


@contextlib.contextmanager
def _loading_nothing() -> Iterator[None]:
    """Let ``module.load_state_dict(task.model)`` leave the module as it is when `connect` was given no model."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    kept = torch.nn.Module.load_state_dict

    @functools.wraps(kept)
    def load_state_dict(self: Any, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        return kept(self, self.state_dict() if isinstance(state_dict, Untouched) else state_dict, *args, **kwargs)

    torch.nn.Module.load_state_dict = load_state_dict
    try:
        yield
    finally:
        torch.nn.Module.load_state_dict = kept
