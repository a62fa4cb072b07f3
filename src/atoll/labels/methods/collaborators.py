"""Which domain a new one should adapt to: FRuDA's choice, as a program over the federation."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.errors import ConfigError, DataError
from atoll.core.requests.task import Task
from atoll.core.validation import Checked

from ..objectives.domains import projections, sliced_quantiles, transfer_bound, wasserstein

if TYPE_CHECKING:
    from atoll.core.algebra.tree import Tree
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island

__all__ = ["Candidate", "Collaborators", "RankedCandidate"]


@dataclass(frozen=True)
class Candidate:
    """A domain that has a model already: the source, or a target that has adapted.

    Attributes:
        params: of its model.
        error: what is known of its error, from 0 to 1; ``None`` to measure it at the domain's labels. Of a target that has adapted nobody has labels: give the
            bound under which it was chosen, `RankedCandidate.bound`.
    """

    params: Tree
    error: float | None = None


@dataclass(frozen=True)
class RankedCandidate:
    """What a candidate promises the new domain.

    Attributes:
        name: the candidate's party.
        error: of its model at home, the mean of ``1 - p_y``, half the absolute difference between probabilities and label.
        distance: estimate of the Wasserstein distance between the two domains' features under the candidate's model.
        bound: ``scale (error + 2 lipschitz distance)``.
    """

    name: str
    error: float
    distance: float
    bound: float


@dataclass(frozen=True, kw_only=True)
class Collaborators(Checked):
    """Rank the domains that a new one, without labels, may adapt to: the smallest bound of eq. 99 (Gan et al. 2022; Jin et al. 2023) comes first.

    Each candidate and the new domain send quantiles of their features along random directions, each of them a mean over ``least`` rows or more, and the
    candidate its error. No row leaves a party. The server sees the quantiles; the new domain receives the candidates' models.

    Attributes:
        model: a network with the parts ``features`` and ``classifier``, such as `atoll.labels.DomainNetwork`, or a factory of one.
        candidates: party -> its model.
        directions: random directions.
        levels: quantiles along each.
        least: rows that a quantile stands for at least.
        lipschitz: how much a model's outputs change with a unit of the features.
        scale: how much larger cross-entropy is than the error.

    Example::

        offers = atoll.simulate(Collaborators(model=network, candidates=known).program("new"), islands)
        chosen = offers[0].name
    """

    citation: ClassVar[str] = (
        "Gan et al. FRuDA: Framework for Distributed Adversarial Domain Adaptation. IEEE TPDS 33(11), 2022."
    )
    model: Any
    candidates: Mapping[str, Candidate]
    directions: int = 50
    levels: int = 20
    least: int = 5
    lipschitz: float = 1.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not self.candidates:
            raise ConfigError("no candidate", where="Collaborators", remedy="give the models of one domain or more")
        if min(self.directions, self.levels, self.least) < 1:
            raise ConfigError(
                f"directions={self.directions}, levels={self.levels}, least={self.least}",
                where="Collaborators",
                remedy="use 1 or more of each",
            )
        transfer_bound(0.0, 0.0, lipschitz=self.lipschitz, scale=self.scale)
        for name, one in self.candidates.items():
            if one.error is not None and not 0.0 <= one.error < math.inf:
                raise ConfigError(
                    f"error={one.error} of {name!r}", where="Collaborators", remedy="use 0 or more, or None"
                )

    def program(self, new: str) -> Callable[[Federation], Awaitable[list[RankedCandidate]]]:
        """Return the program that ranks the candidates for a party, best first."""
        tell = self._task()

        async def program(fed: Federation) -> list[RankedCandidate]:
            offers = [await self._offer(fed, tell, name, new) for name in self.candidates]
            return sorted(offers, key=lambda offer: offer.bound)

        program.tasks = (tell,)  # type: ignore[attr-defined]
        return program

    async def _offer(self, fed: Federation, tell: Task, name: str, new: str) -> RankedCandidate:
        """Ask a candidate and the new domain about the candidate's model."""
        one = self.candidates[name]
        message = {
            "params": dict(one.params),
            "seed": int(fed.rng.child("directions", name).generator().integers(2**31)),
        }
        told = [
            await fed.ask(party, tell, {**message, "error": party == name and one.error is None}, at=(name, role))
            for role, party in (("candidate", name), ("new", new))
        ]
        distance = wasserstein(told[0]["quantiles"], told[1]["quantiles"], int(told[0]["width"]))
        error = float(told[0]["error"]) if one.error is None else one.error
        bound = transfer_bound(error, distance, lipschitz=self.lipschitz, scale=self.scale)
        return RankedCandidate(name, error, distance, bound)

    def _task(self) -> Task:
        """Return the task that tells of a domain under a model."""

        def tell(island: Island, message: Tree) -> Tree:
            import torch
            from torch.func import functional_call

            net: Any = (self.model if isinstance(self.model, torch.nn.Module) else self.model()).eval()
            params = {name: torch.from_numpy(np.array(leaf)) for name, leaf in message["params"].items()}
            own = {name.removeprefix("features."): p for name, p in params.items() if name.startswith("features.")}
            with torch.no_grad():
                z = functional_call(net.features, own, (torch.from_numpy(np.array(island.data.x)),)).flatten(1)
            rng = np.random.default_rng(int(message["seed"]))
            lines = projections(z.shape[1], self.directions, rng)
            told = sliced_quantiles(z.numpy(), lines, self.levels, self.least)
            error = _error_of(net, params, z, island) if message["error"] else 0.0
            return {"quantiles": told, "width": np.int64(z.shape[1]), "error": np.float64(error)}

        return Task("atoll.labels.collaborators:tell", tell)


def _error_of(net: Any, params: Mapping[str, Any], z: Any, island: Island) -> float:
    """Return the mean of ``1 - p_y`` over the rows with a label.

    Raises:
        DataError: there is none.
    """
    import torch
    from torch.func import functional_call

    own = {name.removeprefix("classifier."): p for name, p in params.items() if name.startswith("classifier.")}
    data = island.data
    known = np.asarray(data["labelled"]).astype(bool) if "labelled" in data else np.ones(len(data), bool)
    if not known.any():
        raise DataError(
            f"{island.name} has no label, and its error is not known",
            where="Collaborators",
            remedy="give Candidate(params, error=) of a domain that has adapted: the bound under which it was chosen",
        )
    with torch.no_grad():
        p = functional_call(net.classifier, own, (z,)).softmax(1).numpy()
    return float(1.0 - p[known, np.asarray(data.y)[known]].mean())
