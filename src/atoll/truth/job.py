"""`Truth`: the job that finds what is true in reports that nobody shows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.errors import ConfigError, DataError, QuorumError
from atoll.core.event import Event, NonPrivate
from atoll.core.exposure import Explanation, Exposure
from atoll.core.job import Job, Prepared, name_of
from atoll.core.rooms import part_names
from atoll.core.validation import Checked, require_parts
from atoll.secure.lot import draw_lot
from atoll.secure.ranking import RankingTerms, rank_parties

from .choosing import HELD_OUT
from .models.model import Arrays, TruthFit, TruthModel, blend_broadcast
from .noise import ContributionNoise
from .parties import PartySteps, layout_message, own_reports, read_layout
from .protocols import ContributedSum, Holders, PlainReplies, Shamir, SumRequest, TruthProtocol, Virtual, label_sum
from .reports import CodedReports, TaskLayout
from .result import TruthResult, TruthStep, are_here

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.party import Parties

__all__ = ["Truth"]


_SETTLED = 5
"""Iterations with losses and the same decisions after which a campaign ends."""


@dataclass(frozen=True, kw_only=True)
class Truth(Checked, Job):
    """Find what is true in reports of workers who err, and how reliable each worker is. No server sees a report, on what somebody reported, or how reliable somebody is.

    Every party is a worker, or a site with many workers. In each step a party contributes to every task, the protocol adds up, and the server broadcasts what the sums mean; see `TruthModel`. What a party knows of its
    workers stays there, as the named result ``label``.

    If fewer workers are in a sum than there were at the beginning, the new broadcast counts with the weight ``(there / all)^alpha``, and the old one with the rest (FedTruthFinder, equations 27 and 28).

    A campaign ends after the model's iterations; earlier if the truth moves by less than the model's tolerance, or if five iterations with losses in a row changed no decision.

    Attributes:
        model: how truth follows from reports.
        protocol: how contributions add up.
        tasks: names of the tasks, where they are agreed. By default parties tell the server the tasks that they have reports on.
        classes: the classes, where they are agreed; by default parties tell those that they have.
        candidates: of claims, the values that may be the truth of each task; by default parties tell theirs.
        low: the smallest number that a worker may report; by default parties tell their smallest and largest.
        high: the largest.
        alpha: how quickly the weight of a step falls with the workers that are lost; 0 gives every step the whole weight.
        loss: probability that a party's connection is lost in an iteration, for a simulation. A party is lost before it contributes or before it adds up, each equally likely.
        returns: probability that a lost party is there again in the next iteration: 1 loses parties for a while, 0 for good.
        label: the name of what stays at the parties; empty for nothing.
        ranking: colluding parties that a leader-board of parties bears, at the end; 0 makes none. It has the order of the parties by the mean of their workers' skills, and nobody learns these (`atoll.secure.rank_parties`).
        epsilon: differential privacy of a worker with all its reports, in all steps: towards the server and everyone after it, whatever other worker of the same party it is exchanged for. Parties add noise that none of them knows; ``None`` adds none.
            ``tasks`` and ``classes`` must be given then, since what parties have tells of their workers; how many workers each has is told.
        delta: with epsilon, the probability that it does not hold.
        clip: with epsilon, the largest length of what a worker adds in a step; longer contributions are scaled down. The root of how many reports most workers have is a good beginning.
        honest: with epsilon, the part of the parties whose noise is enough. The rest may be lost, or tell the server theirs. No sum is made of fewer.
        held_out: the part of the reports that the campaign goes without. At its end it says how well the model foretells them (`TruthResult.score`), so that models can be compared; the logarithms of probabilities add up like all contributions.
    """

    kind: ClassVar[str] = "truth"
    missing_features: ClassVar[bool] = True
    reads: ClassVar[str] = "table"
    method: ClassVar[str] = "model"

    model: TruthModel
    protocol: TruthProtocol = field(default_factory=Shamir)
    tasks: Sequence[str] = field(default=(), repr=False)
    classes: Sequence[str] = ()
    candidates: Mapping[str, Sequence[str]] = field(default_factory=dict, repr=False)
    low: float | None = None
    high: float | None = None
    alpha: float = 3.0
    loss: float = 0.0
    returns: float = 1.0
    label: str = "truth"
    ranking: int = 0
    epsilon: float | None = None
    delta: float = 1e-5
    clip: float | None = None
    honest: float = 0.5
    held_out: float = 0.0

    def __post_init__(self) -> None:
        require_parts(
            self,
            {
                "model": (TruthModel, "atoll.truth.DawidSkene()"),
                "protocol": (TruthProtocol, "atoll.truth.Shamir(threshold=0.5)"),
            },
        )
        for name in ("tasks", "classes"):
            if isinstance(getattr(self, name), str):
                raise ConfigError(f"{name}={getattr(self, name)!r}", remedy=f"give a list of names: {name}=[...]")
        if not 0 <= self.alpha <= 100:
            raise ConfigError(f"alpha={self.alpha}", remedy="use a number from 0 to 100; 3 serves well")
        if not 0 <= self.loss < 1 or not 0 <= self.returns <= 1:
            raise ConfigError(f"loss={self.loss}, returns={self.returns}", remedy="use probabilities, loss below 1")
        if self.ranking < 0:
            raise ConfigError(f"ranking={self.ranking}", remedy="use 1 or more colluders that the leader-board bears, or 0 for none")  # fmt: skip
        if self.ranking and type(self.model).skills is TruthModel.skills:
            raise ConfigError(f"ranking={self.ranking} with {type(self.model).__name__}, which does not say how reliable workers are", remedy="use a model of workers, such as OneCoin or CRH")  # fmt: skip
        if (self.low is None) != (self.high is None):
            raise ConfigError(f"low={self.low}, high={self.high}", remedy="give both, or leave both out")
        if not 0 <= self.held_out < 1:
            raise ConfigError(f"held_out={self.held_out}", remedy="use a part of the reports below 1, such as 0.2, or 0 to learn from all")  # fmt: skip
        if self.epsilon is not None:
            self._require_noise(self.epsilon)

    def _require_noise(self, epsilon: float) -> None:
        """Refuse settings with which epsilon would not hold."""
        if not (epsilon > 0 and math.isfinite(epsilon)) or not 0 < self.delta < 1 or not 0 < self.honest <= 1:
            raise ConfigError(f"epsilon={epsilon}, delta={self.delta}, honest={self.honest}", remedy="use a finite epsilon above 0, a delta between 0 and 1 such as 1e-5, and a part of the parties above 0")  # fmt: skip
        if self.clip is None or not (self.clip > 0 and math.isfinite(self.clip)):
            raise ConfigError(f"clip={self.clip} with epsilon={epsilon:g}", remedy="say how much a worker may add in a step: clip=..., such as the root of how many reports most workers have")  # fmt: skip
        protocol = self.protocol
        if isinstance(protocol, PlainReplies):
            raise ConfigError(f"epsilon={epsilon:g} with PlainReplies: each party's numbers have a part of the noise alone", remedy="use Shamir(), whose server sees sums")  # fmt: skip
        if isinstance(protocol, Shamir) and (protocol.checks or protocol.min_reporters):
            what = "checks, whose sums may have too few parties" if protocol.checks else "min_reporters, which tells exactly whether there are enough"  # fmt: skip
            raise ConfigError(f"epsilon={epsilon:g} with {what}", remedy=f"leave {'checks' if protocol.checks else 'min_reporters'} out, or epsilon")  # fmt: skip
        if self.ranking:
            raise ConfigError(f"epsilon={epsilon:g} with ranking={self.ranking}: the order of the parties has no noise", remedy="leave ranking out, or epsilon")  # fmt: skip
        if self.held_out:
            raise ConfigError(f"epsilon={epsilon:g} with held_out={self.held_out}: scores of models have no noise", remedy="leave held_out out, or epsilon")  # fmt: skip
        asked = self._asked()
        if asked:
            named = {"range": "low and high"}
            raise ConfigError(f"epsilon={epsilon:g}, and parties would tell their {' and '.join(asked)}", remedy=f"give {' and '.join(named.get(name, name) for name in asked)} in the job: what a party has tells of its workers")  # fmt: skip

    def find_noise(self, parties: int) -> ContributionNoise | None:
        """The noise of a campaign of so many parties; ``None`` without epsilon."""
        if self.epsilon is None:
            return None
        return ContributionNoise(self.epsilon, self.delta, float(self.clip or 0), parties, self.most_rounds or 0, self.honest)  # fmt: skip

    @property
    def key_columns(self) -> Sequence[str]:
        """All columns stay text: "007" is another label than "7"."""
        return ("obj", "src", "value") if self._claims else ("task", "worker", "label")

    @property
    def _claims(self) -> bool:
        """Whether sites have claims: the model reads nothing else, or candidates are agreed."""
        return bool(self.candidates) or self.model.values[0] == "claims"

    @property
    def most_rounds(self) -> int | None:
        """All steps."""
        return sum(1 for _ in self.model.step_names())

    def names(self) -> tuple[str, ...]:
        """The kind, the model and the protocol, which a site's policy can allow or refuse."""
        return (*super().names(), name_of(type(self.model)), name_of(type(self.protocol)))

    @classmethod
    def known_names(cls) -> tuple[str, ...]:
        """The kind, all models and all protocols."""
        return (*super().known_names(), *part_names("truth model"), *part_names("truth protocol"))

    def _asked(self) -> list[str]:
        """What parties are asked for, since the settings do not say it."""
        if self.model.values == ("numbers",):
            return [*([] if self.tasks else ["tasks"]), *(["range"] if self.low is None else [])]
        if self._claims:
            return [] if self.candidates else ["candidates"]
        return [*([] if self.tasks else ["tasks"]), *([] if self.classes else ["classes"])]

    def explain(self, data: Any = None, clients: int = 0) -> Explanation:
        """Return who learns what of the reports, what a party sends, and what has no guarantee."""
        parties = clients or (len(data) if data is not None else 2)
        asked = self._asked()
        seen = list(self.protocol.exposures(parties))
        private = self.epsilon is not None
        seen.append(
            Exposure(
                "server",
                "how many workers each party has" if private else "how many workers and reports each party has",
            )
        )
        if asked:
            what = {"tasks": "the tasks that each party has reports on", "classes": "the labels that each party has", "candidates": "the values that each party claims of each task", "range": "the smallest and the largest number of each party"}  # fmt: skip
            seen += [Exposure("server", what[name], f"name them beforehand: {'low and high' if name == 'range' else name}") for name in asked]  # fmt: skip
        seen.append(
            Exposure(
                "every party",
                "the truth and its confidence after each iteration, and with its own contribution the sum of all others",
                "there are three parties or more: of two, each learns the other's sum",
            )
        )
        if self.held_out:
            seen.append(Exposure("server", "the mean log-probability of all reports that were held out, and how many these are", "leave held_out out"))  # fmt: skip
        if self.ranking:
            seen.append(Exposure("server", "the order of the parties by how reliable their workers are, and bounds of the ratios of their numbers", f"fewer than {2 * self.ranking + 1} parties collude with it"))  # fmt: skip
        notes = [
            f"each worker's state in {type(self.model).__name__} stays at its party",
            "if a party is lost between two iterations in which nothing else changes, the difference of the sums is near to what it contributed",
            f"differential privacy of each worker with all its reports: epsilon {self.epsilon:g} and delta {self.delta:g} for all {self.most_rounds} sums, by noise of which no party knows the whole"
            if private
            else "no differential privacy: sums are exact",
        ]
        costs: dict[str, Any] = {}
        if self.tasks and (self.classes or self.model.values == ("numbers",)):
            layout = TaskLayout(tuple(self.tasks), tuple(self.classes), workers=max(parties, 1))
            steps = PartySteps(
                self.model, self.protocol, [f"party-{i}" for i in range(parties)], self.find_noise(parties)
            )
            codec = steps.codec(self.model.steps[-1], layout)
            holders, threshold = self.protocol.plan_holders(parties)
            noise = {} if steps.noise is None else {"deviation": steps.noise.deviation()}
            costs = {**noise, "numbers": codec.entries, "holders": holders, "threshold": threshold, "bytes_shares": self.protocol.count_share_bytes(codec, parties)}  # fmt: skip
        return Explanation(self.title, parties, tuple(seen), costs, tuple(notes))

    def prepare(self, data: Any) -> Prepared:
        """Make the tasks for these parties.

        Raises:
            ConfigError: the protocol or the leader-board does not serve so many parties, or losses are to be simulated between organisations.
            DataError: two sites claim one worker.
        """
        live = not are_here(data)
        self.protocol.require_parties(len(data), live=live)
        if live and self.loss:
            raise ConfigError(f"loss={self.loss} between organisations", where="Truth", remedy="leave loss out: real connections are lost by themselves")  # fmt: skip
        if self.ranking:
            RankingTerms(tuple(map(str, data.names)), self.ranking)
        return PreparedTruth(self, data)


