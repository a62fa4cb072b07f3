"""Defences at the cut: noise on gradients, which hides labels from hosts; and what a host adds to its loss, which hides its columns from the guest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from atoll.core.errors import ConfigError, DataError
from atoll.core.validation import Checked

from .networks import Layers, Segment, SegmentOptimizer, load_torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike

    from atoll.core.algebra.rng import Rng
    from atoll.core.requests.island import Secret

__all__ = ["CutDefence", "HostModules", "IsotropicNoise", "MaxNorm", "SunModules", "distance_correlation"]


class CutDefence(Checked):
    """A defence at the cut of a `SplitNet`.

    Attributes:
        hides: whose secrets: ``labels`` at the guest, or ``columns`` at the hosts.
    """

    hides: ClassVar[Literal["labels", "columns"]]

    def hide(self, gradients: Any, secret: Secret) -> Any:
        """At the guest: what a host gets instead of the gradients of a step, ``(rows, width)``."""
        raise NotImplementedError

    @property
    def told(self) -> str:
        """What it does, for ``learns``."""
        raise NotImplementedError


@dataclass(frozen=True)
class MaxNorm(CutDefence):
    """Stretch each row's gradient by noise along it, so that all have the largest one's expected squared norm: ``g (1 + s z)``, ``s^2 = |g_max|^2 / |g|^2 - 1``, ``z ~ N(0, 1)``.

    On average the gradients stay as they are. The rarer class has the larger gradients; afterwards norms tell little, and signs of the others are nearly random. It is a heuristic: nothing bounds what a host
    learns over all epochs. Li et al. 2021, "Label Leakage and Protection in Two-party Split Learning", section 4.1 (``max_norm``).
    """

    hides: ClassVar[Literal["labels", "columns"]] = "labels"

    def hide(self, gradients: Any, secret: Secret) -> Any:
        """The stretched gradients. One that is zero would show, so it gets the direction of the largest."""
        torch = load_torch()
        norms = gradients.norm(dim=1)
        most, at = norms.max(0)
        z = torch.from_numpy(secret.normal(len(gradients))).to(gradients.dtype)
        noise = gradients * ((most / norms.clamp_min(1e-30)) ** 2 - 1).clamp_min(0).sqrt()[:, None]
        noise = torch.where((norms > 1e-30)[:, None], noise, gradients[at][None])
        return gradients + noise * z[:, None]

    @property
    def told(self) -> str:
        """What it does, for ``learns``."""
        return "each stretched by noise, so that all have one expected norm"


@dataclass(frozen=True)
class IsotropicNoise(CutDefence):
    """Add noise of the same size in every direction to each row's gradient: ``N(0, (scale^2 / width) |g_max|^2 I)``.

    Li et al. 2021, section 4.1 (``iso``).

    Attributes:
        scale: expected norm of the noise, in units of the batch's largest gradient.
    """

    scale: float = 1.0
    hides: ClassVar[Literal["labels", "columns"]] = "labels"

    def __post_init__(self) -> None:
        if not 0 < self.scale < np.inf:
            raise ConfigError(f"scale={self.scale}", where="IsotropicNoise", remedy="use a finite number above 0")

    def hide(self, gradients: Any, secret: Secret) -> Any:
        """The noised gradients."""
        torch = load_torch()
        z = torch.from_numpy(secret.normal(gradients.numel())).to(gradients.dtype).view(gradients.shape)
        return gradients + z * (self.scale * gradients.norm(dim=1).max() / gradients.shape[1] ** 0.5)

    @property
    def told(self) -> str:
        """What it does, for ``learns``."""
        return f"with noise of {self.scale:g} times the largest one's norm"


@dataclass(frozen=True)
class SunModules(CutDefence):
    """What each host adds to the loss of its bottom, so that its embedding ``h`` tells less of its columns ``x``.

    ``-a1 mean |R(h) - x|^2 + a2 mean |R(h) - u|^2 + a3 log dCor(x, h)``: an adversary ``R``, which learns at the host to reconstruct the columns, shall fail (``a1``); what it reconstructs shall be like
    noise ``u ~ N(0, I)`` (``a2``); and embeddings shall correlate little with columns (``a3``, `distance_correlation`). The means are over the numbers of a batch, columns as `ColumnScales` scales
    them. The adversary's error counts up to 1, that of one who knows nothing, since an embedding could drive it up without hiding anything.
    Sun et al. 2021, "Defending against Reconstruction Attack in Vertical Federated Learning"; ``a3`` alone is NoPeek (Vepakomma et al. 2020).

    It is a heuristic: an adversary with other means may see more than ``R``.

    Attributes:
        reconstruction: ``a1``.
        noise: ``a2``.
        distance: ``a3``.
        hidden: width of the adversary's hidden layer.
    """

    reconstruction: float = 0.05
    noise: float = 0.05
    distance: float = 0.05
    hidden: int = 32
    hides: ClassVar[Literal["labels", "columns"]] = "columns"

    def __post_init__(self) -> None:
        for name in ("reconstruction", "noise", "distance"):
            if not 0 <= getattr(self, name) < np.inf:
                raise ConfigError(
                    f"{name}={getattr(self, name)}", where="SunModules", remedy="use a finite number of at least 0"
                )
        if self.hidden < 1 or not (self.reconstruction or self.noise or self.distance):
            raise ConfigError(
                "no module", where="SunModules", remedy="give one of the weights, and hidden of at least 1"
            )

    @property
    def told(self) -> str:
        """What it does, for ``learns``."""
        return "trained so that a reconstruction of columns fails at the host"


class HostModules:
    """`SunModules` at one host, in training.

    Args:
        settings: the weights.
        width: numbers of an embedding.
        columns: of the host.
        rng: the stream of the adversary's initial weights.
        secret: the host's entropy, for noise.
        precision: of all numbers.
        state: what `state` returned.
    """

    def __init__(
        self, settings: SunModules, width: int, columns: int, rng: Rng, secret: Secret, precision: type[Any], state: Any
    ) -> None:
        self.settings, self.secret = settings, secret
        layers = Layers(width, (settings.hidden, columns))
        self.adversary = Segment(layers, SegmentOptimizer("adam", 0.003), rng, precision)
        if state is not None:
            self.adversary.restore(state)

    def penalty(self, x: Any, embedding: Any) -> Any:
        """What a host adds to its loss at a step; the adversary learns first, from the same rows."""
        torch, told = load_torch(), self.settings
        functional, made = torch.nn.functional, embedding.sum() * 0
        if not x.shape[1]:
            return made
        if told.reconstruction or told.noise:
            functional.mse_loss(self.adversary(embedding.detach()), x).backward()
            self.adversary.step()
            frozen = [one.detach() for one in self.adversary.weights]
            found = self.adversary.layers.run(frozen, embedding)
            made = made - told.reconstruction * functional.mse_loss(found, x).clamp_max(1.0)
            if told.noise:
                noise = torch.from_numpy(self.secret.normal(x.numel())).to(x.dtype).view(x.shape)
                made = made + told.noise * functional.mse_loss(found, noise)
        if told.distance and len(x) > 1:
            made = made + told.distance * correlate_distances(x, embedding).clamp_min(1e-6).log()
        return made

    def state(self) -> Mapping[str, Any]:
        """For a checkpoint."""
        return self.adversary.state()


def distance_correlation(a: ArrayLike, b: ArrayLike) -> float:
    """How far two sets of measurements of the same rows depend on each other: 0 if they are independent, 1 if one is the other moved, scaled and turned.

    With the distances of all pairs of rows, each matrix centred by rows and columns (``A``, ``B``): ``dCov^2 = mean(A B)``, ``dCor = sqrt(dCov^2(a, b) / sqrt(dCov^2(a, a) dCov^2(b, b)))``, 0 where one
    does not vary. Székely, Rizzo, Bakirov 2007, "Measuring and testing dependence by correlation of distances", definition 3. Time and memory grow with the square of the rows. In a sample
    even independent measurements have a value above 0, which sinks as rows grow.

    Args:
        a: ``(rows, ...)``.
        b: ``(rows, ...)``, of the same rows.

    Raises:
        DataError: they have different numbers of rows, fewer than 2, or NaN or infinity.
    """
    rows = [np.asarray(each, np.float64) for each in (a, b)]
    if any(each.ndim < 1 for each in rows) or len(rows[0]) != len(rows[1]) or len(rows[0]) < 2:
        raise DataError(
            f"{' and '.join(str(each.shape) for each in rows)}",
            where="distance_correlation",
            remedy="give measurements of the same rows, at least 2",
        )
    if not all(np.isfinite(each).all() for each in rows):
        raise DataError("NaN or infinity", where="distance_correlation", remedy="fill or leave out missing values")
    torch = load_torch()
    return float(correlate_distances(*(torch.from_numpy(each.reshape(len(each), -1)) for each in rows)))


def correlate_distances(a: Any, b: Any) -> Any:
    """`distance_correlation` of tensors, for gradients."""
    torch = load_torch()
    one, other = (_centred(torch.cdist(each, each, compute_mode="donot_use_mm_for_euclid_dist")) for each in (a, b))
    spread = ((one * one).mean() * (other * other).mean()).sqrt()
    shared = (one * other).mean().clamp_min(0)
    if not bool(spread > 0) or not bool(shared > 0):
        return shared * 0
    return (shared / spread).sqrt()


def _centred(distances: Any) -> Any:
    rows = distances.mean(dim=0)
    return distances - rows - rows[:, None] + rows.mean()
