"""Every algorithm with everything it can be put together with: it trains, to the same model whoever adds up, or is refused with a reason beforehand.

New algorithms are taken up by themselves. Which two parts are refused, and why, is in ``tests/support/refusals.txt``; the cells that train, in
``tests/support/matrix.py``.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest

import atoll
from atoll import algorithms
from atoll.algorithms import Upcycled
from atoll.core.errors import AtollError, CompositionError, ConfigError
from atoll.core.requests.results import Free
from atoll.learn import Evaluation, Training
from atoll.learn.catalogue import describe, example, kinds
from atoll.models import Linear
from atoll.models.quadratic import Quadratic, minimiser, quadratics
from atoll.selection import Everyone
from atoll.stages import Shift, TopK
from tests.support.learn_toys import islands
from tests.support.matrix import (
    AXES,
    LATE,
    MASKED,
    NO_QUADRATICS,
    NOISY,
    NOT_THREE_CLASSES,
    ROUNDS,
    SETTINGS,
    WHOLE,
    Cell,
    cover,
    every_two,
    is_accepted,
    is_refused_late,
    make_exact,
    make_local,
    train,
    two_classes,
    wanted_pairs,
)
from tests.support.part_examples import (
    COMPANIONS,
    DATA,
    EVERY,
    Choice,
    compose,
    listed_refusals,
    pairs,
    reason_of,
    verdict_of,
)


class Counting(Free):
    """No delays; counts what is sent to anyone."""

    def __init__(self) -> None:
        self.contacts = 0

    def plan(self, parties: Any, plan: Any) -> Any:
        self.contacts += len(parties)
        return super().plan(parties, plan)

    def transfer(self, source: str, target: str, nbytes: int) -> float:
        self.contacts += 1
        return super().transfer(source, target, nbytes)


# ---------------------------------------------------------------------- what is refused

SHARES = 3
"""The pairs are judged in so many tests, which workers share out among them."""


@pytest.mark.parametrize("share", range(SHARES))
def test_exactly_the_listed_pairs_are_refused_for_the_listed_reason(share: int) -> None:
    """A pair that changes sides is a decision: after it, write the list anew with ``python -m tests.support.part_examples``."""
    assert misjudged(few_pairs()[share::SHARES]) == []


@pytest.mark.slow
@pytest.mark.parametrize("share", range(SHARES))
def test_exactly_the_listed_pairs_of_algorithms_are_refused_for_the_listed_reason(share: int) -> None:
    """What `few_pairs` leaves out: most pairs of an algorithm or of a network of PyTorch, which are judged by the same rows of needs and offers."""
    left = set(pairs()) - set(few_pairs())
    assert misjudged(sorted(left)[share::SHARES]) == []


def few_pairs() -> list[tuple[Choice, Choice]]:
    """Every pair of two parts; of those of an algorithm or a network of PyTorch, which is tried on rows, one in six, in diagonals, and one in three of slots with few parts."""
    place = {("algorithm", name): i for i, name in enumerate(AXES["algorithm"])}
    others = {
        choice: i for i, choice in enumerate(dict.fromkeys(one for two in pairs() for one in two if one not in place))
    }
    place.update(others)
    return [
        (one, other)
        for one, other in pairs()
        if one == other
        or not ({"algorithm"} & {one[0], other[0]} or ("model", "mlp") in (one, other))
        or (place[one] + place[other]) % (6 if min(len(EVERY[slot]) for slot, _ in (one, other)) >= 6 else 3) == 0
    ]


def misjudged(some: list[tuple[Choice, Choice]]) -> list[str]:
    """What is wrong with the verdicts on some pairs."""
    listed, wrong = listed_refusals(), []
    for one, other in some:
        said, known = verdict_of(one, other), listed.get(frozenset({one, other}))
        if (said and reason_of(said)) != known:
            wrong.append(f"{one} + {other}: {said or 'it is not refused'}; listed: {known}")
        elif said and ("Remedy: " not in said or "(in " not in said):
            wrong.append(f"{one} + {other}: no place or no remedy: {said}")
    return wrong


def test_the_few_pairs_have_each_algorithm_with_every_kind_of_part() -> None:
    slots = {slot for slot, names in EVERY.items() if len(names) > 2} - {"algorithm"}
    met = {
        (name, other[0])
        for one, other in few_pairs()
        for (slot, name), other in ((one, other), (other, one))
        if slot == "algorithm"
    }
    assert {(name, slot) for name in AXES["algorithm"] for slot in slots} <= met


def test_nothing_is_listed_that_is_no_pair() -> None:
    assert set(listed_refusals()) <= {frozenset(two) for two in pairs()}


EXAMPLES = {reason: sorted(two) for two, reason in listed_refusals().items()}
"""Reason -> a pair that is refused for it."""


@pytest.mark.parametrize("reason", EXAMPLES)
def test_what_is_refused_is_refused_before_anyone_is_contacted(reason: str) -> None:
    seen, chosen = Counting(), EXAMPLES[reason]
    with pytest.raises(AtollError, match="Remedy: ") as caught:
        _simulate(chosen, seen)
    assert caught.value.remedy
    assert seen.contacts == 0


def _simulate(chosen: list[Choice], devices: Counting) -> None:
    company = [row for _, name in chosen for row in COMPANIONS.get(name, {}).items()]
    parts = {"model": "linear", "algorithm": "FedAvg", **dict(company), **dict(chosen)}
    atoll.simulate(Training(rounds=2, **compose(parts)), DATA, engine="inline", devices=devices)


@pytest.mark.parametrize("name", kinds())
def test_what_the_catalogue_calls_secure_goes_with_every_secure_reducer_and_nothing_else_does(name: str) -> None:
    listed = listed_refusals()
    accepted = [r for r in MASKED if frozenset({("algorithm", name), ("reducer", r)}) not in listed]
    whole = name == "FedNL"  # its corrections are, on a model as small as that of the list
    assert accepted == (MASKED if describe(kinds()[name]).secure or whole else [])


# ---------------------------------------------------------------------- what trains

BEGUN_ONLY = {("IFCA", "server optimised"), ("FedDualAvg", "server optimised")}
"""``(algorithm, composition)`` of `LATE`: refused when the first round begins."""
CLOSE = 1e-4
"""Second-order methods amplify the rounding of float32."""


def judge(cell: Cell) -> str | None:
    """What is wrong with a cell."""
    if is_refused_late(cell):
        return None
    found = train(cell)
    if not np.isfinite(found.numbers).all():
        return "it is not finite"
    if len(found.replied) != ROUNDS:
        return f"it has {len(found.replied)} rounds"
    return (_judge_sums(cell) if cell.reducer != "Plain" else None) or (_judge_ledger(cell) if cell.mechanism else None)


def _judge_sums(cell: Cell) -> str | None:
    """The training whose sums nobody hides ends at the same model. Noise is the reducer's to place, so it is left out."""
    ours, theirs = train(cell._replace(mechanism="")), train(cell._replace(mechanism="", reducer="SumsOnly"))
    scale = float(np.abs(theirs.numbers).max())
    if scale < 1e-3:
        return "it has learnt nothing"
    off = float(np.abs(ours.numbers - theirs.numbers).max()) / max(1.0, scale)
    if off > CLOSE:
        return f"it is {off:.2g} away from the training whose sums nobody hides"
    if cell.pace != "FedBuff" and ours.replied != theirs.replied:  # others arrive while a sum takes its supersteps
        return f"{ours.replied} replied, and {theirs.replied} where nobody hides the sums"
    return None