# ------------------------------------------------------------------ the program


class PreparedTruth(Prepared):
    """A `Truth` for one population."""

    def __init__(self, job: Truth, data: Any) -> None:
        self.job, self.data = job, data
        self.names = [str(name) for name in data.names]
        self.noise = job.find_noise(len(self.names))
        self.steps = PartySteps(job.model, job.protocol, self.names, self.noise, job.held_out)
        self.tasks = self.steps.tasks
        if are_here(data):
            self._require_own_workers()

    def _require_own_workers(self) -> None:
        """Refuse two parties that claim one worker, where all reports are at hand."""
        homes: dict[str, str] = {}
        for place, name in enumerate(self.names):
            for worker in own_reports(self.data.shard(place)).workers:
                if homes.setdefault(worker, name) != name:
                    raise _claimed_twice(homes[worker], name)

    async def program(self, fed: Federation) -> dict[str, Any]:
        """Open the campaign, make all steps, and let parties keep what they know of their workers."""
        state = await fed.restore(None)
        if state is None:
            state = await _open_campaign(fed, self.job, self.steps)
            await fed.checkpoint(state)
        loop = _Loop(fed, self.job, self.steps, state)
        return await loop.run()

    def outcome(self, value: Any) -> TruthResult:
        """Return the result."""
        layout = read_layout(bytes(value["layout"]))
        none = CodedReports(layout, (), np.zeros(0, np.int64), np.zeros(0, np.int64))
        broadcast = {name: np.asarray(array) for name, array in value["broadcast"].items()}
        fit = TruthFit(self.job.model, layout, none, {}, broadcast, int(value["iterations"]))
        steps = tuple(TruthStep(int(one["iteration"]), str(one["step"]), tuple(map(str, one["senders"]))) for one in value["steps"])  # fmt: skip
        parties = tuple(sorted(value["workers"]))
        cheats = tuple(map(str, value["cheats"]))
        always = set(parties).intersection(*(one.senders for one in steps)) - set(map(str, value["gone"]))
        lost = tuple(name for name in parties if name not in cheats and name not in always)
        score, held = value["scored"] or (0.0, 0.0)
        return TruthResult(
            fit=fit,
            steps=steps,
            parties=parties,
            lost=lost,
            bytes_up=int(value["bytes_up"]),
            bytes_down=int(value["bytes_down"]),
            holders=(int(value["holders"]), int(value["threshold"])),
            wrong=tuple(map(str, value["wrong"])),
            cheats=cheats,
            repeated=int(value["repeated"]),
            reports=int(value["reports"]),
            workers={str(name): int(count) for name, count in value["workers"].items()},
            alpha=self.job.alpha,
            data=self.data,
            ranking=tuple(map(str, value["ranking"])),
            unranked=str(value["unranked"]),
            withheld=self._withheld(layout, value),
            min_reporters=self._least,
            noise=self.noise,
            score=score / held if held else None,
            held=round(held),
            held_out=self.job.held_out,
        )

    @property
    def _least(self) -> int:
        """Reporters that a task must have."""
        return self.job.protocol.min_reporters if isinstance(self.job.protocol, Shamir) else 0

    def _withheld(self, layout: TaskLayout, value: Any) -> tuple[str, ...]:
        """The tasks that were never shown."""
        never = np.asarray(value["never"], dtype=bool)
        return tuple(task for task, hidden in zip(layout.tasks, never.tolist(), strict=True) if hidden) if self._least else ()  # fmt: skip

    def most(self, rows: int) -> Sequence[Event]:
        """Return the releases of all steps, or one without noise."""
        del rows
        if self.noise is not None:
            return (replace(self.noise.released, count=self.noise.releases),)
        return (NonPrivate(what=f"sums of contributions to {type(self.job.model).__name__}"),)

    def notices(self, rows: Sequence[Mapping[str, Any]]) -> Sequence[str]:
        """Return what holds for any job, and who cheated."""
        wrong, cheats = (sorted({name for row in rows for name in row.get(key, ())}) for key in ("wrong_sums", "wrong_shares"))  # fmt: skip
        found = [f"wrong sums of {', '.join(wrong)} were corrected"] if wrong else []
        found += (
            [f"shares of {', '.join(cheats)} lay on no polynomial: what they contributed was left out"]
            if cheats
            else []
        )
        return [*super().notices(rows), *found]

    def facts(self, outcome: TruthResult) -> Mapping[str, Any]:
        """Return sizes, losses and bytes."""
        return {"result": outcome.plain()}

    def sections(self, outcome: TruthResult) -> Sequence[Mapping[str, Any]]:
        """Return the truth of the first tasks, and how many tasks have which."""
        told, truth = outcome.plain(), outcome.truth
        sure = {} if outcome.fit.layout.values == "numbers" else outcome.confidence
        rows = [[str(task), _shown(value), f"{sure[task]:.3f}" if task in sure else "-"] for task, value in [*truth.items()][:_SHOWN]]  # fmt: skip
        least = min(sure, key=sure.__getitem__, default=None)
        whose = f"{told['workers']:,} workers" if outcome.noise is not None else f"{told['reports']:,} reports of {told['workers']:,} workers"  # fmt: skip
        tiles = [
            ["tasks", f"{told['tasks']:,}", whose],
            *([] if least is None else [["least sure", f"{sure[least]:.3f}", f"of {least}"]]),
        ]
        many = f" The first {_SHOWN} are below; truth.csv has all." if len(truth) > _SHOWN else ""
        text = f"Found in {outcome.iterations:,} iterations from sums over {told['parties']:,} parties.{many}"
        found: dict[str, Any] = {"title": "What is most likely true", "text": text, "tiles": tiles, "tables": [{"head": ["task", "truth", "confidence"], "rows": rows}]}  # fmt: skip
        counts = Counter(map(str, truth.values()))
        if sure and len(counts) <= _SHOWN_CLASSES:
            series = [{"name": "tasks", "values": list(counts.values())}]
            found["figures"] = [{"name": "tasks by truth", "kind": "bars", "flat": True, "whole": True, "labels": list(counts), "series": series}]  # fmt: skip
        return [found]

    def files(self, outcome: TruthResult) -> Mapping[str, bytes]:
        """Return the truth as ``truth.csv``."""
        return {"truth.csv": outcome.csv().encode()}


