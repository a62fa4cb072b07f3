"""What a party does in a campaign: it tells what it has reports on, codes them, and then in each step learns from the last sums and contributes to the next.

A party is one worker, or a site with many. Its reports and the states of its workers stay there: `PartySteps` keeps both in the party's private state.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core import message as M
from atoll.core.algebra.aggregate import Sum
from atoll.core.errors import CompositionError, DataError, PolicyError
from atoll.core.event import Covered
from atoll.core.requests.task import Task
from atoll.secure.lot import accept_lot
from atoll.secure.ranking import share_number

from .choosing import HELD_OUT, held_out_terms, hold_out, score_held_out
from .models.model import Arrays, TruthModel
from .protocols import (  # fmt: skip
    Additive,
    Holders,
    PartyHalf,
    Shamir,
    SumCodec,
    TruthProtocol,
    add_letters,
    label_sum,
    post_checked_shares,
    post_shares,
)
from .reporters import HolderCircle, ReporterTest, continue_test, start_test, unpack_tasks
from .reports import CodedReports, Reports, TaskLayout, reports_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from .noise import ContributionNoise

__all__ = ["PartySteps", "layout_message", "own_reports", "read_layout"]

_RESTART = "begin the campaign anew: this party was not there when it was opened"


def own_reports(data: Any) -> Reports:
    """Return a party's data as reports: `Reports`, or a table with the columns ``task``, ``worker`` and ``label`` (or ``obj``, ``src`` and ``value``).

    Raises:
        DataError: they are something else, or see `atoll.truth.reports_of`.
    """
    if isinstance(data, Reports):
        return data
    if hasattr(data, "columns") and not isinstance(data, Mapping) and not hasattr(data, "iloc"):
        return reports_of({str(name): data[name] for name in data.columns})
    return reports_of(data)


def layout_message(layout: TaskLayout) -> bytes:
    """A layout as bytes, which all parties keep."""
    return M.encode({
        "tasks": list(layout.tasks), "classes": list(layout.classes), "candidates": [list(said) for said in layout.candidates],
        "low": layout.low, "high": layout.high, "workers": layout.workers,
    })  # fmt: skip


@functools.lru_cache(maxsize=4)
def read_layout(encoded: bytes) -> TaskLayout:
    """The inverse of `layout_message`."""
    told: Any = M.decode(encoded)
    candidates = tuple(tuple(map(str, said)) for said in told["candidates"])
    return TaskLayout(tuple(map(str, told["tasks"])), tuple(map(str, told["classes"])), candidates, float(told["low"]), float(told["high"]), int(told["workers"]))  # fmt: skip


class PartySteps:
    """The tasks of one campaign. Both ends make them of its settings; no code travels.

    Args:
        model: the model.
        protocol: how contributions add up.
        parties: the names of all parties.
        noise: the noise of each sum, if there is some.
        held_out: the part of the reports that models are tested on.
    """

    def __init__(
        self,
        model: TruthModel,
        protocol: TruthProtocol,
        parties: Sequence[str],
        noise: ContributionNoise | None = None,
        held_out: float = 0.0,
    ) -> None:
        self.model, self.protocol, self.parties, self.noise = model, protocol, tuple(parties), noise
        self.held_out = held_out
        self.order = [step for _, step in model.step_names()]
        self.describe = Task("atoll.truth.parties:describe", self._describe)
        self.lend = Task("atoll.truth.parties:lend", self._lend)
        self.tag = Task("atoll.truth.parties:tag", self._tag)
        self.open = Task("atoll.truth.parties:open", self._open)
        self.accept = Task("atoll.truth.parties:accept", self._accept)
        self.close = Task("atoll.truth.parties:close", self._close)
        self.rank = Task("atoll.truth.parties:rank", self._rank)
        self.half = PartyHalf(
            Task("atoll.truth.parties:give", self._give), Task("atoll.truth.parties:share", self._share), Task("atoll.truth.parties:add", self._add),
            Task("atoll.truth.parties:withhold", self._withhold),
        )  # fmt: skip
        self.tasks = (
            self.describe,
            self.lend,
            self.tag,
            self.open,
            self.accept,
            self.close,
            self.rank,
            self.half.give,
            self.half.share,
            self.half.add,
            self.half.withhold,
        )

    # ------------------------------------------------------------------ before the first sum

    def _describe(self, island: Any, message: Any) -> dict[str, Any]:
        """How many workers there are, and what is asked for of: tasks, labels, the range of numbers."""
        reports, asked = own_reports(island.data), set(message["asked"])
        if self.noise is not None:
            if asked:
                raise PolicyError(f"tell {', '.join(sorted(asked))} in a campaign with epsilon", where="truth", remedy="look at the server: the job names what everybody knows")  # fmt: skip
            self._cover(island, "how many workers there are")
            return {"workers": len(reports.workers), "repeated": 0, "reports": 0}
        told: dict[str, Any] = {"workers": len(reports.workers), "repeated": reports.repeated, "reports": len(reports)}
        if "tasks" in asked:
            told["tasks"] = list(reports.tasks)
        if "classes" in asked:
            told["classes"] = list(reports.labels)
        if "candidates" in asked:
            said: dict[str, set[str]] = {}
            for task, _, label in reports.rows():
                said.setdefault(task, set()).add(label)
            told["candidates"] = {task: sorted(labels) for task, labels in said.items()}
        if "range" in asked:
            numbers = reports.numbers
            told["low"], told["high"] = float(numbers.min()), float(numbers.max())
        return told

    def _lend(self, island: Any, message: Any) -> None:
        """Post a fresh key to every party, under which all of them tag their workers."""
        self._cover(island, "a key")
        key = island.secret.bytes(32)
        for name in message["names"]:
            island.post(str(name), {"key": key})

    def _tag(self, island: Any, message: Any) -> list[bytes]:
        """A tag for each worker, which the same name has at every party, and which tells nobody without the key what the name is; in the order of the tags."""
        self._cover(island, "tags of workers under a key that the server does not know")
        key = island.inbox[str(message["keeper"])]["key"]
        return sorted(hmac.digest(key, name.encode(), "sha256")[:16] for name in own_reports(island.data).workers)

    def _open(self, island: Any, message: Any) -> None:
        """Code the reports, and begin with workers of whom nothing is known."""
        self._cover(island, "that the party is there")
        layout = read_layout(bytes(message["layout"]))
        self.model.require_layout(layout)
        coded = layout.code(own_reports(island.data))
        if len(coded.workers) > layout.workers:
            raise PolicyError(f"a campaign of {layout.workers} workers, and {len(coded.workers)} are here", where="truth", remedy=_RESTART)  # fmt: skip
        held: dict[str, Any] = {}
        if self.held_out:
            coded, apart = hold_out(coded, self.held_out)
            held = {"task": apart.task, "worker": apart.worker, "cell": apart.cell, "number": apart.number}
        island.state = {
            "layout": bytes(message["layout"]), "learned": 0, "held": held, "people": list(coded.workers),
            "task": coded.task, "worker": coded.worker, "cell": coded.cell, "number": coded.number,
            "model": self.model.start_workers(layout, len(coded.workers)), "holders": [], "test": {}, "tested": {},
            "seed": b"" if self.noise is None else island.secret.bytes(32),
        }  # fmt: skip

    def _accept(self, island: Any, message: Any) -> None:
        """Verify a lot, and remember whom it chose to hold shares."""
        self._cover(island, "that the party accepts a lot")
        state = self._own_state(island)
        lot = accept_lot(island, message["lot"], at=message["at"])
        if not set(lot.invited) <= set(self.parties):
            raise PolicyError("a lot among strangers", where="truth", remedy=_RESTART)
        size, threshold = self.protocol.plan_holders(len(self.parties))
        size = min(size, len(lot.parties))
        chosen = lot.choose(lot.parties, size, "holders")
        island.state = {**state, "holders": sorted(chosen), "threshold": min(threshold, size)}

    # ------------------------------------------------------------------ one step

    def _own_state(self, island: Any) -> Any:
        state = island.state
        if not isinstance(state, Mapping) or "layout" not in state:
            raise PolicyError(f"{island.name} has not opened this campaign", where="truth", remedy=_RESTART)
        return state

    def _learn(self, island: Any, message: Any) -> tuple[CodedReports, Arrays, Arrays]:
        """Learn from the last sums, if that was not done. Return the reports, what is known of the workers, and the broadcast. Reports on tasks that were never shown do not count."""
        state = self._own_state(island)
        reports, model, number = self._reports(state, message), _arrays(state["model"]), int(message["number"])
        broadcast = _arrays(message["broadcast"])
        if message["learn"] and state["learned"] < number:
            model = self.model.learn(message["learn"], model, reports, broadcast)
        island.state = {**state, "model": model, "learned": max(number, int(state["learned"]))}
        return reports, model, broadcast

    def _contribute(self, island: Any, message: Any) -> tuple[Arrays, CodedReports]:
        """Learn, and return what the workers contribute."""
        reports, model, broadcast = self._learn(island, message)
        if message["step"] == HELD_OUT:
            held = CodedReports(reports.layout, reports.workers, **island.state["held"])
            return score_held_out(self.model, model, reports, held, broadcast), reports
        return self.model.contribute(message["step"], model, reports, broadcast), reports

    @staticmethod
    def _reports(state: Any, message: Any = None) -> CodedReports:
        """The own reports; without those on tasks that a message says to be silent."""
        layout = read_layout(state["layout"])
        made = CodedReports(layout, tuple(state["people"]), state["task"], state["worker"], state["cell"], state["number"])  # fmt: skip
        silent = None if message is None else message.get("silent")
        if silent is None:
            return made
        known = unpack_tasks(silent, len(layout.tasks))
        if known is None:
            raise PolicyError("silent tasks that are no bits of tasks", where="truth", remedy=_RESTART)
        return made.choose(~known[made.task])

    def codec(self, step: str, layout: TaskLayout) -> SumCodec:
        """How the contributions of a step become whole numbers."""
        bits, far = (self.protocol.bits, 0) if self.noise is None else (self.noise.bits, self.noise.largest)
        terms = held_out_terms(layout) if step == HELD_OUT else self.model.terms(step, layout)
        return SumCodec(terms, bits, layout.workers, len(self.parties), far)

    def _cover(self, island: Any, what: str) -> None:
        """Note that a reply without noise tells nothing of a worker's reports, where others have noise."""
        if self.noise is not None:
            island.spend(Covered(what=what))

    def _encode(self, island: Any, message: Any, codec: SumCodec) -> NDArray[np.int64]:
        """The contributions as whole numbers; with noise, each worker's clipped.

        Raises:
            PolicyError: with noise, the server asks for another step than is next, or for a step again after another broadcast: its sums would tell more than was agreed on.
        """
        noise = self.noise
        if noise is None:
            given, reports = self._contribute(island, message)
            return codec.encode(given, len(reports.workers))
        reports, model, broadcast = self._learn(island, message)
        number = int(message["number"])
        if not 1 <= number <= len(self.order) or message["step"] != self.order[number - 1]:
            raise PolicyError(f"step {number} {message['step']} of a campaign of {len(self.order)} steps", where="truth", remedy="look at the server: it asks for sums that nobody agreed to")  # fmt: skip
        asked = {name: message[name] for name in ("number", "learn", "broadcast", "step")}
        island.promise(f"contribution {number} of {island.request.split('/')[0]}", hashlib.sha256(M.encode(asked)).digest())  # fmt: skip
        island.spend(noise.released if not int(message["attempt"]) else Covered(what=f"step {number} again"))

        def rows() -> Iterator[NDArray[np.float64]]:
            for worker, alone in enumerate(reports.split_workers()):
                own = {name: value[worker : worker + 1] for name, value in model.items()}
                yield codec.flatten(self.model.contribute(message["step"], own, alone, broadcast))

        return noise.add_up(rows(), codec.entries, bytes(island.state["seed"]), number)

    def _give(self, island: Any, message: Any) -> dict[str, Sum]:
        """The contributions, as they are or as whole numbers."""
        if not self.protocol.whole:
            given, _ = self._contribute(island, message)
            return {name: Sum(np.asarray(value, dtype=np.float64), role="side") for name, value in given.items()}
        codec = self.codec(message["step"], read_layout(self._own_state(island)["layout"]))
        return {"words": Sum(self._encode(island, message, codec), role="side")}

    def _shares(self) -> Additive:
        if not isinstance(self.protocol, Additive):
            raise PolicyError(f"shares, and the protocol is {type(self.protocol).__name__}", where="truth", remedy=_RESTART)  # fmt: skip
        return self.protocol

    def _holders(self, state: Any, named: Any) -> Holders:
        """The holders that this party knows of, which must be those that the server names.

        Raises:
            PolicyError: they are others.
        """
        size, threshold = self.protocol.plan_holders(len(self.parties))
        if state["holders"]:
            known, threshold = tuple(state["holders"]), int(state["threshold"])
        else:
            known = self.parties
        if list(known) != [str(name) for name in named] or (size < len(self.parties) and not state["holders"]):
            raise PolicyError("other holders than the lot has chosen", where="truth", remedy="look at the server: it names holders that nobody drew")  # fmt: skip
        return Holders(known, threshold)

    def _share(self, island: Any, message: Any) -> bytes | None:
        """Post shares of the contributions to the holders; with checks, reply with what the party commits to."""
        protocol, state = self._shares(), self._own_state(island)
        holders, layout = self._holders(state, message["holders"]), read_layout(state["layout"])
        codec = self.codec(message["step"], layout)
        numbers, domain = self._encode(island, message, codec), protocol.domain(codec)
        if protocol.find_test(codec, layout) is not None:
            numbers = np.concatenate([numbers, self._reports(island.state).reporters.astype(np.int64)])
        if isinstance(protocol, Shamir) and protocol.checks:
            label = label_sum(message, bytes(island.state["layout"]))
            return post_checked_shares(island, numbers, message, holders, domain, label)
        island.bind_letters(_letter_context(island.state, message))
        post_shares(island, protocol, numbers, holders, domain)
        return None

    def _add(self, island: Any, message: Any) -> Any:
        """Add up the shares of the announced senders."""
        protocol, state = self._shares(), self._own_state(island)
        holders = self._holders(state, message["holders"])
        if island.name not in holders.names:
            raise PolicyError(f"{island.name} holds no shares", where="truth", remedy="look at the server: it asks a party that the lot has not chosen")  # fmt: skip
        layout, senders = read_layout(state["layout"]), [str(name) for name in message["senders"]]
        codec = self.codec(message["step"], layout)
        test, domain = protocol.find_test(codec, layout), protocol.domain(codec)
        island.bind_letters(_letter_context(state, message), self.half.share.name)
        label = f"step {message['number']} attempt {message['attempt']} of {island.request.rpartition('/@')[0]}"
        entries = protocol.count_letter(codec.entries) + (0 if test is None else test.tasks)
        self._cover(island, "a share of a sum")
        total = add_letters(island, senders, 2 if self.noise is None else self.noise.least, entries, domain, label)
        if test is None:
            return total
        if message["known"]:
            return self._show_known(state, senders, holders, total[: codec.entries], test)
        circle = self._circle(state, message, holders, domain)
        island.state = {**state, "test": {**start_test(island, total, test, circle, senders), "senders": senders}}
        return None

    @staticmethod
    def _show_known(state: Any, senders: Sequence[str], holders: Holders, total: Any, test: ReporterTest) -> Any:
        """The sums of the tasks that had enough reporters in an earlier sum of the same senders, among the same holders.

        Raises:
            PolicyError: this holder does not know which these are.
        """
        tested = state["tested"]
        withheld = unpack_tasks(tested.get("withheld"), test.tasks)
        if withheld is None or tested["key"] != _name_tested(senders, holders):
            raise PolicyError(f"sums of {len(senders)} senders whose reporters nobody counted", where="truth", remedy="look at the server: it asks for sums that may have one reporter")  # fmt: skip
        return {"withheld": tested["withheld"], "sums": total[test.find_open(withheld)]}

    def _circle(self, state: Any, message: Any, holders: Holders, domain: Any) -> HolderCircle:
        """The holders of a sum, and its name."""
        return HolderCircle(holders.names, holders.threshold, domain, label_sum(message, bytes(state["layout"])))

    def _withhold(self, island: Any, message: Any) -> Any:
        """Go on with a test of how many report; at its end, remember which tasks are withheld, and show the sums of the others."""
        protocol, state = self._shares(), self._own_state(island)
        holders, layout = self._holders(state, message["holders"]), read_layout(state["layout"])
        codec = self.codec(message["step"], layout)
        test, kept, number = protocol.find_test(codec, layout), state["test"], int(message["round"])
        if test is None or not kept or list(kept["senders"]) != [str(name) for name in message["senders"]]:
            raise PolicyError("a test of reporters that did not begin", where="truth", remedy=_RESTART)
        circle = self._circle(state, message, holders, protocol.domain(codec))
        wrote = self.half.add if number == 1 else self.half.withhold
        after, withheld = continue_test(island, kept, [str(name) for name in message["from"]], number, circle, wrote.name)  # fmt: skip
        if withheld is None:
            island.state = {**state, "test": after}
            return None
        packed = np.packbits(withheld)
        island.state = {**state, "test": {}, "tested": {"key": _name_tested(kept["senders"], holders), "withheld": packed}}  # fmt: skip
        return {"withheld": packed, "sums": np.asarray(kept["values"])[test.find_open(withheld)]}

    # ------------------------------------------------------------------ after the last sum

    def _close(self, island: Any, message: Any) -> None:
        """Learn from the last sums, and leave what is known of the own workers here, under a name if there is one."""
        self._cover(island, "that the campaign is over")
        reports, model, _ = self._learn(island, message)
        if not message["label"]:
            return
        layout = reports.layout
        kept: dict[str, Any] = {"workers": list(reports.workers), "classes": list(layout.classes)}
        for name, find in (("errors", self.model.confusions), ("skills", self.model.skills)):
            found = _known(find, layout, model)
            if found is not None:
                kept[name] = found
        island.leave(str(message["label"]), kept)

    def _rank(self, island: Any, message: Any) -> None:
        """Share how reliable the own workers are, on average, for a leader-board: ``1/2 + arctan(skill) / pi``, since a model's skills may be any numbers and a leader-board takes those from 0 to 1."""
        state = self._own_state(island)
        skills = self.model.skills(read_layout(state["layout"]), _arrays(state["model"]))
        share_number(island, 0.5 + math.atan(float(np.mean(skills))) / math.pi, message)


def _letter_context(state: Any, message: Any) -> bytes:
    """What letters of one sum are bound to: a letter opens in no other sum, and among no other holders or tasks."""
    said = [message["number"], message["step"], message["attempt"], list(message["holders"])]
    return hashlib.sha256(M.encode(["atoll truth", bytes(state["layout"]), *said])).digest()


def _name_tested(senders: Sequence[str], holders: Holders) -> bytes:
    """What a test of reporters holds for: the same senders and holders."""
    return hashlib.sha256(M.encode(["atoll tested", sorted(senders), list(holders.names)])).digest()


def _known(find: Any, layout: TaskLayout, state: Arrays) -> Any:
    """What a model knows of workers, if it knows that."""
    try:
        return find(layout, state)
    except CompositionError:
        return None


def _arrays(tree: Any) -> Arrays:
    if not isinstance(tree, Mapping) or not all(isinstance(value, np.ndarray) for value in tree.values()):
        raise DataError("sums that are no arrays", where="truth", remedy=_RESTART)
    return dict(tree)
