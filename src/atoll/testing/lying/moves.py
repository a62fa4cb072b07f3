"""The moves of a lying server, each a few lines around one sum or several: what is sent again, to whom, and with what changed."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core import message as M
from atoll.core.errors import AtollError
from atoll.core.federation.labels import Labels
from atoll.core.persistence.decisions import Decisions
from atoll.core.requests.request import Mailboxes
from atoll.core.requests.results import Terms
from atoll.secure.encrypted.agreement import EncryptedAgreement
from atoll.secure.encrypted.agreement import label_of as label_of_names
from atoll.secure.encrypted.halves import require_ciphertext
from atoll.secure.masking.halves import label_of
from atoll.stages import Clip, GaussianNoise

from .opening import SumView, differences, held, number_of, open_places, reading
from .server import Answer, LyingServer, Script, mail_of

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation
    from atoll.core.federation.reducer import Reducer
    from atoll.core.requests.request import Request
    from atoll.core.requests.stage import Stage

    from .opening import Reader

__all__ = ["MOVES", "Trial"]


@dataclass
class Trial:
    """One reducer, a server that lies, and what comes of it.

    Attributes:
        server: the lying server.
        fed: the program's federation.
        reducer: the reducer.
        names: the cohort.
        least: the smallest number of parties whose sum may be opened.
        reader: takes masks off; ``None`` for a protocol that nobody knows.
        slack: how many parties may drop out of a sum.
        number: the label of the last sum.
        partner: a party that colludes with the server in this move.
        found: what a move has found by itself.
        opening: the tasks of the steps after the words.
    """

    server: LyingServer
    fed: Federation
    reducer: Reducer
    names: list[str]
    least: int
    reader: Reader | None = None
    slack: int = 1
    number: int = 0
    partner: str = ""
    found: list[str] = field(default_factory=list)
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

    # ------------------------------------------------------------------ sums

    async def sum(
        self,
        script: Script | None = None,
        *,
        at: Any = None,
        cohort: list[str] | None = None,
        draws: bool = True,
        reducer: Reducer | None = None,
        quorum: int | None = None,
        message: int | None = None,
        again: bool = False,
        uplink: tuple[Stage, ...] = (),
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
        """
        if at is None:
            self.number += 1
            at = self.number
        self.server.script = script or Script()
        self.fed._labels, self.fed.world.decisions = Labels(), Decisions()
        if again:
            self.fed.world.reducers = copy.deepcopy(self._memory)
        else:
            self._memory = copy.deepcopy(self.fed.world.reducers)
        parties = self.fed.parties.named(*(cohort or self.names))
        try:
            return await self.fed.sum(
                parties,
                held,
                {"sum": at if message is None else message, "draws": draws},
                reducer=reducer or self.reducer,
                at=at,
                quorum=self.least if quorum is None else quorum,
                uplink=uplink,
            )
        except AtollError:
            return None
        finally:
            self.server.script = Script()

    async def reduce(self, asked: Request, path: str, script: Script) -> Any:
        """Make a sum of a program's request that another sum was made of, under another path; return it, or ``None`` if it fails."""
        self.server.script = script
        try:
            return await self.fed._reduce(
                self.reducer, asked, self.fed.parties.named(*self.names), Terms(quorum=self.least), path
            )
        except AtollError:
            return None
        finally:
            self.server.script = Script()

    async def again(self, *, hides: Iterable[str] = (), **more: Any) -> Any:
        """Make the last sum again under the same ids, as if some of its parties had dropped out once they were masked."""
        gone = set(hides)
        script = Script(lies=True, hides=lambda request, name: request.wraps is not None and name in gone, **more)
        return await self.sum(script, at=self.number, again=True)

    async def learn_steps(self) -> None:
        """Make two honest sums, and note which steps they have."""
        for _ in range(2):
            self.begin()
            await self.sum()
        asked = self.told
        if self.reader is not None and not all(len(opens) == 1 for opens in self._opens().values()):
            raise RuntimeError(f"the reader of {type(self.reducer).__name__} does not open an honest sum")
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

    def resized(self, request: Request, kept: list[str], mail: Mailboxes | None = None) -> Request:
        """The request for the sum of other parties: its message, its label and its letters name them."""
        message, made, order = request.message, request.id, self.order(request)
        if isinstance(message, Mapping) and isinstance(message.get("kept"), list):
            if message["kept"] and isinstance(message["kept"][0], str):
                message = {**message, "kept": [name for name in message["kept"] if name in kept]}
                label = label_of_names(message["kept"])
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
        others = set(letters.routes and {s for s, _ in letters.routes} if letters else ()) - set(self.names)
        only = None if letters is None else letters.only_from({*kept, *others})
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
        first = next(iter(sent.values())).request.message
        agreed = EncryptedAgreement.of(first["agreed"], real=False)
        form = agreed.form(agreed.lanes(agreed.layout(request.message["form"])))
        adder = agreed.scheme.adder(first["public"], form)
        for one in sent.values():
            adder.add(require_ciphertext(one.value)[0])
        return adder.sealed()

    def asked(self, path: str) -> dict[str, tuple[Request, list[str]]]:
        """The honest requests of a sum by task, and the parties that were asked."""
        found: dict[str, tuple[Request, list[str]]] = {}
        for one in self.server.answers:
            if one.request.sum == path and not one.extra:
                found.setdefault(one.task, (one.request, []))[1].append(one.party)
        return found

    async def replay_before(self, request: Request, name: str) -> None:
        """Send a party all that it was sent in this sum before a step, so that it is where it was."""
        for task, (earlier, who) in self.asked(request.sum).items():
            if task == request.task.name:
                return
            if name in who:
                await self.server.ask(earlier, [name])

    async def press(self, request: Request, name: str) -> Answer:
        """Send a changed request; if it is refused, send all before it once more, and then again."""
        (answer,) = await self.server.ask(request, [name])
        if answer.refused:
            await self.replay_before(request, name)
            (answer,) = await self.server.ask(request, [name])
        return answer

    async def open_for(self, path: str, kept: list[str]) -> None:
        """Ask for the sum of other parties, by every step after the words."""
        posted: list[Answer] = []
        before = ""
        for task, (request, who) in self.asked(path).items():
            if task in self.opening:
                inside = [name for name in who if name in kept or name not in self.names]
                written = {letter.request for box in _boxes(request.mail) for letter in box.values()}
                mail = mail_of(posted) if before and written == {before} else None
                other = self.resized(request, kept, mail)
                posted = [await self.press(other, name) for name in inside]
                before = request.id

    # ------------------------------------------------------------------ what came of it

    def begin(self) -> None:
        """Begin a move: what was answered before is known, and judged no more."""
        self._since, self.found, self.partner = len(self.server.answers), [], ""

    @property
    def told(self) -> list[Answer]:
        """The answers of the move."""
        return self.server.answers[self._since :]

    def judge(self) -> tuple[str, str]:
        """What a move has come to, and why: ``learned``, ``refused``, ``same bytes`` or ``none``."""
        if found := self._learned():
            return "learned", found[0]
        lies = [one for one in self.told if one.extra]
        refused = [one for one in lies if one.refused]
        if refused:
            return "refused", refused[-1].refused
        honest = defaultdict[tuple[str, str], list[Answer]](list)
        for one in self.told:
            if not one.extra:
                honest[one.request.id, one.party].append(one)
        if lies and all(any(one.says_same(known) for known in honest[one.request.id, one.party]) for one in lies):
            return "same bytes", f"{len(lies)} answers, each as before"
        if not lies:
            return "none", "nothing could be asked beside the protocol"
        return "none", f"{len(lies)} answers, and no combination of them opens anything but the sum"

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

    def _learned(self) -> list[str]:
        """What the answers of a move open that they must not."""
        found, everywhere = list(self.found), dict[tuple[int, ...], str]()
        for view, opens in self._opens().items():
            path = view.path
            found += [f"the sum of {self._inside(places)} alone" for places in opens if _support(places) < self.least]
            if len(opens) > 1:
                shown = " and ".join(str(_support(places)) for places in sorted(opens)[:2])
                found.append(f"{len(opens)} sums under one id, of {shown} parties")
            for name, vector in differences(view):
                if (places := open_places(vector)) and any(places):
                    found.append(f"two answers of {name} under one mask")
            everywhere.update(dict.fromkeys(opens, path))
        if self.reader is None:
            found += self._answered_twice()
        known = sorted(everywhere)
        for i, one in enumerate(known):
            for other in known[:i]:
                apart = tuple(a - b for a, b in zip(one, other, strict=True))
                if 0 < _support(apart) < self.least:
                    found.append(f"two sums whose difference is what {self._inside(apart)} holds")
        return found

    def _answered_twice(self) -> list[str]:
        """Who has answered two requests for the same step of a sum, behind the words, in two ways: without a reader, nobody knows what that opens."""
        first = dict[tuple[str, str, str], Answer]()
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