_SHOWN, _SHOWN_CLASSES = 100, 20
"""Most tasks, and classes, that a report shows."""


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


async def _open_campaign(fed: Federation, job: Truth, steps: PartySteps) -> dict[str, Any]:
    """Agree on the tasks and on what may be their truth; return the first state."""
    told = (await fed.exchange(fed.parties, steps.describe, {"asked": job._asked()}, at="describe")).by_name()
    workers = {name: int(one["workers"]) for name, one in told.items()}
    layout = _agree_layout(job, told, sum(workers.values()))
    job.model.require_layout(layout)
    for step in (*job.model.opening, *job.model.steps):
        if job.protocol.whole:
            job.protocol.domain(steps.codec(step, layout))
    encoded = layout_message(layout)
    here = fed.parties.named(*workers)
    if not isinstance(job.protocol, Virtual):  # whose parties are all here, and checked
        here = await _require_distinct_workers(fed, here, steps)
    opened = await fed.exchange(here, steps.open, {"layout": encoded}, at="open")
    began = set(opened.senders.names)
    size, threshold = job.protocol.plan_holders(len(steps.parties))
    return {
        "layout": encoded, "broadcast": job.model.start(layout), "before": job.model.start(layout)["truth"],
        "workers": {name: count for name, count in workers.items() if name in began}, "gone": [], "steps": [], "done": 0, "learn": "",
        "scored": None, "never": np.ones(len(layout.tasks), dtype=np.uint8), "tested": {},
        "holders_now": [] if size < len(steps.parties) else list(steps.parties), "threshold_now": threshold, "lots": 0, "lot": {}, "told": [], "same": 0, "decided": None,
        "iterations": 0, "over": False, "wrong": [], "cheats": [], "ranking": [], "unranked": "", "bytes_up": 0, "bytes_down": 0, "holders": size, "threshold": threshold,
        "repeated": sum(int(one["repeated"]) for one in told.values()), "reports": sum(int(one["reports"]) for one in told.values()),
    }  # fmt: skip


