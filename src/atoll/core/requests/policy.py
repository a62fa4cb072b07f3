"""Policies: an island's own rule for what may leave it, whatever a program asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import ConfigError, PolicyError
from ..validation import Checked
from .stage import Stage

if TYPE_CHECKING:
    from ..algebra.tree import Tree
    from .party import Party
    from .request import Request

__all__ = ["AllowAll", "Policies", "Policy", "SitePolicy", "admit_job", "policy_of"]


class Policy:
    """Base of policies; the base allows everything.

    Attributes:
        single: it looks at single replies. A cohort with such a policy is run party by party, never in blocks.
    """

    single: ClassVar[bool] = True

    def admit_job(self, names: Sequence[str]) -> None:
        """Raise ``PolicyError`` to refuse a job before it begins.

        Args:
            names: what it is known by, see ``Job.names``.
        """

    def admit(self, request: Request) -> None:
        """Raise ``PolicyError`` to refuse a request before its task runs."""

    def release(self, party: Party, task: str, reply: Tree) -> None:
        """Raise ``PolicyError`` to keep a reply in."""

    def stay(self, party: Party, task: str, name: str, value: Tree) -> None:
        """Raise ``PolicyError`` to let no named result stay at the party; see ``Island.leave``."""

    @property
    def largest(self) -> int | None:
        """Bytes that a reply may take on the wire; ``None`` is any number."""
        return None


class AllowAll(Policy):
    """Releases everything, for simulation."""

    single: ClassVar[bool] = False


@dataclass(frozen=True)
class SitePolicy(Checked, Policy):
    """What an island insists on. It refuses what does not comply, and never changes a request.

    Attributes:
        stages: stages that every reply must go through, in this order, each at least as strict (``Stage.covers``). A request without them is refused,
            also where it asks for a single reply, which no stage acts on.
        largest_reply: bytes that a reply may take on the wire.
        smallest_cohort: replies that every sum with this island's reply must hold. The server states it with the request (its quorum), and a
            request for single replies states 1. It binds a server that is honest: one that lies can say any number. Against one
            that lies, only a secure reducer whose protocol enforces its threshold among the parties helps.
        tasks: names of tasks that may run, with ``*`` and ``?``; none is all.
        free: names of tasks that release nothing of the data, such as a protocol's key exchange: ``stages`` and ``smallest_cohort`` do
            not hold for them.
        allow: names of jobs (``statistics``), of algorithms (``FedAvg``) and of code of a job's own (``module:name``) that may run, with ``*`` and
            ``?``; none is all. A job may run if its kind or all of its algorithms are named, and all code of its own is.
        results: tasks may leave named results at the party; see ``Island.leave``.
    """

    stages: tuple[Stage, ...] = ()
    largest_reply: int | None = None
    smallest_cohort: int = 1
    tasks: tuple[str, ...] = ()
    free: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    results: bool = True
    single: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name in ("stages", "tasks", "free", "allow"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if not all(isinstance(stage, Stage) for stage in self.stages):
            raise ConfigError(f"stages={self.stages!r}", where="SitePolicy", remedy="give stages, such as Clip(1.0)")
        if self.smallest_cohort < 1 or (self.largest_reply is not None and self.largest_reply < 1):
            raise ConfigError(
                f"smallest_cohort={self.smallest_cohort}, largest_reply={self.largest_reply}",
                where="SitePolicy",
                remedy="use whole numbers of at least 1",
            )

    @property
    def largest(self) -> int | None:
        """``largest_reply``."""
        return self.largest_reply

    def admit_job(self, names: Sequence[str]) -> None:
        """Refuse a job that ``allow`` does not name.

        Raises:
            PolicyError: it names the job, the algorithm or the code.
        """
        if not self.allow:
            return
        kind, *parts = names
        unknown = [name for name in parts if not _matches(name, self.allow)]
        own = [name for name in (kind, *unknown) if ":" in name and not _matches(name, self.allow)]
        if own:
            raise self._refused(f"code of the job's own, {own[0]}, may not run here", own[0])
        if not _matches(kind, self.allow) and (unknown or not parts):
            name = unknown[0] if unknown else kind
            raise self._refused(f"{name} may not run here", name)

    def admit_code(self, name: str) -> None:
        """Refuse code of a job's own that ``allow`` does not name.

        Args:
            name: ``module:name``, or ``module:`` for a module that travels with a job.

        Raises:
            PolicyError: it names the code.
        """
        module, _, inner = name.partition(":")
        patterns = [pattern.partition(":") for pattern in self.allow if ":" in pattern]
        for wanted, _, within in patterns:
            if fnmatchcase(module, wanted) and (not inner or fnmatchcase(inner, within)):
                return
        shown = name if inner else f"{module}:*"
        raise self._refused(f"code of the job's own, {shown}, may not run here", shown)

    def _refused(self, what: str, name: str) -> PolicyError:
        known = f"use one of {', '.join(self.allow)}, " if self.allow else ""
        return PolicyError(
            what,
            where="policy",
            remedy=f"{known}let the site add {name!r} to `allow` in its policy, or run the job without it",
        )

    def stay(self, party: Party, task: str, name: str, value: Tree) -> None:
        """Refuse a named result where none may stay.

        Raises:
            PolicyError: none may.
        """
        if not self.results:
            raise PolicyError(
                f"the task {task} may leave no result {name!r} here",
                where=party.name,
                remedy="ask whoever keeps the party's policy to set results: true, or do without island.leave",
            )

    def admit(self, request: Request) -> None:
        """Refuse a request that does not comply.

        Raises:
            PolicyError: it names the task, the stage or the number.
        """
        asked = [request] if request.wraps is None else [request, request.wraps]
        for one in asked:
            if self.tasks and not _matches(one.task.name, (*self.tasks, *self.free)):
                raise PolicyError(
                    f"the task {one.task.name} may not run here", remedy=f"ask for one of {', '.join(self.tasks)}"
                )
        inner = asked[-1]
        if _matches(inner.task.name, self.free):
            return
        missing = _missing(self.stages, inner.uplink.stages)
        if missing is not None:
            raise PolicyError(
                f"the uplink lacks {missing!r}",
                remedy=f"put {missing!r} or a stricter one into uplink=[...], in the order of the site's policy",
            )
        if inner.uplink.replies < self.smallest_cohort:
            raise PolicyError(
                f"a sum may hold {inner.uplink.replies} replies, and this site wants at least {self.smallest_cohort}",
                remedy=f"use quorum={self.smallest_cohort} or more",
            )


Policies = Policy | Mapping[str, Policy]
"""One policy for all parties, or party's name -> its own; a party without one allows everything."""