# ---------------------------------------------------------------------- the moves

Move = Callable[[Trial], Awaitable[None]]


async def repeat(it: Trial) -> None:
    """Send every step twice, and then the whole sum."""

    async def after(request: Request, names: list[str]) -> None:
        for name in names:
            await it.server.ask(request, [name])

    await it.sum(Script(after=after))
    await it.again()


async def other_letters(it: Trial) -> None:
    """Send every step once more without the victim's letter, and then as it was, so that the protocol goes on."""

    async def after(request: Request, names: list[str]) -> None:
        if request.mail is not None and any(sender == it.victim for sender, _ in request.mail.routes):
            mail = request.mail.only_from({sender for sender, _ in request.mail.routes} - {it.victim})
            for name in names:
                if name != it.victim:
                    await it.press(replace(request, mail=mail), name)
                    await it.press(request, name)

    await it.sum(Script(after=after))


async def other_key(it: Trial) -> None:
    """Ask for the words once more, with another random key of the program's request."""

    async def after(request: Request, names: list[str]) -> None:
        if request.wraps is not None:
            other = replace(request, wraps=replace(request.wraps, key=request.wraps.key ^ 999))
            for name in names:
                await it.press(other, name)

    await it.sum(Script(after=after))


async def other_label(it: Trial) -> None:
    """Make one program's request in two sums, the second without the victim."""
    await it.sum()
    asked = next((one.request.wraps for one in it.told if one.request.wraps is not None), None)
    if asked is not None:
        script = Script(lies=True, hides=lambda request, name: request.wraps is not None and name == it.victim)
        await it.reduce(asked, f"{it.fed.slot}/again-{it.number}", script)


