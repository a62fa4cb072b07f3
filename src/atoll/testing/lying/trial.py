"""A trial of one reducer: the verbs that a lying server's moves are made of, and the judgement of what they have come to."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core import message as M
from atoll.core.federation.reducer import Reduction
from atoll.core.federation.scope import Labels
from atoll.core.persistence.checkpoint import Decisions
from atoll.core.requests.request import Mailboxes
from atoll.core.requests.results import Terms
from atoll.secure.ballot import hash_set
from atoll.secure.encrypted.agreement import EncryptedAgreement
from atoll.secure.encrypted.party_steps import require_ciphertext, threshold_of
from atoll.secure.masking.party_steps import label_of

from .opening import SumView, held, number_of, open_places, reading, under_one_mask, whole_places
from .server import LyingScript, LyingServer, PartyAnswer, mail_of

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation
    from atoll.core.federation.reducer import Reducer
    from atoll.core.requests.request import Request
    from atoll.core.requests.stage import Stage

    from .opening import Reader

__all__ = ["AttackTrial"]


@dataclass
class AttackTrial:
    """One reducer, a server that lies, and what comes of it.

    Attributes:
        server: the lying server.
        fed: the program's federation.
        reducer: the reducer.
        names: the cohort.
        least: the smallest number of parties whose sum may be opened.
        reader: takes masks off; ``None`` for a protocol that nobody knows.
        number: the label of the last sum.
        partner: a party that colludes with the server in this move.
        found: what a move has found by itself.
        because: why a move came to nothing, if it knows.
        results: sum -> what the reducer has made of it in this move, as often as that differs.
        opening: the tasks of the steps after the words.
    """

    server: LyingServer
    fed: Federation
    reducer: Reducer
    names: list[str]
    least: int
    reader: Reader | None = None
    number: int = 0
    partner: str = ""
    found: list[str] = field(default_factory=list)
    because: str = ""
    results: dict[str, set[tuple[int, ...]]] = field(default_factory=dict)
    opening: list[str] = field(default_factory=list)
    _memory: Any = None
    _since: int = 0

    @property
    def victim(self) -> str:
        """The party that the server wants to read."""
        return self.names[0]

    @property
    def rest(self) -> list[str]:
        """All others."""
        return self.names[1:]

    @property
    def block(self) -> list[str]:
        """Seven parties: a tree's cohorts change from sum to sum, unless there is one."""
        return self.names[: max(7, self.least + 1)]

    # ------------------------------------------------------------------ sums

    async def sum(
        self,
        script: LyingScript | None = None,
        *,
        at: Any = None,
        cohort: list[str] | None = None,
        draws: bool = True,
        reducer: Reducer | None = None,
        quorum: int | None = None,
        message: int | None = None,
        again: bool = False,
        uplink: tuple[Stage, ...] = (),
        votes: bool = True,
    ) -> Any:
        """Make a sum; return it, or ``None`` if it fails.

        Args:
            script: what the server does beside.
            at: its label; by default a new one.
            cohort: the parties; by default all.
            draws: whether the parties' numbers follow from random numbers of the request too.
            reducer: another reducer.
            quorum: another quorum.
            message: the number of the sum whose message it has; by default its own.
            again: whether it is the last one, which begins anew.
            uplink: stages.
            votes: whether the server lets the parties vote.
        """
        if at is None:
            self.number += 1
            at = self.number
        self.server.script = script or LyingScript()
        between, Reduction.between = Reduction.between, Reduction.between if votes else property(lambda _: False)  # type: ignore[assignment, method-assign]
        self.fed._labels, self.fed.world.decisions = Labels(), Decisions()
        if again:
            self.fed.world.reducers = copy.deepcopy(self._memory)
        else:
            self._memory = copy.deepcopy(self.fed.world.reducers)
        parties = self.fed.parties.named(*(cohort or self.names))
        try:
            made = await self.fed.sum(
                parties,
                held,
                {"sum": at if message is None else message, "draws": draws},
                reducer=reducer or self.reducer,
                at=at,
                quorum=self.least if quorum is None else quorum,
                uplink=uplink,
            )
            return self._note_opened(f"sum {at}", made)
        except Exception:  # a reducer that was lied to may fail in any way
            self._require_no_fault()
            return None
        finally:
            Reduction.between = between  # type: ignore[method-assign]
            self.server.script = LyingScript()

    def _note_opened(self, name: str, made: Any) -> Any:
        """Keep what the reducer has opened, as the server that runs it does."""
        places = whole_places(np.asarray(made["x"]))
        if places is not None and any(places):
            self.results.setdefault(name, set()).add(places)
        return made

    def _require_no_fault(self) -> None:
        if self.server.fault is not None:
            raise self.server.fault

    async def reduce(self, asked: Request, path: str, script: LyingScript) -> Any:
        """Make a sum of a program's request that another sum was made of, under another path; return it, or ``None`` if it fails."""
        self.server.script = script
        try:
            parties = self.fed.parties.named(*self.names)
            made = await self.fed._reduce(self.reducer, asked, parties, Terms(quorum=self.least), path)
            return self._note_opened(path, made)
        except Exception:  # as above
            self._require_no_fault()
            return None
        finally:
            self.server.script = LyingScript()

    async def again(self, *, hides: Iterable[str] = (), **more: Any) -> Any:
        """Make the last sum again under the same ids, as if some of its parties had dropped out once they were masked."""
        gone = set(hides)
        script = LyingScript(lies=True, hides=lambda request, name: request.wraps is not None and name in gone, **more)
        return await self.sum(script, at=self.number, again=True)

    async def learn_steps(self) -> None:
        """Make two honest sums, and note which steps they have.

        Raises:
            AssertionError: a sum fails, or the reader does not open it.
        """
        name = type(self.reducer).__name__
        for _ in range(2):
            self.begin()
            if await self.sum() is None:
                raise AssertionError(f"{name} breaks the law of lies: an honest sum fails")
        asked = self.told
        if self.reader is not None and not all(len(opens) == 1 for opens in self._opens().values()):
            raise AssertionError(f"the reader of {name} does not open an honest sum, so it would see no lie succeed")
        steps = list(dict.fromkeys(one.task for one in asked))
        wrapping = {one.task for one in asked if one.request.wraps is not None}
        words = next((i for i, name in enumerate(steps) if name in wrapping), 0)
        self.opening = steps[words + 1 :]

    def opens(self, request: Request) -> bool:
        """Whether a request is of a step that names a set of parties, or of the last one."""
        names_set = isinstance(request.message, Mapping) and "kept" in request.message
        return request.task.name in self.opening and (names_set or request.task.name == self.opening[-1])

    def error_of(self, made: Any) -> float | None:
        """How far a sum is from the exact one, as a root mean square; ``None`` if it failed."""
        if made is None:
            return None
        exact = np.array([number_of(i) if name in made.senders.names else 0.0 for i, name in enumerate(self.names)])
        return float(np.sqrt(np.mean((np.asarray(made["x"]) - exact) ** 2)))

    # ------------------------------------------------------------------ other requests

    def resize_request(self, request: Request, kept: list[str], mail: Mailboxes | None = None) -> Request:
        """The request for the sum of other parties: its message, its label and its letters name them."""
        message, made, order = request.message, request.id, self.order(request)
        if isinstance(message, Mapping) and isinstance(message.get("kept"), list):
            if message["kept"] and isinstance(message["kept"][0], str):
                message = {**message, "kept": [name for name in message["kept"] if name in kept]}
                label = hash_set(message["kept"])
            else:
                gone = [i for i in message["kept"] if order[i] not in kept]
                places = [i for i in message["kept"] if order[i] in kept]
                lost = [*message.get("lost", []), *gone]
                message, label = {**message, "kept": places, "lost": lost}, label_of(places, lost)
            head, at, tail = made.rpartition("@")
            made = f"{head}@{label}" if at and len(tail) == len(label) else made
            if "sealed" in message:
                message = {**message, "sealed": self._ciphertext(request, kept)}
        letters = request.mail if mail is None else mail
        helpers = set() if letters is None else {sender for sender, _ in letters.routes} - set(self.names)
        only = None if letters is None else letters.only_from({*kept, *helpers})
        return replace(request, message=message, id=made, mail=only)

    def order(self, request: Request) -> list[str]:
        """The names by which places in a request count."""
        for one in self.server.answers[::-1]:
            said = one.request.message
            said = said.get("agreed", said) if isinstance(said, Mapping) else None
            if one.request.sum == request.sum and isinstance(said, Mapping) and "names" in said:
                return list(said["names"])
        return self.names

    def _ciphertext(self, request: Request, kept: list[str]) -> Any:
        """The sum of some parties' ciphertexts."""
        here = [one for one in self.server.answers if one.request.sum == request.sum and one.value is not None]
        sent = {one.party: one for one in here if one.task.endswith(":encrypt_totals") and one.party in kept}
        if len(sent) < len(kept):
            return request.message["sealed"]
        first = sent[kept[0]].request.message
        agreed = EncryptedAgreement.of(first["agreed"], real=False)
        form = agreed.form(agreed.lanes(agreed.layout(require_ciphertext(sent[kept[0]].value)[1])))
        scheme = threshold_of(agreed.scheme) if agreed.threshold else agreed.scheme
        adder = scheme.adder(first["public"], form)
        for one in sent.values():
            adder.add(require_ciphertext(one.value)[0])
        return adder.sealed()

    def find_requests(self, path: str) -> dict[str, tuple[Request, list[str]]]:
        """The honest requests of a sum by task, and the parties that were asked."""
        found: dict[str, tuple[Request, list[str]]] = {}
        for one in self.server.answers:
            if one.request.sum == path and not one.extra:
                found.setdefault(one.task, (one.request, []))[1].append(one.party)
        return found

    async def replay_before(self, request: Request, name: str) -> None:
        """Send a party all that it was sent in this sum before a step, so that it is where it was."""
        for task, (earlier, who) in self.find_requests(request.sum).items():
            if task == request.task.name:
                return
            if name in who:
                await self.server.ask(earlier, [name])

    async def press(self, request: Request, name: str) -> PartyAnswer:
        """Send a changed request; if it is refused, send all before it once more, and then again."""
        (answer,) = await self.server.ask(request, [name])
        if answer.refused:
            await self.replay_before(request, name)
            (answer,) = await self.server.ask(request, [name])
        return answer

    async def open_for(self, path: str, kept: list[str]) -> None:
        """Ask for the sum of other parties, by every step after the words."""
        posted: list[PartyAnswer] = []
        before = ""
        for task, (request, who) in self.find_requests(path).items():
            if task in self.opening:
                inside = [name for name in who if name in kept or name not in self.names]
                written = {letter.request for box in _boxes(request.mail) for letter in box.values()}
                mail = mail_of(posted) if before and written == {before} else None
                other = self.resize_request(request, kept, mail)
                posted = [await self.press(other, name) for name in inside]
                before = request.id

    # ------------------------------------------------------------------ what came of it

    def begin(self) -> None:
        """Begin a move: what was answered before is known, and judged no more."""
        self._since, self.found, self.results, self.partner = len(self.server.answers), [], {}, ""
        self.because = ""

    @property
    def told(self) -> list[PartyAnswer]:
        """The answers of the move."""
        return self.server.answers[self._since :]

    def judge(self) -> tuple[str, str]:
        """What a move has come to, and why: ``learned``, ``refused``, ``same bytes`` or ``none``."""
        if found := self._list_learned():
            return "learned", found[0]
        lies = [one for one in self.told if one.extra]
        refused = [one for one in (*self.told, *lies) if one.refused and lies]
        if (
            refused
        ):  # a lie itself, or the honest step after it, where parties find that they agreed on different things
            return "refused", refused[-1].refused
        honest = defaultdict[tuple[str, str], list[PartyAnswer]](list)
        for one in self.told:
            if not one.extra:
                honest[one.request.id, one.party].append(one)
        if lies and all(any(one.says_same(known) for known in honest[one.request.id, one.party]) for one in lies):
            return "same bytes", f"{len(lies)} answers, each as before"
        if not lies:
            return "none", "nothing could be asked beside the protocol"
        return "none", self.because or f"{len(lies)} answers, and no combination of them opens anything but the sum"

    def _opens(self) -> dict[SumView, set[tuple[int, ...]]]:
        """The sums that the answers of a move open, by the id of the sum."""
        found: dict[SumView, set[tuple[int, ...]]] = {}
        for path in dict.fromkeys(one.request.sum for one in self.told if one.request.wraps is not None):
            here = [one for one in self.told if one.request.sum == path]
            others = [one for one in self.server.answers if one.request.sum != path]
            view = SumView(path, self.names, here, others, self.partner, self.fed.world.seals().open)
            made = (open_places(vector) for vector in reading(view, self.reader))
            found[view] = {places for places in made if places and any(places)}
        return found

    def _list_learned(self) -> list[str]:
        """What the answers of a move open that they must not."""
        opened = self._opens()
        found = [*self.found, *self._too_much(opened.values())]
        for view in opened:
            found += [f"two answers of {name} under one mask" for name in under_one_mask(view)]
        if self.reader is None:  # all that is known of its masks is what the reducer makes of them
            found += [*self._too_much(self.results.values()), *self._answered_twice()]
        return found

    def _too_much(self, sums: Iterable[set[tuple[int, ...]]]) -> list[str]:
        """What sums tell beside one sum of enough parties an id.

        Args:
            sums: what is open of each.
        """
        found, everywhere = [], set[tuple[int, ...]]()
        for opens in sums:
            found += [f"the sum of {self._inside(places)} alone" for places in opens if _support(places) < self.least]
            if len(opens) > 1:
                shown = " and ".join(str(_support(places)) for places in sorted(opens)[:2])
                found.append(f"{len(opens)} sums under one id, of {shown} parties")
            everywhere |= opens
        known = sorted(everywhere)
        for i, one in enumerate(known):
            for other in known[:i]:
                apart = tuple(a - b for a, b in zip(one, other, strict=True))
                if 0 < _support(apart) < self.least:
                    found.append(f"two sums whose difference is what {self._inside(apart)} holds")
        return found

    def _answered_twice(self) -> list[str]:
        """Who has answered two requests for the same step of a sum, behind the words, in two ways: without a reader, nobody knows what that opens."""
        first = dict[tuple[str, str, str], PartyAnswer]()
        found = list[str]()
        for one in self.told:
            if one.request.wraps is None and one.value is not None and one.task in self.opening:
                known = first.setdefault((one.request.sum, one.task, one.party), one)
                if one.extra and not M.equal(known.value, one.value):
                    found.append(f"{one.party} answered {one.task} in two ways in one sum")
        return found

    def _inside(self, places: tuple[int, ...]) -> str:
        return ", ".join(name for name, x in zip(self.names, places, strict=False) if x)


def _support(places: tuple[int, ...]) -> int:
    return sum(x != 0 for x in places)


def _boxes(mail: Mailboxes | None) -> Iterable[Mapping[str, Any]]:
    return () if mail is None else (mail.box(to) for to in {to for _, to in mail.routes})
