"""A loss that an algorithm brings with it, in place of the training's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

__all__ = ["OwnLoss"]


class OwnLoss:
    """Base class of an algorithm's losses (`atoll.learn.Algorithm.losses`): frozen dataclasses, so that equal settings are one loss.

    ``__call__`` asks for its inputs by name, as in `atoll.learn.local.loss_signature.LossSignature`.

    Attributes:
        form: what it returns: ``"batch"``, one number for the mini-batch, which leaves out padding by the input ``real``; ``"rows"``, a loss for each
            row.
        task: what labels must be: ``"classes"``, whole numbers ``0..C-1`` for a model with ``C`` outputs, or ``""`` for anything.
    """

    form: ClassVar[str] = "batch"
    task: ClassVar[str] = ""

    @property
    def fewest(self) -> int:
        """Rows that a client needs; one with fewer, and not none, is refused."""
        return 1

    if TYPE_CHECKING:
        __call__: Callable[..., Any]
    else:

        def __call__(self, **inputs: Any) -> Any:
            """Return the loss of a mini-batch, a number or one for each row."""
            raise NotImplementedError
