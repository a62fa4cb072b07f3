"""Reducers: how replies are combined.

A reducer is a sub-protocol over a ``Reduction``. The plain one lets the engine add up replies. A secure one runs steps whose party half wraps the
task, so that no party sees a single reply. It returns only named totals and the parties in them. The federation does the rest.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ..capability import COUNTS, DISTINCT_CLIENTS, DROPPABLE, SERVER, SINGLE_REPLIES, Capability, Need
from ..errors import CompositionError, ConfigError
from ..exposure import Exposure
from ..requests.chain import Chain
from ..requests.request import Reduced

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..requests.party import Parties
    from ..requests.results import Terms
    from ..requests.task import Task
    from .reduction import Reduction

__all__ = ["Plain", "Reducer", "TreeReducer"]


@dataclass(frozen=True)
class Reducer:
    """Base class of reducers.

    Attributes:
        secure: whether the server sees only sums, so that stages must be summable and ``Parts`` are refused.
        lasting: whether what the party halves leave in ``island.state`` outlives a sum that succeeds, at the parties in it: one key set-up may then
            serve many sums of a scope. By default it ends with the sum.
        indexes: whether encodings that are indices reach it as counts (``Stage.addends``), and it adds these up.
        others: parties that the protocol needs beside the cohort, such as a key holder: name -> role.
    """

    secure: ClassVar[bool] = False
    lasting: ClassVar[bool] = False
    indexes: ClassVar[bool] = False
    others: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **more: Any) -> None:
        """Refuse a reducer of another version of Atoll when its class is defined, not in the middle of its first sum.

        Raises:
            ConfigError: a method cannot be called as Atoll calls it.
        """
        super().__init_subclass__(**more)
        for name, parameters in _CALLS.items():
            _require_signature(cls, name, parameters)
        if inspect.isfunction(cls.__dict__.get("others")):
            raise ConfigError(
                f"others of {cls.__qualname__} is a method",
                where=f"{cls.__module__}:{cls.__qualname__}",
                remedy="make it an attribute, or a property: name of a party -> its role",
            )

    @property
    def plain(self) -> bool:
        """Whether replies are added up on arrival, without a protocol."""
        return False

    @property
    def needs(self) -> tuple[Need, ...]:
        """What the other parts of a job must offer; add your own needs to ``super().needs``."""
        server = () if self.plain else (Need(SERVER, "combines many replies", "Plain()"),)
        secure = (Need(DISTINCT_CLIENTS, "takes one reply of each client", "a plain reducer"),) if self.secure else ()
        return (*server, *secure)

    @property
    def offers(self) -> frozenset[Capability]:
        """What the reducer offers to the other parts of a job."""
        # A secure reducer that fails commits nothing: see `atoll.core.federation.reduction`.
        shown = frozenset({DROPPABLE}) if self.secure else frozenset({SINGLE_REPLIES, COUNTS})
        return shown | {COUNTS} if self.indexes else shown

    def check(self, uplink: Chain, parties: Parties, terms: Terms, task: Task) -> None:
        """Refuse parts that cannot be combined soundly, before any party is contacted.

        Args:
            uplink: the stages of the replies.
            parties: the cohort.
            terms: the conditions under which the sum closes, with its quorum.
            task: the cohort's task.

        Raises:
            CompositionError: the parts cannot be combined.
            QuorumError: the cohort is too small; a training with varying cohorts may skip such a round.
        """
        del parties, task
        name = type(self).__name__
        if self.secure:
            uplink.within(uplink.replies, hidden=True, indexing=self.indexes).require_summable(name)
        if terms.late == "arrive":
            raise CompositionError(
                "late='arrive' passes single replies to the program", where=name, remedy="use the plain reducer"
            )

    def exposures(self, parties: int) -> tuple[Exposure, ...]:
        """Who sees what of the replies of a cohort; a secure reducer of your own should say more than this.

        Raises:
            AtollError: the reducer cannot add up so many parties.
        """
        del parties
        if self.secure:
            return (Exposure("server", "the sum of the replies", f"{type(self).__name__} keeps its promise"),)
        return (Exposure("server", "the reply of every client"),)

    def word_length(self, uplink: Chain, parties: int) -> int | None:
        """Bits of a number on the way up, if the reducer turns numbers into words of one length; ``None`` if it leaves them as they are."""
        del uplink, parties
        return None

    def sealed_bits(self, bits: int, parties: int, numbers: int, *, wraps: bool = False) -> int | None:
        """Bits on the way up of numbers that travel as ciphertexts; ``None`` if words travel as they are.

        Args:
            bits: of a word.
            parties: size of the cohort.
            numbers: how many words.
            wraps: whether a stage made them words that wrap around.
        """
        del bits, parties, numbers, wraps
        return None

    async def reduce(self, reduction: Reduction) -> Reduced:
        """Ask the parties and combine their replies.

        Args:
            reduction: the cohort, the program's request, and the verbs to communicate with parties.

        Returns:
            The totals, still encoded by the stages, and the positions of the parties in them, in cohort order.
        """
        raise NotImplementedError


# How the federation calls the methods that a reducer may have of its own.
_CALLS = {
    "reduce": ("reduction",),
    "check": ("uplink", "parties", "terms", "task"),
    "exposures": ("parties",),
    "word_length": ("uplink", "parties"),
    "sealed_bits": ("bits", "parties", "numbers"),
}


def _require_signature(cls: type[Reducer], name: str, parameters: tuple[str, ...]) -> None:
    """Refuse a method that does not take what it is called with."""
    own = cls.__dict__.get(name)
    if not inspect.isfunction(own):
        return
    signature = inspect.signature(own)
    try:
        signature.bind(None, *parameters)
    except TypeError as error:
        begin = "async def" if name == "reduce" else "def"
        more = "; reduction.parties, .terms and its verbs have what earlier versions passed" if name == "reduce" else ""
        raise ConfigError(
            f"{cls.__qualname__}.{name}{signature} is not called so by this version of Atoll",
            where=f"{cls.__module__}:{cls.__qualname__}",
            remedy=f"write `{begin} {name}(self, {', '.join(parameters)})`{more} (docs/extend/reducer.md)",
        ) from error


@dataclass(frozen=True)
class Plain(Reducer):
    """Add up the replies on arrival, in cohort order."""

    @property
    def plain(self) -> bool:
        """True, unless a subclass hides replies or has its own protocol."""
        return not self.secure and type(self).reduce is Plain.reduce

    def check(self, uplink: Chain, parties: Parties, terms: Terms, task: Task) -> None:
        """Allow everything, except what a ``secure`` subclass must refuse."""
        if self.secure:
            super().check(uplink, parties, terms, task)

    async def reduce(self, reduction: Reduction) -> Reduced:
        """Ask the parties and add up."""
        return await reduction.fold()


@dataclass(frozen=True)
class TreeReducer(Reducer):
    """Add up in groups of ``fan_in``, then add up the groups: the order of a tree of aggregators.

    Attributes:
        fan_in: number of replies that a node adds up.
    """

    fan_in: int = 8

    def __post_init__(self) -> None:
        if self.fan_in < 2:
            raise ConfigError(f"fan_in={self.fan_in}", remedy="use a whole number of at least 2")

    async def reduce(self, reduction: Reduction) -> Reduced:
        """Ask the parties and add up by groups."""
        return await reduction.fold(fan_in=self.fan_in)
