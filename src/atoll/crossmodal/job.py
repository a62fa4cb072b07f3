"""`Crossmodal`: the job in which speech sides and text sides help each other, and `CrossmodalResult`."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from atoll.core.errors import ConfigError, DataError, QuorumError
from atoll.core.event import Event, Gaussian, NonPrivate
from atoll.core.exposure import Explanation, Exposure
from atoll.core.job import Job, Prepared, name_of
from atoll.core.rooms import Named, part_names
from atoll.core.validation import Checked, require_parts
from atoll.privacy.accountant import epsilon_of
from atoll.privacy.calculator import smallest_noise

from .networks import BiGRU, FrameCNN, OwnNetwork
from .parties import SideSteps, own_utterances
from .table import TablePlan

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation

    from .training import TrainingPlan

__all__ = ["Crossmodal", "CrossmodalResult"]

_TABLE_SHARE = 0.2
"""Of an epsilon, what the table alone may cost."""


@dataclass(frozen=True, kw_only=True)
class Crossmodal(Checked, Job):
    """Speech sides and text sides train classifiers of one modality each, and share a classifier of phones, peer to peer.

    Every party trains ``y = f_m(f(x), f_p([phi_spe(p); phi_tpe(p)]))`` on its own rows (equations 37 to 41): ``f`` reads its modality and stays, ``f_p`` and ``phi_tpe`` read phones and are shared.
    After each round all parties hold ``sum_k N_k theta_k / sum_k N_k`` of the shared part (equation 42). The server carries sealed letters and learns no weights.

    With an ``epsilon``, shared parts move along sums of gradients of single examples, each shortened to ``clip``, plus Gaussian noise, and mini-batches are drawn by secret coins (DP-SGD). The promise
    covers everything that a party sends its peers: the copies of all rounds and the table.

    **The loss of the shared part decides whether that promise holds.** The gradients of the fused decision depend on ``f``, which the same rows have trained without noise, so noise on them does not bound
    what they tell: with ``shared_loss="fused"``, which is what the paper does, no epsilon is claimed. With ``shared_loss="phones"`` they are gradients of the phone classifier's own decision, which depends on
    released values alone.

    Attributes:
        speech: the own network of speech sides.
        text: the own network of text sides.
        rounds: exchanges.
        iterations: steps of a round.
        batch: mini-batch; with an epsilon, its expected size.
        lr: step size of what stays.
        shared_lr: step size of what is shared.
        optimizer: for what stays.
        pretrain: steps in which speech sides train their own network first.
        width: numbers of a phone's trained vector.
        hidden: units of the phone classifier.
        span: phones that a unit sees at a time.
        epsilon: the promise for each example of a party, over the whole job; ``None`` is no noise and no bound.
        delta: its delta.
        clip: largest norm of an example's gradient.
        shared_loss: ``"phones"`` or ``"fused"``; ``"auto"`` is ``"phones"`` with an epsilon and ``"fused"`` without.
        share_fusion: whether ``f_m`` is shared too (the paper's Algorithm 3 shares it, its Algorithms 4 and 5 do not).
        table: ``"exact"`` or ``"private"``; ``"auto"`` is private with an epsilon and exact without. A private table may cost a fifth of epsilon alone.
        least: utterances that a phone must be in to have a vector in an exact table.
        table_clip: the largest norm of an utterance's vector that counts in a private one.
        weights: ``"rows"``: copies count by rows, which peers learn; ``"equal"``: they count alike.
        test: share of each class that a party holds out, to measure.
        valid: share of each class of the rest by which a party chooses the round whose networks it keeps; 0 keeps the last.
        classes: the classes, where they are agreed; by default parties tell those that they have.
        label: the name of what stays at the parties; empty for nothing.
    """

    kind: ClassVar[str] = "crossmodal"
    missing_features: ClassVar[bool] = True
    changeable: ClassVar[tuple[str, ...]] = ("rounds",)

    speech: Annotated[OwnNetwork, Named("own network")] = field(default_factory=FrameCNN)
    text: Annotated[OwnNetwork, Named("own network")] = field(default_factory=BiGRU)
    rounds: int = 10
    iterations: int = 50
    batch: int = 32
    lr: float = 0.003
    shared_lr: float = 0.3
    optimizer: Literal["adam", "sgd"] = "adam"
    pretrain: int = 100
    width: int = 16
    hidden: int = 32
    span: int = 5
    epsilon: float | None = None
    delta: float = 1e-5
    clip: float = 1.0
    shared_loss: Literal["auto", "phones", "fused"] = "auto"
    share_fusion: bool = False
    table: Literal["auto", "exact", "private"] = "auto"
    least: int = 5
    table_clip: float = 4.0
    weights: Literal["rows", "equal"] = "rows"
    test: float = 0.25
    valid: float = 0.15
    classes: Sequence[str] = ()
    label: str = "crossmodal"

    def __post_init__(self) -> None:
        require_parts(self, {"speech": (OwnNetwork, "atoll.crossmodal.FrameCNN()"), "text": (OwnNetwork, "atoll.crossmodal.BiGRU()")})  # fmt: skip
        for name in ("rounds", "iterations", "batch", "width", "hidden", "span", "least"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}", where="Crossmodal", remedy="use a whole number of at least 1")  # fmt: skip
        for name in ("lr", "shared_lr", "clip", "table_clip"):
            if not (getattr(self, name) > 0 and math.isfinite(getattr(self, name))):
                raise ConfigError(f"{name}={getattr(self, name)}", where="Crossmodal", remedy="use a positive, finite number")  # fmt: skip
        if self.pretrain < 0 or not 0 <= self.test < 1 or not 0 <= self.valid < 1:
            raise ConfigError(f"pretrain={self.pretrain}, test={self.test}, valid={self.valid}", where="Crossmodal", remedy="use steps of at least 0, and shares below 1")  # fmt: skip
        if isinstance(self.classes, str):
            raise ConfigError(f"classes={self.classes!r}", where="Crossmodal", remedy="give a list of names")
        self._require_privacy()

    def _require_privacy(self) -> None:
        """Refuse settings of a promise that do not fit together."""
        if self.epsilon is not None and not (self.epsilon > 0 and math.isfinite(self.epsilon)):
            raise ConfigError(f"epsilon={self.epsilon}", where="Crossmodal", remedy="use a finite number > 0, or None for no noise")  # fmt: skip
        if not 0 < self.delta < 1:
            raise ConfigError(f"delta={self.delta}", where="Crossmodal", remedy="use a number in (0, 1), such as 1e-5")
        if self.table == "private" and self.epsilon is None:
            raise ConfigError("a private table without an epsilon", where="Crossmodal.table", remedy="set epsilon=..., of which it takes a fifth")  # fmt: skip
        if self.share_fusion and self.epsilon is not None and not self.fused:
            raise ConfigError("a shared fusion with an epsilon", where="Crossmodal.share_fusion", remedy="leave f_m at the parties: its gradients depend on networks that were trained without noise. shared_loss='fused' shares it and claims no epsilon")  # fmt: skip

    # ------------------------------------------------------------------ what follows from the settings

    @property
    def fused(self) -> bool:
        """Whether the shared part is trained on the fused decision."""
        return self.shared_loss == "fused" or (self.shared_loss == "auto" and self.epsilon is None)

    @property
    def promised(self) -> bool:
        """Whether an epsilon is claimed for all that a party sends."""
        return self.epsilon is not None and not self.fused and self.table != "exact"

    @property
    def table_plan(self) -> TablePlan:
        """How speech sides build the table."""
        private = self.epsilon is not None and self.table != "exact"
        return TablePlan(self.least, self.table_clip, _table_noise(self.epsilon or 1.0, self.delta) if private else 0.0)

    @property
    def training_plan(self) -> TrainingPlan:
        """The numbers of a round."""
        from atoll.core.extras import need

        plan = need("atoll.crossmodal.training", "torch", "Crossmodal").TrainingPlan
        clip = math.inf if self.epsilon is None else self.clip
        made: TrainingPlan = plan(self.lr, self.shared_lr, self.optimizer, clip, self.fused, self.share_fusion, self.batch)  # fmt: skip
        return made

    def noise_multiplier(self, rows: int) -> float:
        """The noise of a party's steps, over ``clip``: the least with which all that the party may send costs ``epsilon``. Text sides have the same as speech sides, which pay for the table too."""
        if self.epsilon is None:
            return 0.0
        rate = min(1.0, self.batch / max(rows, 1))
        return _step_noise(self.epsilon, self.delta, rate, self.rounds * self.iterations, self.table_plan.noise)

    def step_event(self, rows: int, noise: float, modality: str) -> Event:
        """What the steps of one round release: Poisson-sampled Gaussians whose draw the party keeps to itself; without a promise, a copy without noise."""
        del modality
        if not noise or self.fused:
            return NonPrivate(unit="example", what="a copy of the shared network")
        rate = min(1.0, self.batch / max(rows, 1))
        return Gaussian(unit="example", noise_multiplier=noise, count=self.iterations, sampling=rate, drawn_by="party", between="add-remove")  # fmt: skip

    def spent(self, rows: int, modality: str, rounds: int) -> float:
        """Return the epsilon of all that a party has sent in so many rounds; infinite without a promise."""
        if not self.promised:
            return math.inf
        table = [(self.table_plan.event, 1)] if modality == "speech" else []
        steps = self.step_event(rows, self.noise_multiplier(rows), modality)
        return epsilon_of((*table, (steps, rounds)), self.delta, "rdp")

    @property
    def most_rounds(self) -> int | None:
        """All rounds."""
        return self.rounds

    def names(self) -> tuple[str, ...]:
        """The kind and the own networks, which a site's policy can allow or refuse."""
        return (*super().names(), name_of(type(self.speech)), name_of(type(self.text)))

    @classmethod
    def known_names(cls) -> tuple[str, ...]:
        """The kind and all own networks."""
        return (*super().known_names(), *part_names("own network"))

    def explain(self, data: Any = None, clients: int = 0) -> Explanation:
        """Return who learns what, and what has no guarantee."""
        parties = clients or (len(data) if data is not None else 2)
        noisy = f"with noise: ({self.epsilon:g}, {self.delta:g}) for each example" if self.promised else ""
        asked = "" if self.classes else ", its classes"
        kept = noisy if self.table_plan.noise else f"each phone is in {self.least} utterances or more"
        kind = "a noisy" if self.table_plan.noise else "the exact"
        scores = (
            "F1 and accuracy of each party: after each round on its rows for choosing one, at the end on held-out rows"
        )
        seen = [
            Exposure("server", f"the modality of each party, the width of its frames{asked}"),
            Exposure("server", scores),
            Exposure("every peer", "each party's copy of the shared network after each round", noisy),
            Exposure("every peer", f"the acoustic table: {kind} mean vector of each phone", kept),
        ]
        if self.weights == "rows":
            seen.append(Exposure("every peer", "each party's number of rows", kind="sizes"))
        notes = ["networks that read words or frames, words, frames, phones and labels stay at their party"]
        if self.epsilon is not None and not self.promised:
            notes.append("no epsilon is claimed: " + ("the shared part follows gradients that depend on networks trained without noise" if self.fused else "the table is exact"))  # fmt: skip
        if self.epsilon is None:
            notes.append("no differential privacy: copies have no noise")
        return Explanation(self.title, parties, tuple(seen), {"rounds": self.rounds, "steps": self.rounds * self.iterations}, tuple(notes))  # fmt: skip

    def prepare(self, data: Any) -> Prepared:
        """Make the tasks for these parties.

        Raises:
            DataError: there is one party alone.
        """
        if len(data) < 2:
            raise DataError(f"{len(data)} party", where="Crossmodal", remedy="give at least two: one trains alone as well without a federation")  # fmt: skip
        return PreparedCrossmodal(self, data)


@functools.lru_cache(maxsize=256)
def _table_noise(epsilon: float, delta: float) -> float:
    """The noise with which the table alone costs its part of epsilon."""
    return smallest_noise(lambda z: epsilon_of(((Gaussian(unit="example", noise_multiplier=z, between="add-remove"), 1),), delta, "rdp"), _TABLE_SHARE * epsilon)  # fmt: skip


@functools.lru_cache(maxsize=256)
def _step_noise(epsilon: float, delta: float, rate: float, steps: int, table: float) -> float:
    """The noise with which all steps and the table cost epsilon."""
    first = [(Gaussian(unit="example", noise_multiplier=table, between="add-remove"), 1)] if table else []

    def cost(z: float) -> float:
        event = Gaussian(unit="example", noise_multiplier=z, count=steps, sampling=rate, drawn_by="party", between="add-remove")  # fmt: skip
        return epsilon_of((*first, (event, 1)), delta, "rdp")

    return smallest_noise(cost, epsilon)


# ------------------------------------------------------------------ the result


@dataclass(frozen=True)
class CrossmodalResult:
    """What a job has found.

    Attributes:
        sides: party -> ``modality``, ``f1`` and ``accuracy`` on its held-out rows, ``alone`` (the F1 of its own network without phones), ``epsilon`` of what it has sent (infinite without a promise), ``best_round``, ``words`` and ``unknown``.
        classes: the classes.
        rounds: rounds made.
        history: of each round, party -> F1 on the rows that choose the round.
        missing: parties that were missing in a round.
        bytes: bytes that the busiest party sent in a round.
        parameters: numbers of the shared network.
    """

    sides: Mapping[str, Mapping[str, Any]]
    classes: tuple[str, ...]
    rounds: int
    history: tuple[Mapping[str, float], ...]
    missing: tuple[str, ...]
    bytes: int
    parameters: int

    def plain(self) -> dict[str, Any]:
        """The result as plain values; what is infinite or undefined is ``None``."""

        def finite(value: Any) -> Any:
            return None if isinstance(value, float) and not math.isfinite(value) else value

        sides = {name: {key: finite(value) for key, value in side.items()} for name, side in self.sides.items()}
        return {"sides": sides, "classes": list(self.classes), "rounds": self.rounds, "missing": list(self.missing), "bytes": self.bytes, "parameters": self.parameters}  # fmt: skip


class PreparedCrossmodal(Prepared):
    """A `Crossmodal` for one population."""

    def __init__(self, job: Crossmodal, data: Any) -> None:
        self.job, self.data = job, data
        self.names = [str(name) for name in data.names]
        self.steps = SideSteps(job, self.names)
        self.tasks = self.steps.tasks

    def check(self, population: Any) -> None:
        """Look at a site's own rows."""
        for place in range(len(population)):
            own_utterances(population.shard(place))

    async def program(self, fed: Federation) -> dict[str, Any]:
        """Build the table, make all rounds, and let parties keep their networks."""
        state = await fed.restore(None)
        if state is None:
            state = await _open_job(fed, self.job, self.steps)
            await fed.checkpoint(state)
        while state["done"] < self.job.rounds and fed.ending is None:
            state = await _make_round(fed, self.steps, state)
            await fed.checkpoint(state)
        here = fed.parties.named(*state["parties"])
        told = (await fed.exchange(here, self.steps.close, {"label": self.job.label}, at="close")).by_name()
        return {**state, "sides": told}

    def outcome(self, value: Any) -> CrossmodalResult:
        """Return the result."""
        sides = {str(name): dict(side) for name, side in sorted(value["sides"].items())}
        history = tuple({str(name): float(f1) for name, f1 in one.items()} for one in value["history"])
        return CrossmodalResult(sides, tuple(map(str, value["classes"])), int(value["done"]), history, tuple(map(str, value["missing"])), int(value["bytes"]), int(value["parameters"]))  # fmt: skip

    def most(self, rows: int) -> Sequence[Event]:
        """Return what a party releases at most."""
        job = self.job
        if not job.promised:
            return (NonPrivate(unit="example", what="copies of the shared network, and an acoustic table"),)
        return (job.table_plan.event, *([job.step_event(rows, job.noise_multiplier(rows), "speech")] * job.rounds))

    def notices(self, rows: Sequence[Mapping[str, Any]]) -> Sequence[str]:
        """Return what holds for any job, and whether an epsilon that was asked for is not claimed."""
        found = list(super().notices(rows))
        if self.job.epsilon is not None and not self.job.promised:
            found.append(f"epsilon={self.job.epsilon:g} is not claimed: " + ("the shared part follows the fused loss, which depends on networks trained without noise" if self.job.fused else "the acoustic table is exact"))  # fmt: skip
        return found

    def facts(self, outcome: CrossmodalResult) -> Mapping[str, Any]:
        """Return scores and sizes."""
        return {"result": outcome.plain()}


async def _open_job(fed: Federation, job: Crossmodal, steps: SideSteps) -> dict[str, Any]:
    """Agree on classes and widths, build the table, and make the networks."""
    told = (await fed.exchange(fed.parties, steps.describe, {"classes": not job.classes}, at="describe")).by_name()
    speaking = [name for name, one in told.items() if one["modality"] == "speech"]
    widths = sorted({int(told[name]["width"]) for name in speaking})
    if len(widths) > 1:
        raise DataError(f"frames of {' and '.join(map(str, widths))} numbers", where="Crossmodal", remedy="let all speech sides use the same acoustic descriptors")  # fmt: skip
    if len({tuple(one["phones"]) for one in told.values()}) > 1:
        raise DataError("parties with different phones", where="Crossmodal", remedy="let all parties use one set of phones, such as atoll.crossmodal.PHONES")  # fmt: skip
    classes = list(job.classes) or sorted({str(name) for one in told.values() for name in one["classes"]})
    if len(classes) < 2:
        raise DataError(f"{len(classes)} class", where="Crossmodal", remedy="give rows of two classes or more")
    message = {"classes": classes, "width": widths[0] if widths else 1, "seed": int(fed.rng.child("weights").key % 2**31), "round": 0, "agreed": "|".join(classes)}  # fmt: skip
    opened = await fed.exchange(fed.parties.named(*told), steps.open, message, at="open")
    here = opened.senders
    senders = sorted(name for name in here.names if name in speaking)
    begun = await fed.exchange(here, steps.begin, {"round": 0, "agreed": message["agreed"], "senders": senders}, mail=opened.mail, at="begin")  # fmt: skip
    return {"classes": classes, "agreed": message["agreed"], "parties": sorted(begun.senders.names), "done": 0, "history": [], "missing": [], "bytes": 0, "parameters": max(begun.by_name().values(), default=0)}  # fmt: skip


async def _make_round(fed: Federation, steps: SideSteps, state: Mapping[str, Any]) -> dict[str, Any]:
    """Let all train and post, then let those who posted take the mean."""
    number = state["done"] + 1
    message = {"round": number, "agreed": state["agreed"]}
    before = fed.meter.devices(len(fed.world.roster))["bytes_up"]
    trained = await fed.exchange(fed.parties.named(*state["parties"]), steps.train, message, at=("train", number))
    senders = sorted(trained.senders.names)
    if len(senders) < 2:
        raise QuorumError(f"{len(senders)} parties trained in round {number}", where="Crossmodal", remedy="invite more parties: a mean of one copy is that copy")  # fmt: skip
    mixed = await fed.exchange(trained.senders, steps.mix, {**message, "senders": senders}, mail=trained.mail, at=("mix", number))  # fmt: skip
    scores = {name: float(one["f1"]) for name, one in mixed.by_name().items()}
    up = int((fed.meter.devices(len(fed.world.roster))["bytes_up"] - before).max(initial=0))
    away = sorted(set(state["parties"]) - set(scores))
    known = {name: value for name, value in scores.items() if math.isfinite(value)}
    fed.record({**{f"f1_{name}": value for name, value in known.items()}, "parties": len(scores)})
    return {**state, "done": number, "history": [*state["history"], scores], "missing": sorted({*state["missing"], *away}), "bytes": max(state["bytes"], up)}  # fmt: skip