def _judge_ledger(cell: Cell) -> str | None:
    """Something is released, no more than was promised, and the same client by client and in blocks."""
    found, alone = train(cell), train(cell._replace(engine="inline"))
    if not found.ledger:
        return "something is released, and the ledger has nothing"
    if found.ledger != alone.ledger:
        return "in blocks it has another ledger"
    kept = 0 < found.spent <= found.promised * (1 + 1e-9)
    return None if kept else f"the ledger has {found.spent}, and {found.promised} was promised"


@pytest.mark.parametrize("values", LATE, ids=lambda values: " + ".join(value for _, value in values))
def test_what_is_refused_late_is_refused_before_anyone_is_contacted_too(values: tuple[Choice, ...]) -> None:
    seen = Counting()
    with pytest.raises(AtollError, match=LATE[values]):
        _simulate(list(Cell(**dict(values)).parts.items()), seen)
    assert (
        seen.contacts == 0 or "DoubleMasked" in dict(values).values()
    )  # there the clients refuse, and nothing is released


def failures(cells: Any) -> dict[Cell, str]:
    wrong = {}
    for cell in cells:
        try:
            said = judge(cell)
        except AtollError as refused:
            said = f"it is refused, though each two of its parts go together: {refused}"
        if said:
            wrong[cell] = said
    return wrong


@pytest.mark.parametrize("name", kinds())
def test_each_two_that_go_together_train_in_a_cell(name: str) -> None:
    assert failures(cover()[name]) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", kinds())
