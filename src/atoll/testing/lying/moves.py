"""The moves of a lying server, each a few lines around one sum or several: what is sent again, to whom, and with what changed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from atoll.core.requests.request import Mailboxes
from atoll.stages import Clip, GaussianNoise

from .server import LyingScript
from .trial import AttackTrial

if TYPE_CHECKING:
    from atoll.core.requests.request import Request

__all__ = ["MOVES", "WAIST_MOVES"]

Move = Callable[[AttackTrial], Awaitable[None]]


async def repeat(it: AttackTrial) -> None:
    """Send every step twice, and then the whole sum."""

    async def after(request: Request, names: list[str]) -> None:
        for name in names:
            await it.server.ask(request, [name])

    await it.sum(LyingScript(after=after))
    await it.again()


async def other_letters(it: AttackTrial) -> None:
    """Send every step once more without the victim's letter, and then as it was, so that the protocol goes on."""

    async def after(request: Request, names: list[str]) -> None:
        if request.mail is not None and any(sender == it.victim for sender, _ in request.mail.routes):
            mail = request.mail.only_from({sender for sender, _ in request.mail.routes} - {it.victim})
            for name in names:
                if name != it.victim:
                    await it.press(replace(request, mail=mail), name)
                    await it.press(request, name)

    await it.sum(LyingScript(after=after))


async def other_key(it: AttackTrial) -> None:
    """Ask for the words once more, with another random key of the program's request."""

    async def after(request: Request, names: list[str]) -> None:
        if request.wraps is not None:
            other = replace(request, wraps=replace(request.wraps, key=request.wraps.key ^ 999))
            for name in names:
                await it.press(other, name)

    await it.sum(LyingScript(after=after))


async def other_label(it: AttackTrial) -> None:
    """Make one program's request in two sums, the second without the victim."""
    await it.sum()
    asked = next((one.request.wraps for one in it.told if one.request.wraps is not None), None)
    if asked is not None:
        script = LyingScript(lies=True, hides=lambda request, name: request.wraps is not None and name == it.victim)
        await it.reduce(asked, f"{it.fed.slot}/again-{it.number}", script)


async def other_set(it: AttackTrial) -> None:
    """Ask for the sum without the victim, once the sum is opened."""

    async def after(request: Request, names: list[str]) -> None:
        del names
        if it.opening and request.task.name == it.opening[-1]:
            await it.open_for(request.sum, it.rest)

    await it.sum(LyingScript(after=after))


async def settle_twice(it: AttackTrial) -> None:
    """Call two generations safe, and make the sum again without the victim."""
    await it.sum()
    for _ in range(2):
        await it.server.settle(it.fed.slot)  # type: ignore[attr-defined]
    await it.again(hides=[it.victim])


async def withheld_orders(it: AttackTrial) -> None:
    """Never say what becomes of the sum, and make it again without the victim."""
    last = tuple(it.opening[-1:])
    await it.sum(LyingScript(withholds=last))
    await it.again(hides=[it.victim], withholds=last)


async def doubled_orders(it: AttackTrial) -> None:
    """Say twice what becomes of the sum, and make it again without the victim."""
    await it.sum(LyingScript(repeats=True))
    await it.again(hides=[it.victim], repeats=True)


async def old_letters(it: AttackTrial) -> None:
    """Keep letters that ordinary losses left unopened, and deliver them in a later sum."""
    kept = dict[tuple[str, str, str], Any]()
    helpers = set(it.reducer.others)

    def keep(lost: str) -> None:
        for one in it.server.answers[since:]:
            if one.party == lost:
                kept.update({(one.task, lost, to): letter for to, letter in one.letters.items()})

    few = it.block
    for j in [it.victim] if helpers else few[1:]:
        since = len(it.server.answers)

        def alter(request: Request, name: str, j: str = j) -> Request:
            there = request.mail is not None and j in request.mail.box(name)
            if name != it.victim or not there or request.mail is None or not request.wraps:
                return request
            return replace(request, mail=_without(request.mail, j, name))

        def hides(request: Request, name: str, j: str = j) -> bool:
            return request.wraps is not None and name == j

        await it.sum(LyingScript(alter=alter, hides=hides), cohort=few)
        keep(j)

    def deliver(request: Request, name: str) -> Request:
        if request.mail is None or not (name == it.victim or name in helpers):
            return request
        there = request.mail.box(name)
        old = {
            s: letter for (task, s, to), letter in kept.items() if to == name and s in there and _is_of(task, there[s])
        }
        return _with_mail(request, old, name)

    await it.sum(LyingScript(alter=deliver), cohort=few)


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


async def kill(it: AttackTrial) -> None:
    """Kill every site once the sum is opened, and make it again without the victim."""

    async def after(request: Request, names: list[str]) -> None:
        del names
        if it.opening and request.task.name == it.opening[-1]:
            await it.server.restart([*it.names, *it.reducer.others])

    await it.sum(LyingScript(after=after))
    await it.again(hides=[it.victim])


