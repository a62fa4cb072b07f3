"""The rounds of a program that you write by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from atoll.core.errors import ConfigError

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation

__all__ = ["each_round"]


def each_round(fed: Federation, most: int | None = None) -> Iterator[int]:
    """Yield the numbers of the remaining rounds, from 1, until the run should end.

    A round is over once it has recorded something. A resumed program continues after the last record of its checkpoint. So restore the state
    before the loop, and record each round before its checkpoint::

        state = await fed.restore(0.0)
        for number in each_round(fed, most=20):
            state = ...
            fed.record({"mean": state})
            await fed.checkpoint(state)

    The loop ends when a stop rule of the job holds, when someone stops the run, or after ``most`` rounds.

    Args:
        fed: the federation.
        most: maximum number of rounds; ``None`` leaves it to the job.

    Raises:
        ConfigError: a round recorded nothing.
    """
    while fed.ending is None and (most is None or len(fed.records) < most):
        number = len(fed.records) + 1
        yield number
        if len(fed.records) < number:
            raise ConfigError(
                f"round {number} recorded nothing",
                where="each_round",
                remedy='call fed.record({...}) in every round, before fed.checkpoint: fed.record({"loss": loss})',
            )