def test_every_algorithm_trains_with_each_two_others(name: str) -> None:
    assert failures(every_two(name)) == {}


def test_the_cells_hold_each_two_values_that_are_wanted() -> None:
    cells = [cell for of_one in cover().values() for cell in of_one]
    held = {frozenset(two) for cell in cells for two in combinations(zip(AXES, cell, strict=True), 2)}
    assert set(wanted_pairs()) - held == set()
    assert [cell for cell in cells if not is_accepted(cell.parts)] == []


@pytest.mark.parametrize("name", WHOLE)
def test_those_without_mini_batches_refuse_them(name: str) -> None:
    def composed() -> None:
        algorithm = replace(example(kinds()[name]), batch_size=4)
        Training(model=model_of(name), algorithm=algorithm, rounds=1).learner(two_classes())

    with pytest.raises((ConfigError, CompositionError), match="batch_size=4"):
        composed()


def model_of(name: str) -> Any:
    if name == "SufficientStatistics":
        return pytest.importorskip("sklearn.naive_bayes").GaussianNB()
    return atoll.models.linear(4, 2, l2=0.01)


# ---------------------------------------------------------------------- where it ends

COMPOSITIONS: dict[str, dict[str, str]] = {
    "alone": {},
    "upcycled": {"wrapper": "Upcycled"},
    "server optimised": {"wrapper": "ServerOptimised"},
    "quantised": {"uplink": "QSGD"},
    "error feedback": {"uplink": "ErrorFeedback(TopK)"},
    "gossip": {"topology": "Gossip"},
}
_LEFT = "what it sends does not vanish at the optimum, and so neither does what error feedback keeps back"
FLOORS = {
    **{(name, "error feedback"): _LEFT for name in ("DANE", "DINGO", "FedSGD", "GIANT", "Mime", "MimeSVRG")},
    **{(name, "error feedback"): "a point that is sent anew, with the last one's leftovers" for name in ("AndersonADMM", "FastADMM")},
}  # fmt: skip
"""``(algorithm, composition) -> reason``: methods that are unbiased alone and end beside the optimum there."""
DIM = 3
QUADRATICS = quadratics(3, DIM, seed=1)


def gap(model: Any) -> float:
    """How far the mean of the quadratics is above its minimum."""
    w = np.asarray(model)
    matrix, target = (np.mean([np.asarray(QUADRATICS.shard(k)[at]) for k in range(3)], axis=0) for at in ("x", "y"))
    return float(w @ (0.5 * matrix @ w - target) - minimiser(QUADRATICS)[1])


def near() -> float:
    """FedAvg with five local steps of 0.1 ends at 0.17 of the start's gap, with steps of 0.05 at 0.05."""
    return 2e-3 * gap(np.zeros(DIM))


def trained(parts: dict[str, Any], rounds: int, seen: Counting | None = None) -> np.ndarray:
    """The model after so many rounds on the quadratics."""
    few = Evaluation(every=rounds)
    job = Training(model=Quadratic(DIM), selection=Everyone(), rounds=rounds, evaluation=few, **parts)
    return np.asarray(atoll.simulate(job, QUADRATICS, engine="inline", devices=seen).model)


def goes_down(name: str, composition: str, seen: Counting) -> None:
    """Six rounds on two classes beat the model that knows nothing: their loss over all rows."""
    parts = compose(COMPOSITIONS[composition], make_exact(name))
    job = Training(model=model_of(name), selection=Everyone(), rounds=6, **parts)
    run = atoll.simulate(job, two_classes(), engine="inline", devices=seen)
    assert run.metrics.last("test/loss") < 0.995 * np.log(2.0)


def goes_there(name: str, composition: str, seen: Counting) -> None:
    """Near the optimum if it is unbiased; wrappers that move the model make another training of it."""
    algorithm, parts = make_exact(name), COMPOSITIONS[composition]
    exact = algorithm.card.unbiased
    rounds = (16 if exact else 8) * (2 if composition == "upcycled" else 1)
    rounds += rounds // 2 if composition == "error feedback" else 0
    end = gap(trained(compose(parts, algorithm), rounds, seen))
    if (name, composition) in FLOORS:
        assert end > near(), "it gets there: take it out of FLOORS"
    else:
        assert end < (near() if exact else 0.75 * gap(np.zeros(DIM))), end
    if "wrapper" in parts:
        contacts = (
            3 if name == "FedSSO" else 2
        )  # where its second secant step ends does not depend on how long the first was
        moved = trained(compose(parts, algorithm), 2 * contacts - 1 if composition == "upcycled" else contacts)
        assert np.abs(moved - trained({"algorithm": algorithm}, contacts)).max() > 1e-6


