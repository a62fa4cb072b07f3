"""Policies: an island's own rule for what may leave it, whatever a program requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, PolicyError, nearest
from ..event import Event
from ..exposure import KINDS
from ..validation import Checked
from .disclosure import RULES_TASK, RowRules
from .stage import Stage

if TYPE_CHECKING:
    from ..algebra.tree import Tree
    from .party import Party
    from .request import Request

__all__ = [
    "AllowAll",
    "Policies",
    "Policy",
    "ROW_FEATURES",
    "ReplyDemand",
    "SitePolicy",
    "admit_job",
    "is_bare_step",
    "policy_of",
]


class ReplyDemand:
    """Base class of demands; it demands nothing. The room of privacy has the one that people use (`atoll.privacy.Demand`)."""

    def settle(self, task: str, events: Sequence[Event]) -> None:
        """Raise ``PolicyError`` to keep a reply from leaving.

        Args:
            task: the task's name.
            events: what was recorded for this reply before it leaves.
        """


ROW_FEATURES = "row-features"
"""The name of a job that sends features of single rows. A site's policy must list this very name in ``allow``; a pattern does not allow it."""


class Policy:
    """Base class of policies; it allows everything.

    Attributes:
        single: whether it looks at single replies. A cohort with such a policy runs party by party, never in blocks.
    """

    single: bool = True

    @property
    def rules(self) -> RowRules:
        """What it says about numbers that describe rows."""
        return RowRules()

    def admit_job(self, names: Sequence[str]) -> None:
        """Raise ``PolicyError`` to refuse a job before it begins.

        Args:
            names: the names of the job, see ``Job.names``.
        """

    def admit(self, request: Request) -> None:
        """Raise ``PolicyError`` to refuse a request before its task runs."""

    def release(self, party: Party, task: str, reply: Tree) -> None:
        """Raise ``PolicyError`` to keep a reply from leaving."""

    def reveals(self, request: Request) -> bool:
        """Whether a reply may tell something about the data: all but steps of Atoll's own secure reducers that no data are in."""
        return not is_bare_step(request) and request.task.name != RULES_TASK

    def settle(self, request: Request, events: Sequence[Event]) -> None:
        """Raise ``PolicyError`` to keep a reply from leaving for what was spent on it.

        Args:
            request: the request.
            events: what the party has recorded for its reply, and what the request's stages will record before it leaves.
        """

    def stay(self, party: Party, task: str, name: str, value: Tree) -> None:
        """Raise ``PolicyError`` to keep a named result from staying at the party; see ``Island.leave``."""

    @property
    def largest(self) -> int | None:
        """Maximum number of bytes of a reply on the wire; ``None`` sets no limit."""
        return None


@dataclass(frozen=True)
class AllowAll(Policy):
    """Allow everything but numbers about too few rows: for simulation, and for a site without a policy.

    Attributes:
        min_count: smallest number of rows behind every number that a statistic tells; 1 in a simulation.
        extremes: see ``SitePolicy``; ``None`` is no word.
    """

    min_count: int = 1
    extremes: tuple[str, ...] | None = None
    single = False

    @property
    def rules(self) -> RowRules:
        """Return the two settings."""
        return RowRules(self.min_count, self.extremes)

    def admit(self, request: Request) -> None:
        """Refuse a request to describe rows that promises less than ``min_count``.

        Raises:
            PolicyError: names the number.
        """
        _require_disclosure(self.min_count, request)