async def _require_distinct_workers(fed: Federation, here: Parties, steps: PartySteps) -> Parties:
    """Refuse two sites that claim one worker: they would count twice. Parties compare tags under a key that the server does not know, so it learns no name.

    Returns:
        The parties that have told their tags.

    Raises:
        DataError: names two such sites.
    """
    for keeper in here.names:
        with suppress(QuorumError):  # the next one lends a key
            lent = await fed.exchange(here.named(keeper), steps.lend, {"names": list(here.names)}, at=("lend", keeper))
            break
    else:
        raise QuorumError("no party lent a key", where="Truth", remedy="begin the campaign anew when parties are there")
    tagged = await fed.exchange(here, steps.tag, {"keeper": keeper}, mail=lent.mail, at="tag")
    homes: dict[bytes, str] = {}
    for name, tags in tagged.by_name().items():
        for tag in tags:
            if homes.setdefault(bytes(tag), name) != name:
                raise _claimed_twice(homes[bytes(tag)], name)
    return tagged.senders


def _claimed_twice(one: str, other: str) -> DataError:
    return DataError(f"sites {one!r} and {other!r} both claim a worker", where="Truth", remedy="give each worker to one site, or name workers by site if they are two people")  # fmt: skip


def _agree_layout(job: Truth, told: Mapping[str, Any], workers: int) -> TaskLayout:
    """The layout of the settings, and of what parties told where those do not say it."""
    if job._claims:
        said: dict[str, set[str]] = {task: set(values) for task, values in job.candidates.items()}
        for one in told.values():
            for task, values in one.get("candidates", {}).items():
                said.setdefault(str(task), set()).update(map(str, values))
        tasks = sorted(said)
        return TaskLayout(tuple(tasks), candidates=tuple(tuple(sorted(said[task])) for task in tasks), workers=workers)
    tasks = list(job.tasks) or sorted({str(task) for one in told.values() for task in one["tasks"]})
    if job.model.values == ("numbers",):
        low = min(float(one["low"]) for one in told.values()) if job.low is None else job.low
        high = max(float(one["high"]) for one in told.values()) if job.high is None else job.high
        return TaskLayout(tuple(tasks), low=low, high=high, workers=workers)
    classes = list(job.classes) or sorted({str(name) for one in told.values() for name in one["classes"]})
    return TaskLayout(tuple(tasks), classes=tuple(classes), workers=workers)