@pytest.mark.every(5)  # a tenth of a second each, and 324 of them
@pytest.mark.parametrize(
    ("name", "composition"),
    [
        (name, composition)
        for name in kinds()
        for composition, parts in COMPOSITIONS.items()
        if is_accepted({"algorithm": name, **parts}) and (name, composition) not in BEGUN_ONLY
    ],
)
def test_it_comes_near_the_optimum_or_at_least_nearer(name: str, composition: str) -> None:
    """What is unbiased by its card comes near that of three unlike quadratics, but for `FLOORS`; what is not comes nearer than it began."""
    seen = Counting()
    (goes_down if name in NO_QUADRATICS else goes_there)(name, composition, seen)
    assert seen.contacts > 0


WITHOUT_A_SERVER = ("Gossip", "Cyclic", "Swarm")


@pytest.mark.every(4)
@pytest.mark.parametrize(
    ("topology", "name"),
    [
        (topology, name)
        for topology in WITHOUT_A_SERVER
        for name in sorted(set(algorithms.__all__) & set(kinds()) - set(NOT_THREE_CLASSES))
        if is_accepted({"algorithm": name, "topology": topology})
    ],
)
def test_it_descends_where_no_server_folds(topology: str, name: str) -> None:
    rounds = 6 if topology == "Gossip" else 4
    parts = compose({"topology": topology}, make_local(name))
    job = Training(
        model=Linear(4, 3),
        selection=Everyone(),
        rounds=rounds,
        evaluation=Evaluation(every=rounds, clients=0 if name in NOISY else -1),
        **parts,
    )
    last = atoll.simulate(job, islands((20, 30, 25, 15)), engine="inline", secret_seed=1).metrics[-1]
    # The global model of IFCA is one of several, and no client's: its clients' own losses are looked at.
    loss = last[{"IFCA": "loss", **dict.fromkeys(NOISY, "test/loss")}.get(name, "clients/loss")]
    assert loss < np.log(3) - (
        0.02 if topology == "Gossip" else 0.0
    )  # the start is zero, where each of three classes is as likely
    assert topology != "Gossip" or last["consensus"] < 3.0


@pytest.mark.every(4)  # one remedy for all; 48 rounds each
@pytest.mark.parametrize("name", sorted({name for name, _ in FLOORS}))
def test_differences_to_what_the_server_has_leave_no_floor(name: str) -> None:
    """EF21: Richtárik, Sokolov and Fatkhullin 2021, algorithm 2."""
    assert gap(trained({"algorithm": make_exact(name), "uplink": [Shift(TopK(0.5), a=1.0)]}, 48)) < near()


def test_what_has_settings_is_an_algorithm() -> None:
    assert {name for name, _ in FLOORS} | set(SETTINGS) | set(WHOLE) <= set(kinds())


# ---------------------------------------------------------------------- what is no pair of the lists


def test_statistics_inside_wrappers_are_refused_too() -> None:
    from atoll.algorithms import FirstOrderResidual, SufficientStatistics

    with pytest.raises(CompositionError, match="nothing to extrapolate"):
        Upcycled(base=FirstOrderResidual(base=SufficientStatistics()), coefficient=0.5)


def test_a_stage_before_a_compressor_that_packs_nothing_is_taken() -> None:
    from atoll.algorithms import FedPAQ
    from atoll.stages import Clip

    assert gap(trained({"algorithm": FedPAQ(lr=0.1, batch_size=None), "uplink": [Clip(10.0)]}, 4)) < 0.75 * gap(
        np.zeros(DIM)
    )


def test_statistics_of_a_model_with_gradients_are_refused_beforehand() -> None:
    seen = Counting()
    with pytest.raises(CompositionError, match="QuadraticLearner is trained by gradients and has no such statistics"):
        trained({"algorithm": atoll.algorithms.SufficientStatistics()}, 1, seen)
    assert seen.contacts == 0


def test_a_pass_of_other_algorithms_is_no_algorithm() -> None:
    from atoll.algorithms import FullGradient

    seen = Counting()
    with pytest.raises(CompositionError, match=r"FullGradient reply with nothing, and its server folds an update"):
        trained({"algorithm": FullGradient()}, 1, seen)
    with pytest.raises(CompositionError, match="FullGradient reply with nothing"):
        trained({"algorithm": Upcycled(base=FullGradient(), coefficient=0.3)}, 1, seen)
    assert seen.contacts == 0
