"""What a training shows to whom, and what a round costs, before anyone is contacted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from atoll.core import message as M
from atoll.core.algebra import tree as T
from atoll.core.algebra.rng import Rng
from atoll.core.exposure import Explanation, Exposure
from atoll.core.facets import facet
from atoll.core.requests.stage import Estimated, Worded

from .composition import Chosen

if TYPE_CHECKING:
    from atoll.core.algebra.tree import Tree
    from atoll.core.requests.chain import Chain

    from .learner import Learner
    from .private.base import Mechanism
    from .private.claim import Guarantee

__all__ = ["Explainable", "explain_training", "exposures_of"]


_SIMPLE = "bytes are those of one update or model, without keys, shares, letters, weights and metrics"


class Explainable(Chosen, Protocol):
    """A training, for those who explain it."""

    @property
    def title(self) -> str:
        """What it is called."""
        ...

    @property
    def privacy(self) -> Mechanism | None:
        """The mechanism before it is installed."""
        ...

    @property
    def claim(self) -> Guarantee | None:
        """What the installed mechanism promises."""
        ...

    def installed(self, data: Any = None, learner: Learner | None = None) -> Explainable:
        """Return it with the parts that its mechanism installs."""
        ...

    def learner(self, data: Any) -> Learner:
        """Return the model, ready for a data set."""
        ...


def explain_training(training: Explainable, data: Any, clients: int) -> Explanation:
    """See `Training.explain`."""
    population, title = 0 if data is None else len(data), training.title
    if training.privacy is not None:
        training = _install_mechanism(training, data)
    count = training.selection.cohort_size(population) if population else clients
    phases = tuple(training.algorithm.phases)
    chains = {phase: training.up(phase) for phase in phases}
    first = chains[phases[0]]
    exposures = exposures_of(training, count)
    notes = [*_describe_promises(training, bool(population), chains), *_stages(first, training.reducer.secure)]
    if len(phases) > 1:
        notes.append(f"a round has {len(phases)} phases ({', '.join(phases)}); each is one sum")
    costs: dict[str, Any] = {}
    if population:
        outline = data.outline() if hasattr(data, "outline") else data
        costs = _costs(training, training.learner(outline).init(Rng(0)), first, count)
    else:
        notes.append("costs follow from the model, which needs data: give a configuration with data")
    return Explanation(title, count, tuple(exposures), costs, tuple(notes))


def exposures_of(training: Explainable, clients: int) -> list[Exposure]:
    """Who sees what of an installed training with cohorts of so many clients."""
    return [
        *training.reducer.exposures(clients or 2),
        Exposure("other clients", "the global model of every round that they take part in"),
        Exposure("whoever gets the result", "the model of the last round"),
        *([] if training.mechanism is None or training.claim is None else training.mechanism.exposures(training.claim)),
    ]


def _install_mechanism(training: Explainable, data: Any) -> Explainable:
    if data is None:
        return training.installed()
    outline = data.outline() if hasattr(data, "outline") else data
    return training.installed(outline, training.learner(outline))


def _describe_promises(training: Explainable, known: bool, chains: dict[str, Chain]) -> list[str]:
    claim = training.claim
    if claim is None:
        return [_privacy(chains)]
    if not known:
        return [
            f"{claim.mechanism}: what it promises follows from the number of clients: give a configuration with data"
        ]
    return [f"privacy: {claim}", claim.how, *(f"assuming that {one}" for one in claim.assuming)]


def _privacy(chains: dict[str, Chain]) -> str:
    events = [event for chain in chains.values() for event in chain.events]
    if not events:
        return "no stage adds noise for privacy: a sum can still tell about a client if the others are known"
    return (
        f"a round releases {', '.join(sorted({event.kind for event in events}))} events, which the ledger accounts for"
    )


def _stages(chain: Chain, secure: bool) -> list[str]:
    if not chain.stages:
        return []
    names = " -> ".join(type(stage).__name__ for stage in chain.stages)
    return [f"on the way up: {names}" + ("" if chain.summable or secure else "; the sum needs every single reply")]


def _costs(training: Explainable, params: Tree, chain: Chain, clients: int) -> dict[str, Any]:
    numbers = sum(int(np.size(leaf)) for leaf in T.leaves(params))
    plain = sum(8 * int(np.size(leaf)) * np.asarray(leaf).dtype.itemsize for leaf in T.leaves(params))
    bits = _bits(training, params, chain, clients, plain)
    made = {"parameters": numbers, "bytes_down": M.nbytes(params), "bytes_up_plain": -(-plain // 8), "what": _SIMPLE}
    if bits is not None:
        made |= {
            "bytes_up": -(-bits // 8),
            "bits_per_weight": bits / max(1, numbers),
            "expansion": bits / max(1, plain),
        }
    return made


def _bits(training: Explainable, params: Tree, chain: Chain, clients: int, plain: int) -> int | None:
    """Bits of an update on the way up; ``None`` if they must be measured."""
    word = training.reducer.word_length(chain, max(2, clients))
    packing = [stage for stage in chain.stages if stage.packs or facet(stage, Worded).words]
    if packing and training.reducer.indexes and len(training.reducer.others) > 1:
        return None  # shares and keys for two servers are longer than the indices
    numbers = sum(int(np.size(leaf)) for leaf in T.leaves(params))
    bits = facet(packing[-1], Estimated).most_bits(params) if packing else None if word is None else word * numbers
    if bits is None:
        return plain
    each, wraps = -(-bits // max(1, numbers)), any(facet(stage, Worded).words for stage in packing)
    sealed = training.reducer.sealed_bits(each, max(2, clients), numbers, wraps=wraps)
    return bits if sealed is None else sealed