_ALL = AllowAll()


def policy_of(policies: Policies, name: str) -> Policy:
    """The policy of a party."""
    return policies.get(name, _ALL) if isinstance(policies, Mapping) else policies


def check_policies(policies: Any) -> Policies:
    """Refuse what is no policy.

    Raises:
        ConfigError: it is none.
    """
    rows = policies.values() if isinstance(policies, Mapping) else [policies]
    if not all(isinstance(row, Policy) for row in rows):
        raise ConfigError(
            f"policy={policies!r}",
            remedy="give a policy such as SitePolicy(stages=[Clip(1.0)]), or party's name -> its policy",
        )
    return policies  # type: ignore[no-any-return]


def admit_job(policies: Policies, names: Sequence[str]) -> None:
    """Refuse a job that one of the parties refuses.

    Raises:
        PolicyError: it names the party.
    """
    rows = policies.items() if isinstance(policies, Mapping) else [("every party", policies)]
    for name, policy in rows:
        try:
            policy.admit_job(names)
        except PolicyError as error:
            where = f"the policy of {name}" if error.where in (None, "policy") else f"{error.where} of {name}"
            raise type(error)(error.what, where=where, remedy=error.remedy) from error


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _missing(wanted: tuple[Stage, ...], given: tuple[Stage, ...]) -> Stage | None:
    """The first wanted stage that no given one covers, behind those that cover the wanted ones before it."""
    at = 0
    for stage in wanted:
        found = next((i for i in range(at, len(given)) if given[i].covers(stage)), None)
        if found is None:
            return stage
        at = found + 1
    return None
