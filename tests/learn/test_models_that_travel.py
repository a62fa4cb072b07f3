"""Cyclic weight transfer and swarm learning: equal to what they must equal, with clients that do not answer, and letters that nobody else reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import atoll
from atoll.algorithms import FedAdam, FedAvg, FedAvgM, Mime, Scaffold, Upcycled
from atoll.core.errors import CompositionError, ConfigError
from atoll.devices import Fleet, Recorded
from atoll.models import Linear
from atoll.models.quadratic import Quadratic, quadratics
from atoll.topology import Cyclic, RandomWalk, Star, Swarm
from tests.support.learn_toys import flat, islands

FULL: dict[str, Any] = {"lr": 0.01, "steps": 5, "batch_size": None}


def run(topology: Any, algorithm: Any = None, rounds: int = 4, devices: Any = None, **more: Any) -> Any:
    job = atoll.Training(
        model=Quadratic(20),
        algorithm=algorithm or FedAvg(**FULL),
        topology=topology,
        selection=atoll.Everyone(),
        rounds=rounds,
        evaluation=atoll.Evaluation(every=rounds),
        **more,
    )
    return atoll.simulate(job, quadratics(), engine="inline", seed=3, devices=devices)


def passed_on(orders: list[list[int]]) -> np.ndarray:
    """Cyclic weight transfer by hand: every client takes five steps from where the one before it stopped, and adds its update."""
    data, w = quadratics(), np.zeros(20)
    for order in orders:
        for k in order:
            h, b = np.asarray(data.shard(k).x), np.asarray(data.shard(k).y)
            local = w
            for _ in range(5):
                local = local - 0.01 * (h @ local - b)
            w = w + (local - w)
    return w


def drawn(seed: int, rounds: int) -> list[list[int]]:
    from atoll.core.algebra.rng import Rng

    stream = Rng.of(seed).child("main").child("program")
    return [stream.child("order", n).generator().permutation(len(quadratics())).tolist() for n in range(1, rounds + 1)]


def test_cyclic_is_the_hand_written_loop_to_the_bit():
    n = len(quadratics())
    np.testing.assert_array_equal(run(Cyclic()).params["w"], passed_on([list(range(n))] * 4))
    orders = drawn(3, 4)
    assert len({tuple(order) for order in orders}) == 4
    np.testing.assert_array_equal(run(Cyclic(order="shuffled")).params["w"], passed_on(orders))


def test_cyclic_visits_everybody_once_a_round_and_sends_one_model_a_visit():
    result, n = run(Cyclic()), len(quadratics())
    for row in result.metrics:
        assert (row["selected"], row["replied"], row["skipped"]) == (n, n, 0)
    model = 20 * 8
    assert n * model < result.metrics[-1]["bytes_up"] < n * (model + 640)  # a sealed letter and a short reply a visit


def test_cyclic_skips_clients_that_do_not_answer():
    """The last one that answered sends its model to the next, and waits if everybody is down."""
    n = len(quadratics())
    down = np.zeros((5, n), dtype=bool)
    down[1, [0, 3]] = True  # the very first, and one in the middle
    down[2, n - 1] = True  # the last
    down[3] = True
    result = run(Cyclic(), devices=Fleet(trace=Recorded(down, np.zeros(down.shape))))
    assert [row["replied"] for row in result.metrics] == [n - 2, n - 1, 0, n]
    assert [row["skipped"] for row in result.metrics] == [2, 1, n, 0]
    assert "is silent" in result.metrics[2]["failed"]
    visited = [np.flatnonzero(~down[number]).tolist() for number in range(1, 5)]
    np.testing.assert_array_equal(result.params["w"], passed_on(visited))


def test_cyclic_waits_where_the_holder_of_the_model_is_down():
    n = len(quadratics())
    down = np.zeros((4, n), dtype=bool)
    down[2, [0, n - 1]] = True  # the holder, and the one that it has sent its model to
    result = run(Cyclic(), rounds=3, devices=Fleet(trace=Recorded(down, np.zeros(down.shape))))
    assert [row["replied"] for row in result.metrics] == [n, 0, n]
    np.testing.assert_array_equal(result.params["w"], passed_on([list(range(n))] * 2))


@pytest.mark.quick("fixed-*", "shuffled-Scaffold")
@pytest.mark.parametrize(
    "algorithm",
    [FedAvg(**FULL), Scaffold(**FULL), FedAvgM(**FULL), FedAdam(**FULL), Mime(**FULL)],
    ids=lambda a: type(a).__name__,
)
@pytest.mark.parametrize("order", ["fixed", "shuffled"])
def test_swarm_is_the_star_to_rounding(algorithm: Any, order: Any):
    """Whoever aggregates, and with several phases and a server's momentum too."""
    star, swarm = run(Star(), algorithm), run(Swarm(order=order), algorithm)
    np.testing.assert_allclose(swarm.params["w"], star.params["w"], rtol=1e-10, atol=1e-12)
    assert [row["replied"] for row in swarm.metrics] == [row["replied"] for row in star.metrics]


