"""`VAFL`: a split network whose hosts do not wait for each other, and may perturb their embeddings."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from atoll.core.errors import CompositionError, ConfigError
from atoll.core.event import Event, Gaussian

from ..model import ANSWERS, GuestRows, Part, Save
from .attacks import LabelLeaks
from .networks import few_threads, load_torch
from .owners import LabelSide, embed
from .split_net import SplitNet, read_hosts, state_of_host

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.execution.session import Peers
    from atoll.core.requests.island import Secret

__all__ = ["VAFL", "Arrival"]


class Arrival(NamedTuple):
    """Embeddings that reach the guest at one time, and of the same rows.

    Attributes:
        time: on the virtual clock.
        step: the hosts' step, from 0, which says which rows.
        hosts: numbers of the hosts, from 0, in their order.
    """

    time: Fraction
    step: int
    hosts: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class VAFL(SplitNet):
    """A `SplitNet` whose hosts work at their own pace: the guest takes a step whenever embeddings arrive, with the last ones that it has of the other hosts.

    The pace is public and the clock virtual: the j-th embeddings of a host arrive at ``(j + 1) pace``. All parties compute from it which message is next, so that nobody waits for a slower host, and the result is
    one, whatever the machines do. Embeddings that arrive at one time, of the same rows, are one step; so with equal paces the model is `SplitNet`'s, to the bit. The training ends when the fastest host has done
    ``epochs`` passes. Embeddings of rows that a host has not sent yet count as 0. Chen, Jin, Sun, Yin 2020, "VAFL: a method of vertical asynchronous federated learning", algorithm 1; there the order is that of real arrivals.

    With ``noise`` a host clips the norm of each embedding to ``clip`` and adds noise ``N(0, (noise clip)^2 I)`` from its secret, in the training and in each answer. Its ledger books every embedding that leaves: a row moves the
    bottom's weights, and so each embedding after it, by at most ``2 clip``. One embedding is a Gaussian release; over all of them the epsilon is large unless the noise is. The paper states the guarantee of single embeddings, by
    noise inside the layers.

    Attributes:
        pace: host -> seconds that a step of it takes; 1 for those not named.
        noise: deviation of the noise, in units of ``clip``; 0 for none.
        clip: largest norm of an embedding, with ``noise``.
        checkpoint_every: steps of the fastest host between two checkpoints; 0 makes one an epoch of it.
    """

    pace: Mapping[str, float] = field(default_factory=dict)
    noise: float = 0.0
    clip: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "pace", dict(self.pace))
        for name, good, remedy in (
            ("pace", all(1e-6 <= one <= 1e9 for one in self.pace.values()), "use seconds from 1e-6 to 1e9"),
            ("noise", 0 <= self.noise < np.inf, "use a finite number of at least 0"),
            ("clip", 0 < self.clip < np.inf, "use a finite number above 0"),
        ):
            if not good:
                raise ConfigError(f"{name}={getattr(self, name)!r}", where="VAFL", remedy=remedy)
        if self.shape != "label" or self.correction:
            raise CompositionError(
                f"shape={self.shape!r}, correction={self.correction}",
                where="VAFL",
                remedy="use shape='label' and no correction, or SplitNet",
            )

    # Time.

    def paces(self, hosts: Sequence[str]) -> list[Fraction]:
        """Seconds of a step of each host.

        Raises:
            ConfigError: ``pace`` names a party that is no host.
        """
        strange = next((name for name in self.pace if name not in hosts), None)
        if strange is not None:
            raise ConfigError(f"pace of {strange!r}", where="VAFL", remedy=f"name hosts: {', '.join(hosts)}")
        return [Fraction(self.pace.get(name, 1.0)).limit_denominator(10**6) for name in hosts]

    def arrivals(self, hosts: Sequence[str], rows: int) -> Iterator[Arrival]:
        """What arrives at the guest, in order of time; at one time in order of step.

        Args:
            hosts: the hosts, in the order of their columns.
            rows: training rows.
        """
        paces, many = self.paces(hosts), self.epochs * self.batches(rows).an_epoch
        every = [(step, k) for k in range(len(hosts)) for step in range(_steps_of(k, paces, many))]
        made = sorted(((step + 1) * paces[k], step, k) for step, k in every)
        for (time, step), group in itertools.groupby(made, key=lambda one: one[:2]):
            yield Arrival(time, step, tuple(k for *_, k in group))

    def _checkpoints(self, paces: Sequence[Fraction], an_epoch: int) -> list[Fraction]:
        """The times at which all parties keep their states: no message is on its way there."""
        every = self.checkpoint_every or an_epoch
        return [k * every * min(paces) for k in range(1, self.epochs * an_epoch // every + 1)]

    def learns(self) -> dict[str, list[str]]:
        """What the guest and a host learn of each other beside the shared rows."""
        told = super().learns()
        if self.noise:
            kept = f"embeddings are clipped to the norm {self.clip:g}, and have noise of {self.noise:g} times that in each number; a host's ledger books all of them"
            told["guest"] = [*told["guest"], kept]
        return told

    def predict_cost(self, rows: int, columns: Sequence[int], outputs: int = 1) -> dict[str, float]:
        """Seconds of all parties' processors and bytes between them, before anyone is contacted. Hosts with a pace are taken to be among the first."""
        found, hosts = super().predict_cost(rows, columns, outputs), len(columns) - 1
        paces = [Fraction(one).limit_denominator(10**6) for one in [*self.pace.values(), *([1.0] * hosts)][:hosts]]
        share = float(sum(min(paces) / one for one in paces)) / hosts
        return {"seconds": found["seconds"], "bytes": found["bytes"] * share}

    # Noise.

    def training_releases(self, rows: int) -> Sequence[Event]:
        """Every embedding of a training at the fastest pace."""
        return self._releases(self.noise, rows * self.epochs)

    @classmethod
    def answer_releases(cls, part: Part, rows: int) -> Sequence[Event]:
        """An embedding a row."""
        return cls._releases(float(part.get("noise", 0.0)), rows)

    @staticmethod
    def _releases(noise: float, count: int) -> Sequence[Event]:
        # A replaced row moves an embedding by at most 2 clip, and the noise's deviation is noise times clip.
        return (Gaussian(unit="example", noise_multiplier=noise / 2, count=count),) if noise and count else ()

    # The roles.

    async def train_guest(
        self, rows: GuestRows, peers: Peers, hosts: Sequence[str], *, secret: Secret, state: Any = None, save: Save | None = None
    ) -> Part:  # fmt: skip
        """The guest's role: take a step with what arrives, and answer those who sent it.

        Raises:
            MessageError: a host sent something that is no embedding of its step's rows.
        """
        torch, hosts = load_torch(), list(hosts)
        paces = self.paces(hosts)
        if state is None:
            await peers.broadcast({"hosts": hosts}, hosts)
            state = {"done": 0, "seen": np.zeros((len(hosts), len(rows.x), self.width), self.precision)}
        own = LabelSide.of(self, rows, len(hosts) + 1, state if "head" in state else None)
        leaks = LabelLeaks(self.audit, len(hosts), len(rows.x), self.width, state.get("leaks"))
        seen, cut, batches = torch.from_numpy(np.array(state["seen"])), self.cut(peers), self.batches(len(rows.x))
        steps = [at for _, at in batches.from_step(0)]
        kept = self._checkpoints(paces, batches.an_epoch) if save is not None else []
        due = kept[int(state.get("kept", 0)) :]

        async def keep_before(time: Fraction | None, done: int) -> None:
            while due and (time is None or due[0] < time):
                parts = {"seen": np.array(seen.numpy()), "leaks": leaks.state(), **own.state()}
                await save({**parts, "done": done, "kept": len(kept) - len(due) + 1})  # type: ignore[misc]
                due.pop(0)

        arrivals = list(self.arrivals(hosts, len(rows.x)))
        with few_threads(self._work_seen(rows, len(hosts))):
            for k, (time, step, senders) in enumerate(arrivals[int(state["done"]) :], int(state["done"])):
                await keep_before(time, k)
                at = steps[step]
                for one in senders:
                    got = await cut.recv(hosts[one], step, (len(at), self.width), "embeddings")
                    seen[one, at] = torch.from_numpy(got)
                embeddings = [seen[one, at].requires_grad_(one in senders) for one in range(len(hosts))]
                own.loss([own.bottom(own.x[at]), *embeddings], at).backward()
                for one in senders:
                    shown = self.hide_labels(embeddings[one].grad, secret)
                    if leaks.attacks:
                        leaks.note(one, embeddings[one], shown, rows.targets[at], at)
                    await cut.send(hosts[one], step, shown, "down")
                own.step()
            await keep_before(None, len(arrivals))
        found = leaks.result(rows.targets)
        more = {"clip": self.clip, "noise": self.noise} if self.noise else {}
        return {
            **own.packed(), "width": self.width, "hosts": len(hosts), **more, **({"leaks": found} if found else {}),
        }  # fmt: skip

    async def train_host(
        self, x: NDArray[Any], peers: Peers, guest: str, *, secret: Secret, state: Any = None, save: Save | None = None
    ) -> Part:
        """A host's role: send embeddings at its own pace, and take the gradients of them.

        Raises:
            MessageError: the guest sent something that is no gradient of the step's rows.
        """
        torch = load_torch()
        if state is None:
            state = {"hosts": read_hosts(await peers.recv(guest), peers, guest), "done": 0}
        number, own, modules = self._begin_host(x, peers, secret, state)
        cut, batches, paces = self.cut(peers), self.batches(len(x)), self.paces(state["hosts"])
        kept = self._checkpoints(paces, batches.an_epoch) if save is not None else []
        due = kept[int(state.get("kept", 0)) :]

        async def keep_before(time: Fraction | None, done: int) -> None:
            while due and (time is None or due[0] < time):
                parts = {"hosts": state["hosts"], **state_of_host(own, modules)}
                await save({**parts, "done": done, "kept": len(kept) - len(due) + 1})  # type: ignore[misc]
                due.pop(0)

        many = _steps_of(number - 1, paces, self.epochs * batches.an_epoch)
        with few_threads(self.bottom(x.shape[1], number).multiplications * self.batch):
            for step, at in itertools.islice(batches.from_step(int(state["done"])), many - int(state["done"])):
                await keep_before((step + 1) * paces[number - 1], step)
                embedding = own.bottom(own.x[at])
                await cut.send(guest, step, perturb(embedding, self.noise, self.clip, secret), "up")
                found = torch.from_numpy(await cut.recv(guest, step, (len(at), self.width), "gradients"))
                for one in modules:
                    one.penalty(own.x[at], embedding).backward(retain_graph=True)
                # Of a clipped embedding, only what it does to its direction moves the weights.
                clip_rows(embedding, self.clip if self.noise else np.inf).backward(found)
                own.bottom.step()
            await keep_before(None, many)
        part = {**own.packed(), "width": self.width, **({"clip": self.clip, "noise": self.noise} if self.noise else {})}
        return {**part, **self._measure_inversion(part, x, _perturbed(part, x, secret))}

    # Predictions.

    @classmethod
    def answer(cls, part: Part, x: NDArray[Any]) -> Mapping[str, Any]:
        """A host's embeddings of rows, clipped, without noise: for who has all parts at hand. Parties predict by `predict_host`, which adds it."""
        found = clip_rows(load_torch().from_numpy(embed(part, x)), float(part.get("clip", np.inf)))
        return {"cut": found.numpy()}

    async def predict_host(self, part: Part, x: NDArray[Any], peers: Peers, guest: str, *, secret: Secret) -> None:
        """A host's role when the parties predict: perturbed embeddings, as in the training."""
        await peers.channel(ANSWERS).send(guest, {"cut": _perturbed(part, x, secret)})


def _perturbed(part: Part, x: NDArray[Any], secret: Secret) -> NDArray[Any]:
    """A host's embeddings of rows, as others see them."""
    found = load_torch().from_numpy(embed(part, x))
    shown = perturb(found, float(part.get("noise", 0.0)), float(part.get("clip", np.inf)), secret)
    return np.asarray(shown.numpy())


def clip_rows(embedding: Any, clip: float) -> Any:
    """Rows whose norm is at most ``clip``."""
    if not np.isfinite(clip):
        return embedding
    return embedding * (clip / embedding.norm(dim=1, keepdim=True).clamp_min(clip))


def perturb(embedding: Any, noise: float, clip: float, secret: Secret) -> Any:
    """Rows clipped to the norm ``clip``, with normal noise of the deviation ``noise clip`` in each number; unchanged without noise."""
    if not noise:
        return embedding
    drawn = load_torch().from_numpy(secret.normal(embedding.numel())).to(embedding.dtype).view(embedding.shape)
    return clip_rows(embedding, clip) + noise * clip * drawn


def _steps_of(host: int, paces: Sequence[Fraction], fastest: int) -> int:
    """How many steps a host does while the fastest one does so many."""
    return int(fastest * min(paces) // paces[host])