async def other_set(it: Trial) -> None:
    """Ask for the sum without the victim, once the sum is opened."""

    async def after(request: Request, names: list[str]) -> None:
        del names
        if it.opening and request.task.name == it.opening[-1]:
            await it.open_for(request.sum, it.rest)

    await it.sum(Script(after=after))


async def settle_twice(it: Trial) -> None:
    """Call two generations safe, and make the sum again without the victim."""
    await it.sum()
    for _ in range(2):
        await it.server.settle(it.fed.slot)  # type: ignore[attr-defined]
    await it.again(hides=[it.victim])


async def withheld_orders(it: Trial) -> None:
    """Never say what becomes of the sum, and make it again without the victim."""
    last = tuple(it.opening[-1:])
    await it.sum(Script(withholds=last))
    await it.again(hides=[it.victim], withholds=last)


async def doubled_orders(it: Trial) -> None:
    """Say twice what becomes of the sum, and make it again without the victim."""
    await it.sum(Script(repeats=True))
    await it.again(hides=[it.victim], repeats=True)


async def old_letters(it: Trial) -> None:
    """Keep letters that ordinary losses left unopened, and deliver them in a later sum."""
    kept = dict[tuple[str, str, str], Any]()
    helpers = set(it.reducer.others)

    def keep(lost: str) -> None:
        for one in it.server.answers[since:]:
            if one.party == lost:
                kept.update({(one.task, lost, to): letter for to, letter in one.letters.items()})

    few = it.names[: it.least + 1]  # a tree's cohorts change from sum to sum, unless there is one
    for j in [it.victim] if helpers else few[1:]:
        since = len(it.server.answers)

        def alter(request: Request, name: str, j: str = j) -> Request:
            there = request.mail is not None and j in request.mail.box(name)
            if name != it.victim or not there or request.mail is None or not request.wraps:
                return request
            return replace(request, mail=_without(request.mail, j, name))

        def hides(request: Request, name: str, j: str = j) -> bool:
            return request.wraps is not None and name == j

        await it.sum(Script(alter=alter, hides=hides), cohort=few)
        keep(j)

    def deliver(request: Request, name: str) -> Request:
        if request.mail is None or not (name == it.victim or name in helpers):
            return request
        there = request.mail.box(name)
        old = {s: letter for (task, s, to), letter in kept.items() if to == name and s in there and _is_of(task, there[s])}
        return _with_mail(request, old, name)

    await it.sum(Script(alter=deliver), cohort=few)


