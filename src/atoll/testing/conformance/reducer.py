"""What every reducer must do: give the plain sum, whichever party drops out and when; and if it is secure, show the server nothing else."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.errors import AtollError, CompositionError
from atoll.core.federation.federation import Federation, run_program
from atoll.core.federation.reducer import Plain, Reducer
from atoll.core.requests.results import Free
from atoll.core.requests.stage import Stage
from atoll.core.time.clock import run
from atoll.testing.crash import killed_and_resumed
from atoll.testing.timetable import Timetable

from .laws import close, refuses, require
from .secrecy import require_secrecy
from .sums import NAMES, Bench, SumsMade, draws, single, steps
from .tasks import Dither

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.requests.task import Task

__all__ = ["check_reducer"]


@dataclass(frozen=True)
class Unsummable(Stage):
    """A stage that a secure reducer must refuse."""

    summable: ClassVar[bool] = False


def check_reducer(
    reducer: Reducer,
    *,
    make_engine: Callable[[], Any] | None = None,
    tolerance: float = 1e-6,
    dropouts: bool = True,
    others: Mapping[str, Any] | None = None,
    proved: Collection[Task] = (),
    lies: Collection[str] | None = None,
    seed: int = 0,
) -> None:
    """Require a reducer to keep these laws. An error begins with the name of the law.

    * **exactness**: means, sums, votes and metrics are what plain addition gives, for the parties that the reducer says
      are in the sum, and every party that answers is in it. The task draws random numbers and keeps private state: it
      must draw the same and find the same state as under ``Plain``. Two sums of a round share a label. Stages are
      undone, dtypes and weights are kept.
    * **state**: after the sums, the private state of every party is what it is under ``Plain``: the state of a party in
      the sum has changed; that of a party that dropped out, or whose reply is not finite, has not.
    * **recovery** (with ``dropouts``): the sum of the others succeeds whichever of the reducer's supersteps a party
      drops out at.
    * **all or nothing**: when most parties drop out at a superstep, the sum is right or fails with a ``QuorumError``.
      A failed sum changes no state.
    * **terms**: ``accept`` and ``deadline`` close the sum with the same replies as the plain sum.
    * **crashes**: killed at any of its steps and resumed, the program gives the same result, and no party answers one
      request in two ways.
    * **refusal** (a secure reducer): stages that are not summable and late single replies are refused before any party
      is contacted, ``Parts`` at the party, and a sum over one party fails.
    * **hiding** (a secure reducer): nothing about one party follows from what the server receives. The law checks every
      word of every reply, and what a relay sees of sealed words: who sends them to whom, how many, and how long they are.
      It exchanges the data of the parties in the sum, which keeps the sum, and redraws single
      secrets of parties. For every word that the data changes there must be a secret of ``island.secret`` that changes
      this word too, and only such words; the secrets must tie all parties in the sum together, or hide each alone (as
      encryption does); they must flip half of the word's bits, and mask no second word. That holds for two
      sums of a round, with a dropout at each superstep, for a party whose reply arrives after the sum was closed, and
      for a server that repeats the supersteps after the replies, as if another party had dropped out.

    * **lies** (a secure reducer): a server that sends what no honest server sends learns nothing that the honest sum does not tell: it repeats steps with
      other letters, keys, labels and sets, withholds orders, delivers old letters, restarts parties, tells parties different things. ``atoll.testing.lying.MOVES``
      has the moves. Of a protocol that is not Atoll's own, the law cannot take masks off: it refuses two different answers of a party to one step behind the words.

    The law of hiding is stricter than secrecy if a server learns a secret's image that it cannot invert (a public
    key) or a sum of masks. Name the tasks that reply with these in ``proved``, and prove elsewhere that they reveal
    nothing. The law cannot detect that the server knows an encryption key, or that a threshold is so low that two groups
    of parties with no member in common can each reach it: a server that tells them different things then opens a party.
    It does not read the contents of letters and of messages between the roles of a session, which are sealed.

    Args:
        reducer: the reducer, for five parties.
        make_engine: makes a fresh engine; by default the inline one.
        tolerance: allowed difference, relative to ``1 + |x|``: fixed-point reducers round.
        dropouts: whether it must survive a party that drops out. If not, such a sum may fail, but must not be wrong.
        others: data of helper parties that the reducer asks, by name.
        proved: tasks of the reducer whose replies provably reveal nothing about a party.
        lies: the names of the moves that a lying server makes. By default those of ``atoll.testing.lying.WAIST_MOVES``, which every reducer withstands that lets the waist
            ask. A reducer that is to withstand all of them (``MOVES``) binds its parties to one set a sum, and lets them vote (`atoll.secure.ballot`).
        seed: of the worlds.

    Raises:
        AssertionError: it breaks a law.
    """
    from atoll.engines import Inline

    laws = _Laws(reducer, Bench(make_engine or Inline, others or {}, seed), tolerance, dropouts)
    laws.exactness()
    if reducer.secure:
        laws.refusal()
        require_secrecy(reducer, others=others, proved=proved, seed=seed)
    laws.recovery()
    laws.all_or_nothing()
    laws.terms()
    laws.crashes()
    if reducer.secure and (lies is None or lies):
        from atoll.testing.lying import WAIST_MOVES, require_refusals

        require_refusals(reducer, others=others, moves=WAIST_MOVES if lies is None else lies, seed=seed)


@dataclass(frozen=True)
class _Laws:
    reducer: Reducer
    bench: Bench
    tolerance: float
    dropouts: bool

    def _breaks(self, law: str, where: str) -> str:
        return f"{type(self.reducer).__name__} breaks the law of {law}, {where}"

    def _sums(self, law: str, where: str, *, missing: Collection[str] = (), must: bool = True, **how: Any) -> SumsMade:
        """Make sums, and require them to be right for the parties that they name; unless they ``must`` succeed, they may fail."""
        try:
            made = self.bench.sums(self.reducer, **how)
        except Exception as error:
            raise AssertionError(f"{self._breaks(law, where)}: {type(error).__name__}: {error}") from error
        for number, names in enumerate(made.senders):
            if names is None:
                require(not must, f"{self._breaks(law, where)}: sum {number + 1} failed")
                continue
            silent = set(NAMES) - set(names) - set(missing)
            require(
                not silent, f"{self._breaks(law, where)}: {sorted(silent)} answered and are not in sum {number + 1}"
            )
        plain = self.bench.plainly(made, uplink=how.get("uplink", ()), bad=how.get("bad", ""))
        for name, state in plain.states.items():
            of = self._breaks(law if law == "all or nothing" else "state", f"{where}: the state of {name}")
            close(made.states[name], state, of, self.tolerance)
        right = [got for got in made.sums if got is not None]
        law = law if law != "terms" else "exactness"
        close(right, plain.sums, self._breaks(law, where), self.tolerance)
        return made

    def exactness(self) -> None:
        self._sums("exactness", "everyone")
        self._sums("exactness", "with a stage", uplink=(Dither(0.0),))

    @cached_property
    def _supersteps(self) -> list[dict[str, list[str]]]:
        """Return for each superstep the requests in all sums that belong to it or a later one, and the parties that they ask."""
        sums = [list(made.items()) for made in self.bench.sums(self.reducer).steps]
        most = max(len(made) for made in sums)
        return [dict(each for made in sums for each in made[number:]) for number in range(most)]

    def recovery(self) -> None:
        for number, requests in enumerate(self._supersteps):
            asked = next(iter(requests.values()))
            for name in dict.fromkeys([asked[0], asked[len(asked) // 2], asked[-1]]):
                where = f"without {name} from superstep {number + 1} on ({_task(requests)})"
                lost, must = {request: [name] for request in requests}, self.dropouts and name in NAMES
                made = self._sums("recovery", where, lost=lost, missing=[name], must=must)
                self._recovery_of_recovery(made, where, name, lost)
        where, bad = "with a reply that is not finite", NAMES[3]
        made = self._sums("recovery", where, bad=bad, missing=[bad], must=self.dropouts)
        for names, rejected in zip(made.senders, made.rejected, strict=True):
            counted = names is None or rejected == [bad]
            require(counted, f"{self._breaks('recovery', where)}: rejected are {rejected}, not {[bad]}")

    def _recovery_of_recovery(self, made: SumsMade, where: str, name: str, lost: dict[str, list[str]]) -> None:
        """Check a superstep that exists only after a dropout: another dropout may follow there."""
        steps = [item for each in made.steps for item in each.items() if item[0] not in self._supersteps[0]]
        more = {request: [who for who in asked if who != name][:1] for request, asked in steps}
        if more:
            gone = [name, *(who for each in more.values() for who in each)]
            self._sums("recovery", f"{where}, and then another", lost={**lost, **more}, missing=gone, must=False)

    def all_or_nothing(self) -> None:
        for number, requests in enumerate(self._supersteps):
            gone = NAMES[1:4]
            where = f"without {len(gone)} of {len(NAMES)} parties at superstep {number + 1} ({_task(requests)})"
            self._sums(
                "all or nothing",
                where,
                lost=dict.fromkeys(requests, gone),
                missing=gone,
                must=False,
                quorum=4,
            )

    def terms(self) -> None:
        seconds = {name: float(len(NAMES) - i) for i, name in enumerate(NAMES)}
        every: dict[str, dict[str, Any]] = {
            "accept=4": {"accept": 4},
            "accept, a rule": {"accept": _but_the_third},
            "deadline=4.5": {"deadline": 4.5},
        }
        for shown, terms in every.items():
            where = f"with {shown}"
            made = self._sums("terms", where, seconds=seconds, missing=NAMES, must=self.dropouts, **terms)
            plain = self.bench.sums(Plain(), seconds=seconds, **terms)
            for ours, theirs in zip(made.senders, plain.senders, strict=True):
                right = ours is None or ours == theirs
                require(right, f"{self._breaks('terms', where)}: {ours} are in the sum, not {theirs}")

    def crashes(self) -> None:
        async def program(fed: Federation) -> Any:
            state = await fed.restore([])
            while len(state) < 2:
                rows = []
                for task in (draws, steps):
                    got = await fed.sum(fed.parties, task, 1.0, reducer=self.reducer, at=len(state), quorum=3)
                    rows.append({"value": got.value, "who": got.senders.names})
                state = [*state, rows]
                await fed.checkpoint(state)
            return state

        with tempfile.TemporaryDirectory() as folder:
            try:
                killed_and_resumed(lambda f, r: self.bench.world(Free(), f, r), program, Path(folder), points=10)
            except AssertionError as error:
                raise AssertionError(f"{self._breaks('crashes', str(error))}") from error

    def refusal(self) -> None:
        name = self._breaks("refusal", "with")

        async def before(fed: Federation) -> int:
            with refuses(CompositionError, f"{name} a stage that is not summable", "Unsummable"):
                await fed.sum(fed.parties, draws, 0.0, reducer=self.reducer, uplink=(Unsummable(),))
            with refuses(CompositionError, f"{name} late='arrive'", "late"):
                await fed.sum(fed.parties, draws, 0.0, reducer=self.reducer, late="arrive")
            return fed.bytes()["messages_down"]

        async def parts(fed: Federation) -> None:
            with refuses(CompositionError, f"{name} single replies", "x"):
                await fed.sum(fed.parties, single, None, reducer=self.reducer)

        async def alone(fed: Federation, cohort: int, **terms: Any) -> None:
            with refuses(AtollError, f"{name} a sum of one reply ({cohort} asked)"):
                await fed.sum(fed.parties[:cohort], steps, None, reducer=self.reducer, **terms)

        asked = run(run_program(self.bench.world(Timetable()), before))[0]
        require(asked == 0, f"{name} parts that do not go together: {asked} parties were contacted")
        run(run_program(self.bench.world(Timetable()), parts))
        run(run_program(self.bench.world(Timetable()), lambda fed: alone(fed, 1)))
        run(run_program(self.bench.world(Timetable()), lambda fed: alone(fed, len(NAMES), accept=1)))


def _but_the_third(arrived: NDArray[np.int64]) -> tuple[NDArray[np.int64], int | None]:
    """Take all replies except that of the third party."""
    return np.flatnonzero(arrived != 2), None


def _task(requests: Mapping[str, Any]) -> str:
    return next(iter(requests)).split("/")[-2]