class _Loop:
    """All steps of a campaign, from its state."""

    def __init__(self, fed: Federation, job: Truth, steps: PartySteps, state: Any) -> None:
        self.fed, self.job, self.steps, self.state = fed, job, steps, dict(state)
        self.layout = read_layout(bytes(state["layout"]))
        self.order = list(job.model.step_names())

    async def run(self) -> dict[str, Any]:
        """Make the steps that are left."""
        while self.state["done"] < len(self.order) and not self.state["over"] and self.fed.ending is None:
            await self._step()
            await self.fed.checkpoint(self.state)
        if self.job.held_out and self.state["scored"] is None:
            await self._score()
            await self.fed.checkpoint(self.state)
        job, gone = self.job, set(self.state["gone"])
        here = self.fed.parties.named(*(name for name in self.state["workers"] if name not in gone))
        if job.label or job.ranking:
            message = {**self._message(self.state["done"] + 1), "label": job.label}
            await self.fed.exchange(here, self.steps.close, message, quorum=0, at="close")
        if job.ranking:
            try:
                board = await rank_parties(self.fed, here, job.ranking, at="ranking", share=self.steps.rank)
            except QuorumError as error:  # the truth is known, whoever is lost now
                return {**self.state, "unranked": error.what}
            self.state = {**self.state, "ranking": list(board.order), "wrong": sorted({*self.state["wrong"], *board.wrong})}  # fmt: skip
        return self.state

    async def _score(self) -> None:
        """Add up how probable the reports are that were held out."""
        away = {*self.state["gone"], *self.state["cheats"]}
        here = self.fed.parties.named(*(name for name in self.state["workers"] if name not in away))
        found = await self._sum(self.state["iterations"], HELD_OUT, here, here)
        self.state = {**self.state, "scored": [float(found.values[name][0]) for name in ("score", "held")]}

    def _message(self, number: int) -> dict[str, Any]:
        """What a party needs to learn and to contribute."""
        silent = {"silent": np.packbits(np.asarray(self.state["never"], dtype=bool))} if self.state["done"] and self._tests else {}  # fmt: skip
        return {"number": number, "learn": self.state["learn"], "broadcast": self.state["broadcast"], **silent}

    @property
    def _fewest(self) -> int:
        """Parties that a sum must have."""
        return max(2, 0 if self.steps.noise is None else self.steps.noise.least)

    @property
    def _tests(self) -> bool:
        """Whether tasks with few reporters are withheld."""
        return isinstance(self.job.protocol, Shamir) and self.job.protocol.min_reporters > 0

    async def _step(self) -> None:
        """One sum, and what it means."""
        state, job = self.state, self.job
        iteration, step = self.order[state["done"]]
        senders, there = self._present(iteration)
        before = self._bytes()
        found = await self._sum(iteration, step, senders, there)
        up, down = (after - early for after, early in zip(self._bytes(), before, strict=True))
        if found.virtual is not None:
            up, down = self._virtual_bytes(found.virtual)
        names, total = found.senders.names, sum(state["workers"].values())
        if len(names) < 2 and job.protocol.whole:
            raise QuorumError(f"{len(names)} parties contributed to {step} in iteration {iteration}", where="Truth", remedy="invite more parties: the sum of one is its own contribution")  # fmt: skip
        old = {name: np.asarray(array) for name, array in state["broadcast"].items()}
        new = job.model.combine(step, self.layout, found.values, old)
        weight = (sum(state["workers"][name] for name in names) / total) ** job.alpha
        broadcast = blend_broadcast(new, old, weight)
        last = step == job.model.steps[-1]
        moved = float(np.abs(broadcast["truth"] - state["before"]).max()) if iteration and last else None
        decided, same = self._count_settled(broadcast, last=bool(last and iteration))
        self.state = {
            **state, "broadcast": broadcast, "learn": step, "done": state["done"] + 1, "iterations": iteration if last else state["iterations"],
            "steps": [*state["steps"], {"iteration": iteration, "step": step, "senders": sorted(names)}], "gone": self._gone,
            "before": broadcast["truth"] if last or step in job.model.opening else state["before"],
            "over": bool(last and iteration > 1 and moved is not None and moved < job.model.tolerance) or same >= _SETTLED,
            "same": same, "decided": decided, **self._remember_test(found),
            "wrong": sorted({*state["wrong"], *found.wrong}), "cheats": sorted({*state["cheats"], *found.cheats}), **self._busiest(iteration, up, down),
            **{name: self.state[name] for name in ("holders_now", "threshold_now", "lots", "lot", "told")},
        }  # fmt: skip
        self.fed.record({"iteration": iteration, "step": step, "senders": len(names), "lost": len(state["workers"]) - len(names), "weight": weight, **({} if moved is None else {"moved": moved}), **({"wrong_sums": list(found.wrong)} if found.wrong else {}), **({"wrong_shares": list(found.cheats)} if found.cheats else {})})  # fmt: skip

    def _remember_test(self, found: ContributedSum) -> dict[str, Any]:
        """Which tasks were never shown, and who knows which had enough reporters among these senders."""
        if found.withheld is None:
            return {}
        never = np.asarray(self.state["never"], dtype=bool) & found.withheld
        known = {
            "senders": sorted(found.senders.names),
            "holders": list(self.state["holders_now"]),
            "by": list(found.tested),
        }
        return {"never": never.astype(np.uint8), "tested": known}

    def _count_settled(self, broadcast: Arrays, *, last: bool) -> tuple[Any, int]:
        """The decisions, and for how many iterations with losses they have been the same: confidences then never settle, since each iteration has other workers."""
        state = self.state
        if not last or self.layout.values == "numbers":
            return state["decided"], state["same"]
        cells, starts, owners = self.job.model.shares(self.layout, broadcast), self.layout.starts, self.layout.owners
        best = np.flatnonzero(cells >= np.maximum.reduceat(cells, starts)[owners])
        early = state["steps"][-1]["senders"] if state["steps"] else list(state["workers"])
        equal = state["decided"] is not None and np.array_equal(best, state["decided"])
        return best, state["same"] + 1 if equal and len(early) < len(state["workers"]) else 0

    # ------------------------------------------------------------------ who is there

    def _present(self, iteration: int) -> tuple[Parties, Parties]:
        """Who contributes, and who is there to add up; simulated losses are drawn once an iteration, and hit one of its steps.

        A party that is lost in a step is lost before it contributes, or after it has. One that cheated is not asked again.
        """
        cheats = set(self.state["cheats"])
        gone, names = set(self.state["gone"]), [name for name in self.state["workers"] if name not in cheats]
        senders = [name for name in names if name not in gone]
        there = list(senders)
        if self.job.loss:
            within = [i for i, (number, _) in enumerate(self.order) if number == iteration]
            draw = self.fed.rng.child("losses", iteration).generator()
            lost, back = draw.random(len(names)) < self.job.loss, draw.random(len(names)) < self.job.returns
            moment = draw.integers(0, 2 * len(within), len(names))
            here = 2 * within.index(self.state["done"])
            if not here:
                gone -= {name for name, is_back in zip(names, back.tolist(), strict=True) if is_back}
            hits = {
                n: int(when)
                for n, is_lost, when in zip(names, lost.tolist(), moment.tolist(), strict=True)
                if is_lost and n not in gone
            }
            senders = [name for name in names if name not in gone and hits.get(name, here + 1) != here]
            there = [name for name in senders if hits.get(name, here) != here + 1]
            gone |= {name for name, when in hits.items() if when in (here, here + 1)}
        self._gone = sorted(gone)
        return self.fed.parties.named(*senders), self.fed.parties.named(*there)

    # ------------------------------------------------------------------ the sum

    async def _sum(self, iteration: int, step: str, senders: Parties, there: Parties) -> ContributedSum:
        """Add up, with another committee if too few of one are left."""
        protocol, number = self.job.protocol, self.state["done"] + 1
        codec = self.steps.codec(step, self.layout)
        message: dict[str, Any] = {**self._message(number), "step": step, "iteration": iteration, "attempt": 0}
        draws = isinstance(protocol, Shamir) and 0 < self.state["holders"] < len(self.steps.parties)
        holders = await self._holders(senders, there, anew=False, real=draws)
        layout = bytes(self.state["layout"])
        asked = SumRequest(senders, there, message, codec, (number, step), holders, label_sum(message, layout), protocol.find_test(codec, self.layout), self._fewest, self.state["tested"])  # fmt: skip
        try:
            return await protocol.add_up(self.fed, self.steps.half, asked)
        except QuorumError:
            if not draws:
                raise
        holders = await self._holders(senders, there, anew=True, real=draws)
        message = {**message, "attempt": 1}
        again = replace(asked, message=message, at=(number, step, "again"), holders=holders, label=label_sum(message, layout))  # fmt: skip
        return await protocol.add_up(self.fed, self.steps.half, again)

    async def _holders(self, senders: Parties, there: Parties, *, anew: bool, real: bool) -> Holders:
        """The holders, drawn by a lot before the first sum and whenever too few are left."""
        state = self.state
        if isinstance(self.job.protocol, Virtual) and state["holders"] < len(self.steps.parties):
            order = self.fed.rng.child("committee").generator().permutation(len(state["workers"]))
            names, sending = sorted(state["workers"]), set(senders.names)
            drawn = [names[place] for place in order.tolist() if names[place] in sending]
            return Holders(tuple(sorted(drawn[: state["holders"]])), state["threshold"])
        if not real:
            return Holders(tuple(state["holders_now"]), state["threshold_now"])
        here = set(there.names if anew else senders.names)
        known = [name for name in state["holders_now"] if name in here]
        if anew or len(known) < max(state["threshold_now"], 2) or not state["holders_now"]:
            await self._draw(senders.named(*sorted(here)))
        await self._tell_lot(senders)
        return Holders(tuple(self.state["holders_now"]), self.state["threshold_now"])

    async def _tell_lot(self, senders: Parties) -> None:
        """Let those parties verify the lot that have not yet: all after a draw, and later those that were away."""
        knowing = set(self.state["told"])
        missing = [name for name in senders.names if name not in knowing]
        if missing:
            at = (self.state["lot"]["at"], self.state["done"])
            told = await self.fed.exchange(senders.named(*missing), self.steps.accept, self.state["lot"], quorum=0, at=at)  # fmt: skip
            self.state = {**self.state, "told": sorted([*self.state["told"], *told.senders.names])}

    async def _draw(self, invited: Parties) -> None:
        """Draw a committee by lot, of those that took part in it: others are not there to add up."""
        name = f"committee-{self.state['lots']}"
        lot = await draw_lot(self.fed, invited, at=name)
        size = min(self.state["holders"], len(lot.parties))
        chosen = sorted(lot.choose(lot.parties, size, "holders"))
        self.state = {**self.state, "holders_now": chosen, "threshold_now": min(self.state["threshold"], size), "lots": self.state["lots"] + 1, "lot": {"lot": lot.message(), "at": name}, "told": []}  # fmt: skip

    # ------------------------------------------------------------------ bytes

    def _bytes(self) -> tuple[Any, Any]:
        """What every party has sent and received so far, by position; lots and checks have scopes of their own."""
        meters = [self.fed.meter, *(member.meter for member in self.fed.below())]
        columns = [meter.devices(len(self.fed.world.roster)) for meter in meters]
        up, down = (sum(one[name] for one in columns) for name in ("bytes_up", "bytes_down"))
        return up, down

    def _virtual_bytes(self, sent: Mapping[str, tuple[int, int]]) -> tuple[Any, Any]:
        """The same of bytes that nobody sent."""
        up, down = (np.zeros(len(self.fed.world.roster), dtype=np.int64) for _ in range(2))
        for name, (ups, downs) in sent.items():
            place = self.fed.world.roster.position(name)
            up[place], down[place] = ups, downs
        return up, down

    def _busiest(self, iteration: int, up: Any, down: Any) -> dict[str, Any]:
        """The bytes of the busiest party in an iteration so far."""
        tally = self.state.get("tally") or {"iteration": -1}
        if tally["iteration"] == iteration:
            up, down = up + tally["up"], down + tally["down"]
        return {
            "tally": {"iteration": iteration, "up": up, "down": down},
            "bytes_up": max(int(up.max(initial=0)), self.state["bytes_up"]),
            "bytes_down": max(int(down.max(initial=0)), self.state["bytes_down"]),
        }
