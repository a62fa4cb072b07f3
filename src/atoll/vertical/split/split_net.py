"""`SplitNet`: one neural network over columns at several owners, that of all columns in one place."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from atoll.core.algebra.rng import Rng
from atoll.core.errors import ConfigError
from atoll.core.requests.island import Secret
from atoll.core.requests.stage import Stage
from atoll.core.validation import require_parts
from atoll.trees.objectives import LOGISTIC, TreeLoss

from ..model import ANSWERS, ColumnScales, GuestRows, Part, Save, VerticalModel, require
from .attacks import ATTACKS, LABEL_ATTACKS, LabelLeaks, invert_embeddings
from .cut import Cut, CutStages, read_frame, require_cut_stages
from .defences import CutDefence, HostModules, SunModules
from .networks import Batches, Layers, Segment, SegmentOptimizer, apply_layers, few_threads, load_torch
from .owners import ColumnSide, LabelSide, apply_head, embed
from .ushape import TrunkHost, predict_labels, predict_trunk, train_labels

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.execution.session import PeerChannel, Peers

__all__ = ["SplitNet", "read_hosts", "state_of_host"]

_STEP_SECONDS, _FLOPS = 8e-4, 4e9
"""What a step of one party takes beside its arithmetic, and how many operations a second it does."""


@dataclass(frozen=True, kw_only=True)
class SplitNet(VerticalModel):
    """A neural network over columns at several owners: each has a *bottom* for its own columns, the guest has the *top* and the labels.

    At each step all parties take the same rows, seeded and in the common order. A host sends its *embedding*, ``h_k = bottom_k(x_k)``, which ends with ReLU; the guest computes the loss of
    ``top(h_0, h_1, ...)`` and sends back ``dL/dh_k``; each party moves its own weights. By the chain rule these are the gradients of the network that is not split, so that the model is
    the one that the same learner makes with all columns in one place (``train_pooled``), up to rounding.

    Vepakomma, Gupta, Swedish, Raskar 2018, "Split learning for health". Embeddings and gradients travel as they are; that labels and columns do not travel does not mean that nothing shows of them: see
    ``learns``.

    Columns are centred and scaled by their owner (`ColumnScales`); a missing value is the mean. Labels of a regression are fitted in deviations from their mean.

    Attributes:
        hidden: widths of the bottoms' hidden layers.
        width: numbers of an embedding.
        top: widths of the top's hidden layers.
        shape: ``"label"``: the guest has the whole top; ``"u"``: the first host has the top's hidden layers, the guest only its last one (the *head*), so that it never sees a host's embedding, and no other host sees
            more than gradients of its own. The model is the same.
        image: ``(channels, height, width)`` of the hosts' columns, where these are images, in C order; their bottoms then begin with convolutions. Empty for columns.
        channels: output channels of each 3x3 convolution, which a 2x2 maximum follows; for images.
        epochs: passes over the training rows.
        batch: rows of a step.
        optimizer: ``"adam"`` or ``"sgd"``.
        rate: learning rate.
        momentum: of ``sgd``.
        decay: L2 penalty, as PyTorch's ``weight_decay``.
        seed: of initial weights and batches. All parties know it.
        checkpoint_every: steps between two checkpoints; 0 makes one an epoch.
        uplink: stages on what goes towards the top, such as ``[TopK(0.25)]``, each on the embeddings of a step, ``(rows, width)``. With a `ProductQuantizer` (``spread=1``) this is FedLite: a codebook is fitted to each step's
            embeddings and travels with their indices. Predictions travel whole.
        downlink: the same for gradients.
        correction: FedLite's: a host adds ``correction / rows (h - h')`` to the gradient by its embedding ``h``, where ``h'`` is what the top reads (Wang et al. 2022, equation 5).
        defence: what hides labels or columns, such as ``[MaxNorm()]``; several are applied in their order. They cost quality, and the model is no longer that of the network that is not split.
        audit: attacks that each party runs on what it gives away: of ``norm``, ``direction``, ``completion`` (of two classes) and ``inversion``; see `atoll.vertical.read_leaks`.
    """

    hidden: Sequence[int] = (32,)
    width: int = 16
    top: Sequence[int] = (16,)
    shape: Literal["label", "u"] = "label"
    image: Sequence[int] = ()
    channels: Sequence[int] = (16, 32)
    epochs: int = 10
    batch: int = 64
    optimizer: Literal["adam", "sgd"] = "adam"
    rate: float = 0.003
    momentum: float = 0.0
    decay: float = 0.0
    seed: int = 0
    checkpoint_every: int = 0
    uplink: Sequence[Stage] = ()
    downlink: Sequence[Stage] = ()
    correction: float = 0.0
    defence: Sequence[CutDefence] = ()
    audit: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("hidden", "top", "image", "channels", "uplink", "downlink", "defence", "audit"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        stages = dict.fromkeys(("uplink", "downlink"), (Stage, "atoll.stages.TopK(0.25)"))
        require_parts(self, {}, {"defence": (CutDefence, "atoll.vertical.MaxNorm()"), **stages})
        for way in ("uplink", "downlink"):
            require_cut_stages(getattr(self, way), f"SplitNet.{way}")
        bounds = (
            ("hidden", _sizes(self.hidden), "use widths of at least 1"),
            ("width", self.width >= 1, "use at least 1 number"),
            ("top", _sizes(self.top), "use widths of at least 1"),
            ("shape", self.shape in ("label", "u"), "use 'label' or 'u'"),
            (
                "top",
                self.shape != "u" or len(self.top) > 0,
                "with shape='u' give the top a hidden layer, which the host has",
            ),
            ("image", len(self.image) in (0, 3) and _sizes(self.image), "use channels, height and width"),
            ("channels", _sizes(self.channels), "use output channels of at least 1"),
            (
                "image",
                not self.image or min(self.image[1:]) >> len(self.channels) > 0,
                "use larger images, or fewer channels=, each of which halves them",
            ),
            ("epochs", self.epochs >= 1, "use at least 1 epoch"),
            ("batch", self.batch >= 1, "use at least 1 row"),
            ("optimizer", self.optimizer in ("adam", "sgd"), "use 'adam' or 'sgd'"),
            ("rate", 0 < self.rate < np.inf, "use a finite number above 0"),
            ("momentum", 0 <= self.momentum < 1, "use a number of at least 0 and below 1"),
            ("decay", 0 <= self.decay < np.inf, "use a finite number of at least 0"),
            ("correction", 0 <= self.correction < np.inf, "use a finite number of at least 0"),
            ("checkpoint_every", self.checkpoint_every >= 0, "use steps, or 0 for one an epoch"),
            ("audit", set(self.audit) <= set(ATTACKS), f"use some of {', '.join(ATTACKS)}"),
        )
        for name, good, remedy in bounds:
            if not good:
                raise ConfigError(f"{name}={getattr(self, name)!r}", where="SplitNet", remedy=remedy)

    @property
    def security(self) -> str:  # type: ignore[override]
        """``none``: embeddings and gradients travel as they are."""
        return "none"

    @property
    def reads_images(self) -> bool:
        """Whether ``image`` says that they are."""
        return bool(self.image)

    def fit_objective(self, objective: TreeLoss) -> TreeLoss:
        """The loss.

        Raises:
            ConfigError: an attack of ``audit`` is about two classes, and the labels are none.
        """
        wrong = next((name for name in self.audit if name in LABEL_ATTACKS and objective.name != LOGISTIC), None)
        if wrong is not None:
            raise ConfigError(
                f"audit={wrong!r} with labels that are not of two classes",
                where="SplitNet",
                remedy="use audit=['inversion'], or labels of two classes",
            )
        return objective

    def learns(self) -> dict[str, list[str]]:
        """What the guest and a host learn of each other beside the shared rows."""
        labels, columns = (
            "; ".join(one.told for one in self.defence if one.hides == whose) for whose in ("labels", "columns")
        )
        public = "the settings of the network, the seed of its initial weights and of the batches"
        whose = "each host's embedding" if self.shape == "label" else "every party's embedding"
        embeddings = (
            f"{whose} of each training row in every epoch, {self.width} numbers a row, and of each row predicted; of columns they tell what the task needs, and often more"
            + (f"; {columns}: a heuristic" if columns else "")
        )
        leak = (
            f", {labels}: a heuristic, after which labels show less"
            if labels
            else ", which tells much of the labels: of two classes, nearly all"
        )
        gradients = f"the gradient of the loss by its embedding of each training row, in every epoch{leak}"
        if self.shape == "label":
            return {"host": [gradients, public], "guest": [embeddings, public]}
        features = f"what the top's hidden layers make of each training row, in every epoch, {self.top[-1]} numbers a row, and of each row predicted"
        return {
            "host": [
                f"if it is the first, which has the top's hidden layers: {embeddings}; and the gradient of the loss by what it makes of them{leak}",
                f"if it is another: {gradients}",
                public,
            ],
            "guest": [features, public],
        }

    def predict_cost(self, rows: int, columns: Sequence[int], outputs: int = 1) -> dict[str, float]:
        """Seconds of all parties' processors and bytes between them, before anyone is contacted.

        Args:
            rows: training rows.
            columns: how many columns each party has, the guest first.
            outputs: margins of a row.
        """
        steps, parties = self.epochs * -(-rows // self.batch), len(columns)
        seconds = steps * parties * _STEP_SECONDS + self._work(columns, outputs) * rows * self.epochs / _FLOPS
        passed = sum(self._step_bytes(stages) for stages in (self.uplink, self.downlink)) * steps * (parties - 1)
        return {
            "seconds": seconds,
            "bytes": passed * rows / (self.batch * -(-rows // self.batch)) + 240.0 * steps * (parties - 1),
        }

    def _step_bytes(self, stages: Sequence[Stage]) -> float:
        """Bytes of a full step's numbers; of stages, those of the last whose size is known."""
        values = np.zeros((self.batch, self.width), self.precision)
        known = [bits for one in stages if (bits := one.wire_bits(values)) is not None]
        return float(values.nbytes if not known else known[-1] / 8)

    # What the network is.

    def bottom(self, columns: int, number: int = 0) -> Layers:
        """The bottom of a party, the guest being 0, the only one whose columns are no image.

        Raises:
            ConfigError: a host's columns are no image of ``image``.
        """
        if self.image and number:
            return Layers(
                columns, (*self.hidden, self.width), tuple(self.image), tuple(self.channels), activated=True
            ).require_image()
        return Layers(columns, (*self.hidden, self.width), activated=True)

    def tops(self, parties: int, outputs: int) -> tuple[Layers, Layers]:
        """What lies behind the cut: the trunk, whose output is no prediction yet, and the head, which is next to the labels."""
        joined = parties * self.width
        widths = tuple(self.top)
        return Layers(joined, widths, activated=bool(widths)), Layers(widths[-1] if widths else joined, (outputs,))

    def _work(self, columns: Sequence[int], outputs: int) -> float:
        """Multiplications of a row, at all parties."""
        layers = [*(self.bottom(one, k) for k, one in enumerate(columns)), *self.tops(len(columns), outputs)]
        return float(sum(one.multiplications for one in layers))

    def _work_seen(self, rows: GuestRows, hosts: int) -> float:
        """Multiplications of a step, as far as the guest knows: not how many columns the hosts have."""
        columns = (rows.x.shape[1], *(math.prod(self.image) if self.image else rows.x.shape[1] for _ in range(hosts)))
        return self._work(columns, rows.objective.outputs) * self.batch

    def segment(self, layers: Layers, *name: str | int, order: NDArray[np.int64] | None = None) -> Segment:
        """A segment of this name, with its initial weights: the same wherever it lies; for ``order`` see `Segment`."""
        steps = SegmentOptimizer(self.optimizer, self.rate, self.momentum, self.decay)
        return Segment(layers, steps, Rng.of(self.seed).child("weights", *name), self.precision, order)

    def batches(self, rows: int) -> Batches:
        """The steps of a training."""
        return Batches(rows, self.batch, self.epochs, Rng.of(self.seed).child("batches"))

    def is_checkpoint(self, batches: Batches, done: int) -> bool:
        """Whether parties keep their states after so many steps."""
        return done % (self.checkpoint_every or batches.an_epoch) == 0

    def cut(self, peers: PeerChannel) -> Cut:
        """A party's end of the cut."""
        rng = Rng.of(self.seed).child("cut")
        ways = {
            name: CutStages(tuple(each), rng.child(name))
            for name, each in (("up", self.uplink), ("down", self.downlink))
        }
        return Cut(peers, np.dtype(self.precision), ways)

    def hide_labels(self, gradients: Any, secret: Secret) -> Any:
        """What a host gets instead of the gradients of a step."""
        for one in self.defence:
            gradients = one.hide(gradients, secret) if one.hides == "labels" else gradients
        return gradients

    # The roles.

    async def train_guest(
        self, rows: GuestRows, peers: Peers, hosts: Sequence[str], *, secret: Secret, state: Any = None, save: Save | None = None
    ) -> Part:  # fmt: skip
        """The guest's role: join the hosts' embeddings with its own, and send back gradients.

        Raises:
            MessageError: a host sent something that is no embedding of the step's rows.
        """
        torch, hosts = load_torch(), list(hosts)
        if state is None:
            await peers.broadcast({"hosts": hosts}, hosts)
        if self.shape == "u":
            return await train_labels(self, rows, peers, hosts, secret=secret, state=state, save=save)
        at_guest = LabelSide.of(self, rows, len(hosts) + 1, state)
        leaks = LabelLeaks(self.audit, len(hosts), len(rows.x), self.width, state and state["leaks"])
        cut, batches = self.cut(peers), self.batches(len(rows.x))
        with few_threads(self._work_seen(rows, len(hosts))):
            for step, at in batches.from_step(0 if state is None else int(state["done"])):
                got = await cut.recv_all(hosts, step, (len(at), self.width), "embeddings")
                embeddings = [torch.from_numpy(each).requires_grad_() for each in got]
                at_guest.loss([at_guest.bottom(at_guest.x[at]), *embeddings], at).backward()
                for k, (host, each) in enumerate(zip(hosts, embeddings, strict=True)):
                    shown = self.hide_labels(each.grad, secret)
                    if leaks.attacks:
                        leaks.note(k, each, shown, rows.targets[at], at)
                    await cut.send(host, step, shown, "down")
                at_guest.step()
                if save is not None and self.is_checkpoint(batches, step + 1):
                    await save({"done": step + 1, "leaks": leaks.state(), **at_guest.state()})
        found = leaks.result(rows.targets)
        return {**at_guest.packed(), "width": self.width, "hosts": len(hosts), **({"leaks": found} if found else {})}

    async def train_host(
        self, x: NDArray[Any], peers: Peers, guest: str, *, secret: Secret, state: Any = None, save: Save | None = None
    ) -> Part:
        """A host's role: send embeddings, and take the gradients of them.

        Raises:
            MessageError: the guest sent something that is no gradient of the step's rows.
        """
        torch = load_torch()
        if state is None:
            state = {"hosts": read_hosts(await peers.recv(guest), peers, guest), "done": 0}
        number, own, modules = self._begin_host(x, peers, secret, state)
        cut, batches = self.cut(peers), self.batches(len(x))
        top = state["hosts"][0] if self.shape == "u" else guest
        trunk = TrunkHost(self, cut, guest, state["hosts"][1:], state.get("trunk")) if top not in peers.names else None
        with few_threads(self.bottom(x.shape[1], number).multiplications * self.batch):
            for step, at in batches.from_step(int(state["done"])):
                embedding = own.bottom(own.x[at])
                if trunk is not None:
                    found = await trunk.join_embeddings(step, embedding)
                else:
                    sent = await cut.send(top, step, embedding, "up")
                    found = await cut.recv(top, step, (len(at), self.width), "gradients")
                    if self.correction:
                        found += self.correction / len(at) * (embedding.detach().numpy() - sent)
                for one in modules:
                    one.penalty(own.x[at], embedding).backward(retain_graph=True)
                embedding.backward(torch.from_numpy(found))
                own.bottom.step()
                if save is not None and self.is_checkpoint(batches, step + 1):
                    more = {} if trunk is None else {"trunk": trunk.segment.state()}
                    await save({**state, "done": step + 1, **state_of_host(own, modules), **more})
        part = {**own.packed(), "width": self.width}
        if self.shape == "u":
            part |= (
                {"top": top} if trunk is None else {"trunk": trunk.segment.packed(), "hosts": list(state["hosts"][1:])}
            )
        return {**part, **self._measure_inversion(part, x, embed(part, x))}

    def _begin_host(
        self, x: NDArray[Any], peers: Peers, secret: Secret, state: Mapping[str, Any]
    ) -> tuple[int, ColumnSide, list[HostModules]]:
        """A host's number, the guest being 0, its columns and bottom, and what its loss has beside the guest's; all at the beginning, or where a checkpoint left them."""
        number = 1 + next(i for i, name in enumerate(state["hosts"]) if name not in peers.names)
        made = Rng.of(self.seed).child("modules", number)
        modules = [
            HostModules(one, self.width, x.shape[1], made.child(k), secret, self.precision, state.get(f"module-{k}"))
            for k, one in enumerate(one for one in self.defence if isinstance(one, SunModules))
        ]
        return number, ColumnSide.of(self, x, number, state.get("bottom")), modules

    def _measure_inversion(self, part: Part, x: NDArray[Any], shown: NDArray[Any]) -> dict[str, Any]:
        """What the guest could tell of a host's columns from what it is shown, if the audit asks."""
        if "inversion" not in self.audit:
            return {}
        return {"leaks": {"inversion": invert_embeddings(shown, ColumnScales.unpacked(part["scales"]).apply(x))}}

    def train_pooled(self, rows: GuestRows) -> Part:
        """The guest's part that the same network has when all columns are in one place: nothing is cut."""
        parties = rows.columns or (rows.x.shape[1],)
        ends = np.cumsum((0, *parties)).tolist()
        owned = [ColumnSide.of(self, rows.x[:, a:b], k) for k, (a, b) in enumerate(itertools.pairwise(ends))]
        at_guest = LabelSide.of(self, GuestRows(rows.x[:, : ends[1]], rows.targets, rows.objective), len(parties))
        owned[0] = ColumnSide(at_guest.x, at_guest.scales, at_guest.bottom)
        with few_threads(self._work(parties, rows.objective.outputs) * self.batch):
            for _, at in self.batches(len(rows.x)).from_step(0):
                at_guest.loss([one.bottom(one.x[at]) for one in owned], at).backward()
                for one in owned[1:]:
                    one.bottom.step()
                at_guest.step()
        others = [one.packed() for one in owned[1:]]
        return {**at_guest.packed(), "width": self.width, "hosts": len(others), "others": others}

    # Predictions.

    @classmethod
    def answer(cls, part: Part, x: NDArray[Any]) -> Mapping[str, Any]:
        """A host's embeddings of rows. With ``shape="u"`` the host that has the trunk adds it: there, this serves only who has all parts at hand, and parties predict by `predict_host`."""
        return {"cut": embed(part, x), **({"trunk": part["trunk"]} if "trunk" in part else {})}

    @classmethod
    def read_answer(cls, part: Part, message: Any, rows: int, host: int, name: str) -> Any:
        """A host's embeddings of rows, ``(rows, width)``, and the trunk if the guest has none.

        Raises:
            MessageError: they are of another form, or not finite.
        """
        found = read_frame(message, (rows, int(part["width"])), _precision(part), "embeddings", name)
        return (found, message["trunk"]) if "trunk" not in part and host == 1 else (found, None)

    @classmethod
    def margins(cls, part: Part, x: NDArray[Any], answers: Sequence[Any]) -> NDArray[Any]:
        """The margins of rows: what the top makes of all embeddings."""
        trunk: Any = next((one for _, one in answers if one is not None), part.get("trunk"))
        found = [one for one, _ in answers]
        if not answers:
            others = list(part.get("others", ()))
            sizes = [int(each["bottom"]["layers"]["inputs"]) for each in (part, *others)]
            columns = np.split(x, np.cumsum(sizes)[:-1].tolist(), axis=1)
            x, found = columns[0], [embed(each, rows) for each, rows in zip(others, columns[1:], strict=True)]
        joined = np.concatenate([embed(part, x), *found], axis=1)
        return apply_head(part, apply_layers(trunk, joined))

    async def predict_guest(
        self, part: Part, x: NDArray[Any], peers: Peers, hosts: Sequence[str], *, secret: Secret
    ) -> NDArray[Any]:
        """The guest's role when the parties predict; with ``shape="u"`` it sends its embeddings to the host that has the trunk."""
        if "trunk" in part:
            return await super().predict_guest(part, x, peers, hosts, secret=secret)
        return await predict_labels(part, x, peers.channel(ANSWERS), hosts[0])

    async def predict_host(self, part: Part, x: NDArray[Any], peers: Peers, guest: str, *, secret: Secret) -> None:
        """A host's role when the parties predict; with ``shape="u"`` the first joins all embeddings."""
        if "trunk" in part:
            await predict_trunk(part, x, peers.channel(ANSWERS), guest)
        else:
            await peers.channel(ANSWERS).send(str(part.get("top", guest)), dict(self.answer(part, x)))


def state_of_host(own: ColumnSide, modules: Sequence[HostModules]) -> dict[str, Any]:
    """What a checkpoint of a host has beside its place in the training."""
    return {"bottom": own.bottom.state(), **{f"module-{k}": one.state() for k, one in enumerate(modules)}}


def _sizes(values: Sequence[int]) -> bool:
    return all(isinstance(one, int) and one >= 1 for one in values)


def read_hosts(message: Any, peers: Peers, guest: str) -> list[str]:
    """The hosts in the order of their columns, as the guest has told them: the other roles, and this one."""
    told: Any = message.get("hosts") if isinstance(message, Mapping) else None
    good = isinstance(told, list) and all(isinstance(one, str) for one in told)
    others = sorted(name for name in peers.names if name != guest)
    good = good and len(told) == len(others) + 1 and sorted(one for one in told if one in peers.names) == others
    require(good, f"no list of hosts from {guest!r}", "SplitNet")
    return list(told)


def _precision(part: Part) -> np.dtype[Any]:
    found: np.dtype[Any] = np.asarray(part["head"]["weights"][0]).dtype
    return found