@dataclass(frozen=True)
class SitePolicy(Checked, Policy):
    """What an island requires. It refuses a request that does not comply, and never changes one.

    Attributes:
        stages: stages that every reply must go through, in this order, each at least as strict (``Stage.covers``). A request without them is refused,
            and so is a request for a single reply, on which no stage acts.
        largest_reply: maximum number of bytes of a reply on the wire.
        smallest_cohort: minimum number of replies in each sum with this island's reply. The server states the number with the request (its quorum), and
            a request for single replies states 1. This binds an honest server: a dishonest one can state any number. Under a secure reducer the number that
            the parties have agreed on counts (``Island.totals(among)``). Against a dishonest server, only one helps whose protocol enforces its threshold among the parties.
        tasks: names of tasks that may run, with ``*`` and ``?``; an empty list allows all.
        free: names of tasks that release nothing of the data, such as a protocol's key exchange: ``stages`` and ``smallest_cohort`` do
            not apply to them.
        allow: names of jobs (``statistics``), of algorithms (``FedAvg``) and of a job's own code (``module:name``) that may run, with ``*`` and
            ``?``; an empty list allows all. A job may run if the list has its kind or all of its algorithms, and all of its own code.
            A job that sends features of single rows needs the name ``row-features`` itself, which neither an empty list nor a pattern allows.
        min_count: smallest number of rows behind every number that a statistic tells of this island (`Disclosure`); a request that promises fewer is refused. It
            binds tasks that describe rows, such as those of ``statistics``; say with ``allow`` which others may run.
        results: whether tasks may leave named results at the party; see ``Island.leave``.
        confined: between organisations, whether jobs must run in a sandbox at the site; a simulation has none to ask for.
        sums_only: admit only steps of Atoll's own secure reducers, which promise that the server sees a sum of at least ``smallest_cohort`` parties even if it
            lies. Then ``smallest_cohort`` binds a dishonest server too: the parties themselves refuse to open a smaller sum.
        second_sums: whether the server may have a second sum of the same task and message over another set of parties: the sums of two sets that differ in one party tell
            its reply. ``None`` refuses it between organisations and allows it in a simulation. Sums with differential privacy are counted in the ledger instead.
        extremes: names of columns whose smallest and largest value a statistic may tell, with ``*`` and ``?``; an empty list hides those of all columns.
        learned: what another party may learn of this one from a protocol, as kinds of its `Contract`: ``sizes``, ``count``, ``sum``, ``ids`` or another of `atoll.core.exposure.KINDS`, with ``*`` and ``?``. An
            empty list allows all; otherwise a request whose contract tells more is refused, and one without a contract is not bound. ``allow`` says which protocols may run.
        min_aligned: smallest number of shared keys of an alignment: with fewer, this island does not go on and tells nobody which they are.
        predictions_per_hour: most rows within an hour that this island helps others to predict with its part of a vertical model; further ones are refused. It keeps a record of how many rows it was
            asked for.
        privacy: what the island demands of every release and of all jobs together (`atoll.privacy.Demand`). With one, a cohort runs party by party.
    """

    stages: tuple[Stage, ...] = ()
    largest_reply: int | None = None
    smallest_cohort: int = 1
    tasks: tuple[str, ...] = ()
    free: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    results: bool = True
    confined: bool = False
    sums_only: bool = False
    second_sums: bool | None = None
    privacy: ReplyDemand | None = None
    min_count: int = 1
    extremes: tuple[str, ...] = ()
    learned: tuple[str, ...] = ()
    min_aligned: int = 1
    predictions_per_hour: int | None = None

    def __post_init__(self) -> None:
        if self.privacy is not None and not isinstance(self.privacy, ReplyDemand):
            raise ConfigError(
                f"privacy={self.privacy!r}",
                where="SitePolicy",
                remedy="give atoll.privacy.Demand(budget=atoll.privacy.Budget(epsilon=4.0))",
            )
        for name in ("stages", "tasks", "free", "allow", "extremes", "learned"):
            if isinstance(getattr(self, name), str):
                raise ConfigError(
                    f"{name}={getattr(self, name)!r}",
                    where="SitePolicy",
                    remedy=f"give a list: {name}=[{getattr(self, name)!r}]",
                )
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if not all(isinstance(stage, Stage) for stage in self.stages):
            raise ConfigError(f"stages={self.stages!r}", where="SitePolicy", remedy="give stages, such as Clip(1.0)")
        if self.smallest_cohort < 1 or (self.largest_reply is not None and self.largest_reply < 1):
            raise ConfigError(
                f"smallest_cohort={self.smallest_cohort}, largest_reply={self.largest_reply}",
                where="SitePolicy",
                remedy="use whole numbers of at least 1",
            )
        for pattern in self.learned:
            if not any(fnmatchcase(kind, pattern) for kind in KINDS):
                raise ConfigError(
                    f"learned={pattern!r} is nothing that a protocol tells.{nearest(pattern, KINDS)}",
                    where="SitePolicy",
                    remedy=f"use some of {', '.join(KINDS)}, with * and ?",
                )
        for name in ("min_count", "min_aligned", "predictions_per_hour"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(
                    f"{name}={getattr(self, name)}", where="SitePolicy", remedy="use a whole number of at least 1"
                )

    @property
    def rules(self) -> RowRules:
        """Return what binds tasks that describe or predict rows."""
        return RowRules(self.min_count, self.extremes, self.min_aligned, self.predictions_per_hour)

    @property
    def largest(self) -> int | None:
        """Return ``largest_reply``."""
        return self.largest_reply

    @property
    def single(self) -> bool:  # type: ignore[override]
        """Whether a demand looks at what each reply has spent."""
        return self.privacy is not None

    def reveals(self, request: Request) -> bool:
        """Whether a reply may tell something about the data; those of ``free`` tasks do not."""
        return super().reveals(request) and not _matches((request.wraps or request).task.name, self.free)

    def settle(self, request: Request, events: Sequence[Event]) -> None:
        """Refuse a reply that ``privacy`` does not find protected.

        Raises:
            PolicyError: names the task, and what is missing.
        """
        if self.privacy is not None and self.reveals(request):
            self.privacy.settle((request.wraps or request).task.name, events)

    def admit_job(self, names: Sequence[str]) -> None:
        """Refuse a job that ``allow`` does not name.

        Raises:
            PolicyError: names the job, the algorithm, the code, or ``row-features``.
        """
        if ROW_FEATURES in names and ROW_FEATURES not in self.allow:
            raise PolicyError(
                "features of single rows may not leave",
                where="policy",
                remedy=f"let the site set allow: [{', '.join(map(repr, (*(self.allow or ('*',)), ROW_FEATURES)))}] in its policy, or run another algorithm",
            )
        if not self.allow:
            return
        kind, *parts = (name for name in names if name != ROW_FEATURES)
        unknown = [name for name in parts if not _matches(name, self.allow)]
        own = [name for name in (kind, *unknown) if ":" in name and not _matches(name, self.allow)]
        if own:
            raise self._make_refusal(f"the job's own code, {own[0]}, may not run here", own[0])
        if not _matches(kind, self.allow) and (unknown or not parts):
            name = unknown[0] if unknown else kind
            raise self._make_refusal(f"{name} may not run here", name)

    def admit_code(self, name: str) -> None:
        """Refuse code of a job that ``allow`` does not name.

        Args:
            name: ``module:name``, or ``module:`` for a module that a job includes.

        Raises:
            PolicyError: names the code.
        """
        module, _, inner = name.partition(":")
        patterns = [pattern.partition(":") for pattern in self.allow if ":" in pattern]
        for wanted, _, within in patterns:
            if fnmatchcase(module, wanted) and (not inner or fnmatchcase(inner, within)):
                return
        shown = name if inner else f"{module}:*"
        raise self._make_refusal(f"the job's own code, {shown}, may not run here", shown)

    def _make_refusal(self, what: str, name: str) -> PolicyError:
        known = f"use one of {', '.join(self.allow)}, " if self.allow else ""
        return PolicyError(
            what,
            where="policy",
            remedy=f"{known}let the site add {name!r} to `allow` in its policy, or run the job without it",
        )

    def stay(self, party: Party, task: str, name: str, value: Tree) -> None:
        """Refuse a named result if none may stay.

        Raises:
            PolicyError: no named results may stay.
        """
        if not self.results:
            raise PolicyError(
                f"the task {task} may leave no result {name!r} here",
                where=party.name,
                remedy="ask the maintainer of the party's policy to set results: true, or do without island.leave",
            )

    def admit(self, request: Request) -> None:
        """Refuse a request that does not comply.

        Raises:
            PolicyError: names the task, the stage or the number.
        """
        if request.task.name == RULES_TASK and request.wraps is None:
            return  # it tells of this policy and of no row
        asked = [request] if request.wraps is None else [request, request.wraps]
        for one in asked:
            if self.tasks and not _matches(one.task.name, (*self.tasks, *self.free)):
                raise PolicyError(
                    f"the task {one.task.name} may not run here", remedy=f"ask for one of {', '.join(self.tasks)}"
                )
        inner = asked[-1]
        _require_disclosure(self.min_count, request)
        self._require_contract(inner)
        if self.sums_only:
            self._require_sum(request)
            if request.wraps is None:
                return  # a step of the protocol: no data are in it
        if _matches(inner.task.name, self.free):
            return
        missing = _missing(self.stages, inner.uplink.stages)
        if missing is not None:
            raise PolicyError(
                f"the uplink lacks {_as_written(missing)}",
                remedy=f"put {_as_written(missing)} or a stricter one into uplink=[...], in the order of the site's policy",
            )
        if inner.uplink.replies < self.smallest_cohort:
            raise PolicyError(
                f"a sum may have {inner.uplink.replies} replies, but this site requires at least {self.smallest_cohort}",
                remedy=f"use quorum={self.smallest_cohort} or more",
            )

    def _require_contract(self, request: Request) -> None:
        """Refuse a role of a protocol that tells another party more of this one than ``learned`` allows.

        Raises:
            PolicyError: names what it tells, and to whom.
        """
        if not self.learned or request.task.contract is None:
            return
        contract = request.task.contract(request.task.args)
        told = contract.find_refused(str(request.task.args.get("me", "")), self.learned)
        if told is not None:
            raise PolicyError(
                f"{contract.protocol} tells {told.who} {told.sees}, which this site does not allow",
                where="policy",
                remedy=f"let the site add {told.kind!r} to `learned` in its policy, or ask for another result: others may learn {', '.join(self.learned)}",
            )

    def _require_sum(self, request: Request) -> None:
        """Refuse a request that is not a step of a secure sum against a server that may lie.

        Raises:
            PolicyError: names the task or the number.
        """
        promise = request.task.promise
        if promise is None or not request.task.name.startswith(_OWN):
            raise PolicyError(
                f"the task {request.task.name} would let the server see more than a sum, and this site gives sums only",
                remedy="use reducer=SecureAggregation(), and evaluate at the server",
            )
        least = promise(request.message)
        if least is not None and least < max(2, self.smallest_cohort):
            raise PolicyError(
                f"a sum of {least} parties, but this site requires at least {max(2, self.smallest_cohort)}, against a server that may lie",
                remedy=f"use SecureAggregation(least={max(2, self.smallest_cohort)}, server='active')",
            )


def _require_disclosure(least: int, request: Request) -> None:
    """Refuse a request to describe rows that promises less than an island requires, or for the single reply where the promise is one of a sum.

    Raises:
        PolicyError: names the number, or the task.
    """
    inner = request.wraps or request
    if inner.task.discloses is None:
        return
    # A role of a session has arguments, and no message.
    said = inner.task.discloses(inner.task.args if inner.message is None else inner.message)
    if said.summed and (request.wraps is None or not request.task.name.startswith(_OWN)):
        raise PolicyError(
            f"the task {inner.task.name} would let the server see this site's own numbers, and it promises those of a sum",
            where="policy",
            remedy="look at the coordinator: it leaves the masks out, which the job has",
        )
    if said.min_count < least and not said.private:
        raise PolicyError(
            f"min_count={said.min_count}, but this site requires at least {least} rows behind every number",
            where="policy",
            remedy=f"use min_count={least} or more, or leave min_count out: then a job takes the largest that its sites require",
        )


_OWN = "atoll.secure."
"""Where the halves of Atoll's own secure reducers are: a job's own code cannot stand there."""


def is_bare_step(request: Request) -> bool:
    """Whether a request is a step of Atoll's own secure reducers that no data are in: keys, shares, votes."""
    return request.wraps is None and request.task.promise is not None and request.task.name.startswith(_OWN)


Policies = Policy | Mapping[str, Policy]
"""One policy for all parties, or a dict of policies by party name; a party without one allows everything."""

_ALL = AllowAll()


def policy_of(policies: Policies, name: str) -> Policy:
    """The policy of a party."""
    return policies.get(name, _ALL) if isinstance(policies, Mapping) else policies


def check_policies(policies: Any) -> Policies:
    """Refuse an object that is not a policy.

    Raises:
        ConfigError: it is not a policy.
    """
    rows = policies.values() if isinstance(policies, Mapping) else [policies]
    if not all(isinstance(row, Policy) for row in rows):
        raise ConfigError(
            f"policy={policies!r}",
            remedy="give a policy such as SitePolicy(stages=[Clip(1.0)]), or a dict of policies by party name",
        )
    return policies  # type: ignore[no-any-return]


def admit_job(policies: Policies, names: Sequence[str]) -> None:
    """Refuse a job that the policy of any party refuses.

    Raises:
        PolicyError: names the party.
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


def _as_written(stage: Stage) -> str:
    """A stage as one writes it: without settings that are off."""
    if not is_dataclass(stage):
        return repr(stage)
    off = {
        one.name for one in fields(stage) if one.default in (None, False) and getattr(stage, one.name) == one.default
    }
    own = [one for one in fields(stage) if one.repr and one.name not in off]
    return f"{type(stage).__name__}({', '.join(f'{one.name}={getattr(stage, one.name)!r}' for one in own)})"


def _missing(wanted: tuple[Stage, ...], given: tuple[Stage, ...]) -> Stage | None:
    """The first wanted stage that no given stage covers, after those that cover the wanted ones before it."""
    at = 0
    for stage in wanted:
        found = next((i for i in range(at, len(given)) if given[i].covers(stage)), None)
        if found is None:
            return stage
        at = found + 1
    return None