def test_swarm_draws_the_mini_batches_of_the_star():
    data = islands((12, 9, 15, 10))
    job = atoll.Training(
        model=Linear(4, 3), algorithm=FedAvg(lr=0.1, epochs=2, batch_size=4), selection=atoll.Everyone(), rounds=3
    )
    star, swarm = (atoll.simulate(job.replace(topology=t), data, engine="inline", seed=5) for t in (Star(), Swarm()))
    np.testing.assert_allclose(flat(swarm.params), flat(star.params), rtol=1e-10, atol=1e-12)
    for ours, theirs in zip(swarm.metrics, star.metrics, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-9)


def test_the_role_of_the_aggregator_moves_on():
    n = len(quadratics())
    assert [row["aggregator"] for row in run(Swarm(), rounds=n + 2).metrics] == [*range(n), 0, 1]
    assert len({row["aggregator"] for row in run(Swarm(order="shuffled"), rounds=n).metrics}) > 2


def test_swarm_goes_on_without_its_aggregator():
    """The replies are sent again to the next one: nothing is lost of those that trained."""
    n = len(quadratics())
    down = np.zeros((5, n), dtype=bool)
    down[1, 0] = True  # aggregator of round 1
    down[2, [1, 2]] = True  # of round 2, and its deputy
    trace = Fleet(trace=Recorded(down, np.zeros(down.shape)))
    swarm = run(Swarm(), devices=trace)
    assert [row["aggregator"] for row in swarm.metrics] == [1, 3, 2, 3]
    assert [row["replied"] for row in swarm.metrics] == [n - 1, n - 2, n, n]
    star = run(Star(), devices=trace, pacing=atoll.Synchronous(on_failure="skip"))
    np.testing.assert_allclose(swarm.params["w"], star.params["w"], rtol=1e-10, atol=1e-12)


def test_a_round_without_anybody_is_named_and_the_next_goes_on():
    n = len(quadratics())
    down = np.zeros((4, n), dtype=bool)
    down[2] = True
    result = run(Swarm(), rounds=3, devices=Fleet(trace=Recorded(down, np.zeros(down.shape))))
    assert [row.get("failed") for row in result.metrics] == [None, "no client could aggregate", None]
    np.testing.assert_allclose(result.params["w"], run(Star(), rounds=2).params["w"], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("topology", [Cyclic(), Swarm()], ids=lambda t: type(t).__name__)
def test_the_server_is_never_sent_a_model_except_the_one_it_evaluates(topology: Any):
    """What clients reply to the server has no arrays: models travel in letters, which are encrypted where the world's sealing is real."""
    from atoll.core.federation.federation import Federation

    seen: list[Any] = []
    plain = Federation.exchange

    async def listening(self: Any, parties: Any, task: Any, message: Any = None, **rest: Any) -> Any:
        found = await plain(self, parties, task, message, **rest)
        seen.append((task.name, message, found.values))
        return found

    patch = pytest.MonkeyPatch()
    with patch.context() as patched:
        patched.setattr(Federation, "exchange", listening)
        run(topology, rounds=2)
    assert len(seen) >= 4
    assert not any(isinstance(leaf, np.ndarray) for _, *said in seen for leaf in _leaves(said))


def _leaves(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        return [leaf for value in tree.values() for leaf in _leaves(value)]
    if isinstance(tree, list | tuple):
        return [leaf for value in tree for leaf in _leaves(value)]
    return [tree]


def test_an_unknown_order_is_refused():
    for kind in (Cyclic, Swarm):
        with pytest.raises(ConfigError, match=rf"order='sorted'.*{kind.__name__}.*fixed, shuffled"):
            kind(order="sorted")


@pytest.mark.parametrize("topology", [Cyclic(), RandomWalk()], ids=lambda t: type(t).__name__)
def test_rounds_of_the_server_alone_are_refused_where_a_visit_is_a_round(topology: Any):
    """Of four clients, two trained in every round and two never; under ExampleDP, two rounds spent an epsilon of 3.52 where 2.49 was promised."""
    with pytest.raises(
        CompositionError, match=rf"{type(topology).__name__}: Upcycled leaves some rounds to the server alone"
    ):
        run(topology, Upcycled(base=FedAvg(**FULL), coefficient=0.3), rounds=1)
    assert len(run(Star(), Upcycled(base=FedAvg(**FULL), coefficient=0.3), rounds=2).metrics.rows) == 2
