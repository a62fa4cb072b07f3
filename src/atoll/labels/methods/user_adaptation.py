"""The last stage of FedHealth: each user fits the averaged model to its own rows, whose features keep the covariances of public ones."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.errors import ConfigError, DataError
from atoll.core.requests.task import Task
from atoll.core.validation import Checked

from ..objectives.domains import coral

if TYPE_CHECKING:
    from atoll.core.algebra.tree import Tree
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island
    from atoll.data import Dataset

__all__ = ["PERSONAL", "UserAdaptation"]

PERSONAL = "personal-model"
"""The name under which each user keeps its own model."""


@dataclass(frozen=True, kw_only=True)
class UserAdaptation(Checked):
    """FedHealth's personal models: every user gets the trained model and public rows with labels, and fits the model to its own rows.

    A step is of gradient descent over all rows, ``mean_own CE + weight coral(features of public rows, features of own rows)`` (Chen et al. 2020, section 3; Sun, Saenko 2016, equation 1). Parts
    of the network that ``frozen`` names stay as they are. Each user keeps its parameters as the named result ``personal-model``; only the two terms of the loss, before and after, leave it.

    FedHealth's other stages stand by themselves: train a `DomainNetwork` on public rows, then `Training` with ``reducer=Encrypted(scheme="paillier")``, the homomorphic average.

    Attributes:
        model: a network with the parts ``features`` and ``classifier``, such as `atoll.labels.DomainNetwork`, or a factory of one.
        params: its trained parameters.
        public: rows that everyone may see.
        weight: of the distance of covariances.
        frozen: beginnings of the names of parameters that stay, such as ``features.0``.
        steps: steps of a user.
        lr: learning rate.

    Example::

        await UserAdaptation(model=network, params=result.params, public=rows).program()(fed)
    """

    citation: ClassVar[str] = (
        "Chen et al. FedHealth: A Federated Transfer Learning Framework for Wearable Healthcare. IEEE Intelligent Systems 35(4), 2020."
    )
    model: Any
    params: Mapping[str, Any]
    public: Dataset
    weight: float = 1.0
    frozen: Sequence[str] = ()
    steps: int = 50
    lr: float = 0.05

    def __post_init__(self) -> None:
        bounds = (
            ("weight", 0 <= self.weight < math.inf, "use a finite number >= 0"),
            ("steps", self.steps >= 1, "use at least 1 step"),
            ("lr", 0 < self.lr < math.inf, "use a finite number above 0"),
        )
        for name, good, remedy in bounds:
            if not good:
                raise ConfigError(f"{name}={getattr(self, name)!r}", where="UserAdaptation", remedy=remedy)
        names = list(self.params)
        strange = [one for one in self.frozen if not any(name.startswith(one) for name in names)]
        if strange or all(name.startswith(tuple(self.frozen)) for name in names):
            what = f"frozen={strange[0]!r}, the beginning of no parameter" if strange else "frozen parameters alone"
            raise ConfigError(what, where="UserAdaptation", remedy=f"name some of {', '.join(names[:10])}")

    def program(self) -> Callable[[Federation], Awaitable[dict[str, Any]]]:
        """Return the program: it maps each user to ``loss`` and ``distance``, before and after."""
        adapt = Task("atoll.labels.user_adaptation:adapt", self._adapt)
        message = {
            "params": {name: np.asarray(value) for name, value in self.params.items()},
            "x": np.asarray(self.public.x),
        }

        async def program(fed: Federation) -> dict[str, Any]:
            replies = await fed.ask_all(fed.parties, adapt, message)
            return dict(replies.by_name())

        program.tasks = (adapt,)  # type: ignore[attr-defined]
        return program

    def _adapt(self, island: Island, message: Tree) -> Tree:
        """At a user: adapt, keep the model, and tell how the loss went."""
        import torch
        from torch.func import functional_call

        net: Any = (self.model if isinstance(self.model, torch.nn.Module) else self.model()).eval()
        params = {name: torch.from_numpy(np.array(leaf)) for name, leaf in message["params"].items()}
        public = torch.from_numpy(np.array(message["x"]))
        x, y = _rows_of(island)

        def parts(prefix: str) -> dict[str, Any]:
            return {name.removeprefix(prefix): value for name, value in params.items() if name.startswith(prefix)}

        def terms() -> tuple[Any, Any]:
            own, theirs = (
                functional_call(net.features, parts("features."), (rows,)).flatten(1) for rows in (x, public)
            )
            scores = functional_call(net.classifier, parts("classifier."), (own,))
            return torch.nn.functional.cross_entropy(scores, y), coral(theirs, own)

        moving = [name for name in params if not name.startswith(tuple(self.frozen))]
        told = [_numbers(terms())]
        for _ in range(self.steps):
            for name in moving:
                params[name] = params[name].detach().requires_grad_()
            loss, distance = terms()
            gradients = torch.autograd.grad(
                loss + self.weight * distance, [params[name] for name in moving], allow_unused=True
            )
            for name, gradient in zip(moving, gradients, strict=True):
                params[name] = params[name].detach() if gradient is None else params[name].detach() - self.lr * gradient
        told.append(_numbers(terms()))
        island.leave(PERSONAL, {name: value.detach().numpy() for name, value in params.items()})
        return {"loss": [one[0] for one in told], "distance": [one[1] for one in told]}


def _rows_of(island: Island) -> tuple[Any, Any]:
    """A user's rows with labels.

    Raises:
        DataError: there are fewer than two, so that they have no covariances.
    """
    import torch

    data = island.data
    known = np.asarray(data["labelled"]).astype(bool) if "labelled" in data else np.ones(len(data), bool)
    if known.sum() < 2:
        raise DataError(
            f"{int(known.sum())} rows with a label at {island.name}",
            where="UserAdaptation",
            remedy="leave the user out: adapting takes 2 rows or more",
        )
    return torch.from_numpy(np.array(data.x)[known]), torch.from_numpy(np.array(data.y)[known].astype(np.int64))


def _numbers(terms: tuple[Any, Any]) -> list[float]:
    return [float(one.detach()) for one in terms]