async def reordered_names(it: AttackTrial) -> None:
    """Tell half of the parties the names in another order."""
    half = set(it.names[: len(it.names) // 2])

    def alter(request: Request, name: str) -> Request:
        if name not in half:
            return request
        message = edit_message(
            request.message, lambda said: {**said, "names": said["names"][::-1]} if "names" in said else said
        )
        return request if message is request.message else replace(request, message=message)

    await it.sum(LyingScript(alter=alter))


def edit_message(message: Any, change: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> Any:
    """A message with a change to each of its dicts; the same object if nothing changes."""
    if not isinstance(message, Mapping):
        return message
    inner = {name: edit_message(value, change) for name, value in message.items()}
    return change(inner if any(inner[name] is not message[name] for name in message) else message)


async def edited_sizes(it: AttackTrial) -> None:
    """Say that sums are of two parties and more, and that replies hide among ten thousand; then open the sum of as few as the threshold allows."""

    def alter(request: Request, name: str) -> Request:
        del name
        return _hidden_among(request, 10_000)

    for size in (it.least - 2, it.least - 1):
        few = it.names[: max(2, size)]

        def hides(request: Request, name: str, few: list[str] = few) -> bool:
            return request.wraps is not None and name in it.names and name not in few

        await it.sum(LyingScript(alter=alter, hides=hides), reducer=with_least(it.reducer, 2), quorum=2)
    await it.sum(_in_halves(it, {"threshold": 2, "least": 2, "private": 1}))


async def edited_replies(it: AttackTrial) -> None:
    """Say that replies hide among ten thousand, so that each party adds a hundredth of its noise."""
    stages = (Clip(64.0), GaussianNoise(1.0))

    def alter(request: Request, name: str) -> Request:
        del name
        return _hidden_among(request, 10_000)

    usual = it.error_of(await it.sum(uplink=stages, draws=False))
    less = it.error_of(await it.sum(LyingScript(alter=alter), uplink=stages, draws=False))
    if usual is not None and less is not None and less < usual / 5:
        it.found.append(f"a sum with noise of {less:.2g}, where the parties owe {usual:.2g}")
    elif less is not None:
        it.because = "each party adds its part for the smallest sum that it agreed to, whatever the request says"


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


async def below_least(it: AttackTrial) -> None:
    """Open the sum of two parties."""
    few = it.names[:2]

    def alter(request: Request, name: str) -> Request:
        del name
        return it.resize_request(request, few) if it.opens(request) else request

    await it.sum(LyingScript(alter=alter))


async def two_halves(it: AttackTrial) -> None:
    """Open the sum of each half of the cohort."""
    await it.sum(_in_halves(it, {}))


def _in_halves(it: AttackTrial, sizes: Mapping[str, int]) -> LyingScript:
    """Tell each half that the sum is its own, and helpers both; with other sizes in the agreement."""
    middle = -(-len(it.names) // 2)
    halves = it.names[:middle], it.names[middle:]

    def alter(request: Request, name: str) -> Request:
        if it.opens(request):
            return it.resize_request(request, halves[0] if name in halves[0] or name not in it.names else halves[1])
        other = edit_message(request.message, lambda said: {**said, **{n: x for n, x in sizes.items() if n in said}})
        return replace(request, message=other) if sizes else request

    async def after(request: Request, names: list[str]) -> None:
        if it.opens(request):
            await it.server.ask(it.resize_request(request, halves[1]), [name for name in names if name not in it.names])

    return LyingScript(alter=alter, after=after)


async def split_views(it: AttackTrial) -> None:
    """Tell some that the victim is in the sum, and others that it is not; one party colludes with the server. Ask helpers for both."""
    await _split(it, {})


async def edited_terms(it: AttackTrial) -> None:
    """Say that the parties trust the server, so that half of them open a seed and nobody votes; then split their views."""
    half = (len(it.names) + 1) // 2
    for terms in ({"active": False, "threshold": half}, {"active": False, "threshold": 2, "least": 2}):
        it.fed.world.reducers = {}  # a set-up of keys is agreed on afresh
        await _split(it, terms)


async def _split(it: AttackTrial, terms: Mapping[str, Any]) -> None:
    it.partner = it.names[-1]
    told = set(it.names[: len(it.names) // 2])

    def alter(request: Request, name: str) -> Request:
        if it.opens(request) and name not in told and name in it.names:
            return it.resize_request(request, it.rest)
        other = edit_message(request.message, lambda said: {**said, **{n: x for n, x in terms.items() if n in said}})
        return replace(request, message=other) if terms else request

    async def after(request: Request, names: list[str]) -> None:
        if it.opens(request):
            other = it.resize_request(request, it.rest)
            await it.server.ask(other, [name for name in names if name not in it.names])

    await it.sum(LyingScript(alter=alter, after=after))


async def smaller_sum(it: AttackTrial) -> None:
    """Make a second sum of the same task and message, without the victim, under a new id: with votes, and without asking for any."""
    few = it.block
    await it.sum(draws=False, cohort=few)
    asked = it.number
    for votes in (True, False):
        await it.sum(LyingScript(lies=True), draws=False, cohort=few[1:], message=asked, votes=votes)


MOVES: dict[str, Move] = {
    made.__name__.replace("_", "-"): made
    for made in (
        repeat, other_letters, other_key, other_label, other_set, settle_twice, withheld_orders, doubled_orders, old_letters,
        kill, reordered_names, edited_sizes, edited_replies, below_least, two_halves, split_views, edited_terms, smaller_sum,
    )
}  # fmt: skip
"""Name -> what the server does."""

WAIST_MOVES = ("repeat", "other-key", "other-label")
"""Moves that the waist withstands for every reducer, whatever its steps are: its parties' record has their requests and replies."""