def _is_of(task: str, letter: Any) -> bool:
    """Whether a letter was written in a step of this task."""
    return f"/{task}/" in letter.request


def _with_mail(request: Request, old: Mapping[str, Any], name: str) -> Request:
    return request if not old or request.mail is None else replace(request, mail=_with(request.mail, old, name))


def _without(mail: Mailboxes, sender: str, to: str) -> Mailboxes:
    made = Mailboxes(mail.sealed())
    made._letters[to] = {s: letter for s, letter in made._letters[to].items() if s != sender}
    return made


def _with(mail: Mailboxes, old: Mapping[str, Any], to: str) -> Mailboxes:
    made = Mailboxes(mail.sealed())
    made._letters[to] = {**made._letters.get(to, {}), **old}
    return made


async def kill(it: Trial) -> None:
    """Kill every site once the sum is opened, and make it again without the victim."""

    async def after(request: Request, names: list[str]) -> None:
        del names
        if it.opening and request.task.name == it.opening[-1]:
            await it.server.restart([*it.names, *it.reducer.others])

    await it.sum(Script(after=after))
    await it.again(hides=[it.victim])


async def reordered_names(it: Trial) -> None:
    """Tell half of the parties the names in another order."""
    half = set(it.names[: len(it.names) // 2])

    def alter(request: Request, name: str) -> Request:
        if name not in half:
            return request
        message = edited(request.message, lambda said: {**said, "names": said["names"][::-1]} if "names" in said else said)
        return request if message is request.message else replace(request, message=message)

    await it.sum(Script(alter=alter))


def edited(message: Any, change: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> Any:
    """A message with a change to each of its dicts; the same object if nothing changes."""
    if not isinstance(message, Mapping):
        return message
    inner = {name: edited(value, change) for name, value in message.items()}
    made = change(inner if any(inner[name] is not message[name] for name in message) else message)
    return made


async def edited_sizes(it: Trial) -> None:
    """Say that sums are of two parties and more, and that replies hide among ten thousand; then open the sum of as few as the threshold allows."""

    def alter(request: Request, name: str) -> Request:
        del name
        return _hidden_among(request, 10_000)

    for size in (it.least - 2, it.least - 1):
        few = it.names[: max(2, size)]

        def hides(request: Request, name: str, few: list[str] = few) -> bool:
            return request.wraps is not None and name in it.names and name not in few

        await it.sum(Script(alter=alter, hides=hides), reducer=with_least(it.reducer, 2), quorum=2)
    await it.sum(_in_halves(it, {"threshold": 2, "least": 2, "private": 1}))


async def edited_replies(it: Trial) -> None:
    """Say that replies hide among ten thousand, so that each party adds a hundredth of its noise."""
    stages = (Clip(64.0), GaussianNoise(1.0))

    def alter(request: Request, name: str) -> Request:
        del name
        return _hidden_among(request, 10_000)

    usual = it.error_of(await it.sum(uplink=stages, draws=False))
    less = it.error_of(await it.sum(Script(alter=alter), uplink=stages, draws=False))
    if usual is not None and less is not None and less < usual / 5:
        it.found.append(f"a sum with noise of {less:.2g}, where the parties owe {usual:.2g}")


def _hidden_among(request: Request, replies: int) -> Request:
    """The request whose stages share their noise among so many replies."""
    if request.wraps is None:
        return request
    uplink = request.wraps.uplink.within(replies, hidden=True)
    return replace(request, wraps=replace(request.wraps, uplink=uplink))


def with_least(reducer: Any, least: int) -> Any:
    """The reducer with another least number of parties."""
    inner = getattr(reducer, "reducer", None)
    if inner is not None:
        return replace(reducer, reducer=with_least(inner, least))
    return replace(reducer, least=least) if hasattr(reducer, "least") else reducer


async def below_least(it: Trial) -> None:
    """Open the sum of two parties."""
    few = it.names[:2]

    def alter(request: Request, name: str) -> Request:
        del name
        return it.resized(request, few) if it.opens(request) else request

    await it.sum(Script(alter=alter))


async def two_halves(it: Trial) -> None:
    """Open the sum of each half of the cohort."""
    await it.sum(_in_halves(it, {}))


def _in_halves(it: Trial, sizes: Mapping[str, int]) -> Script:
    """Tell each half that the sum is its own, and helpers both; with other sizes in the agreement."""
    middle = -(-len(it.names) // 2)
    halves = it.names[:middle], it.names[middle:]

    def alter(request: Request, name: str) -> Request:
        if it.opens(request):
            return it.resized(request, halves[0] if name in halves[0] or name not in it.names else halves[1])
        other = edited(request.message, lambda said: {**said, **{n: x for n, x in sizes.items() if n in said}})
        return replace(request, message=other) if sizes else request

    async def after(request: Request, names: list[str]) -> None:
        if it.opens(request):
            await it.server.ask(it.resized(request, halves[1]), [name for name in names if name not in it.names])

    return Script(alter=alter, after=after)


async def split_views(it: Trial) -> None:
    """Tell some that the victim is in the sum, and others that it is not; one party colludes with the server. Ask helpers for both."""
    it.partner = it.names[-1]
    told = set(it.names[: len(it.names) // 2])

    def alter(request: Request, name: str) -> Request:
        if not it.opens(request) or name in told or name not in it.names:
            return request
        return it.resized(request, it.rest)

    async def after(request: Request, names: list[str]) -> None:
        if it.opens(request):
            other = it.resized(request, it.rest)
            await it.server.ask(other, [name for name in names if name not in it.names])

    await it.sum(Script(alter=alter, after=after))


async def smaller_sum(it: Trial) -> None:
    """Make a second sum of the same task and message, without the victim, under a new id."""
    few = it.names[: it.least + 1]
    await it.sum(draws=False, cohort=few)
    await it.sum(Script(lies=True), draws=False, cohort=few[1:], message=it.number)


MOVES: dict[str, Move] = {
    made.__name__.replace("_", "-"): made
    for made in (
        repeat, other_letters, other_key, other_label, other_set, settle_twice, withheld_orders, doubled_orders, old_letters,
        kill, reordered_names, edited_sizes, edited_replies, below_least, two_halves, split_views, smaller_sum,
    )
}  # fmt: skip
"""Name -> what the server does."""
