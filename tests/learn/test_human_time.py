"""Human time: rounds in seconds of real devices (Youn, Kumar, Abernethy 2022, section 6; constants of the field guide, Wang et al. 2021)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll
from atoll.core.errors import ConfigError
from atoll.learn import Evaluation, Training
from atoll.learn.metrics import HumanTime
from atoll.selection import Everyone
from atoll.topology import Gossip, Ring
from tests.support.learn_toys import islands

amounts = st.floats(0, 1e9)


def test_a_round_by_hand():
    # 16 clients, 7,840 numbers of 32 bits each way: 16 * 31,360 B = 501,760 B; / 0.75e6 + / 0.25e6 = 2.676 s; and 10 s.
    size = 16 * 7840 * 4
    assert HumanTime().communication(size, size) == pytest.approx(2.6760533)
    assert HumanTime().seconds(size, size, 0.3) == pytest.approx(2.6760533 + 2.1 + 10.0)


@given(amounts, amounts, st.floats(0, 1e4))
def test_the_simulated_time_comes_back(down, up, simulated):
    made = HumanTime(server=2.0)
    assert made.simulated_in(made.seconds(down, up, simulated), down, up) == pytest.approx(simulated, abs=1e-4)


@given(amounts, amounts, st.integers(1, 50), st.integers(1, 50))
def test_time_grows_with_the_devices_that_share_the_link(down, up, seen, devices):
    row = {"bytes_down": down, "bytes_up": up, "selected": seen, "replied": seen}
    alone, shared = HumanTime().of(row), HumanTime(devices=devices).of(row)
    assert (shared - 10.0) * seen == pytest.approx((alone - 10.0) * devices, rel=1e-6, abs=1e-6)


def test_devices_scale_each_way_by_who_was_there():
    row = {"bytes_down": 100.0, "bytes_up": 60.0, "selected": 10, "replied": 6}
    made = HumanTime(down=1.0, up=1.0, constant=0.0, devices=20)
    assert made.of(row) == pytest.approx(200.0 + 200.0)


def test_a_round_of_the_server_alone_takes_the_servers_time():
    row = {"bytes_down": 0, "bytes_up": 0, "selected": 0, "replied": 0}
    assert HumanTime(server=3.0, simulated=1.0).of(row) == 3.0
    assert HumanTime(server=3.0, devices=4).of(row) == 3.0


def test_the_column_adds_up():
    rows = [{"bytes_down": 0.75e6 * i, "bytes_up": 0.0, "selected": 1, "replied": 1} for i in (1, 2, 3)]
    made = HumanTime(simulated=1.0)
    assert made.column(rows) == pytest.approx([18.0, 37.0, 57.0])
    assert made.column(rows, 0.0) == pytest.approx([11.0, 23.0, 36.0])
    assert made.column(rows, [0.0, 1.0, 0.0]) == pytest.approx([11.0, 30.0, 43.0])
    with pytest.raises(ConfigError, match="2 simulated times for 3 rounds"):
        made.column(rows, [1.0, 1.0])


@pytest.mark.parametrize("topology", [atoll.topology.Star(), Gossip(graph=Ring())])
def test_the_history_has_it_where_it_is_asked_for(topology):
    job = Training(model=atoll.models.linear(4, 3), topology=topology, selection=Everyone(), rounds=2)
    data = islands([8, 8, 8, 8])
    assert "human_seconds" not in atoll.simulate(job, data, engine="inline").metrics.names
    timed = job.replace(evaluation=Evaluation(human_time=HumanTime(simulated=0.5)))
    for row in atoll.simulate(timed, data, engine="inline").metrics:
        assert row["human_seconds"] == pytest.approx(row["bytes_down"] / 0.75e6 + row["bytes_up"] / 0.25e6 + 13.5)
        assert row["bytes_up"] > 0


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"up": 0.0}, "up=0.0"),
        ({"down": -1.0}, "down=-1.0"),
        ({"ratio": -1.0}, "ratio=-1.0"),
        ({"constant": float("inf")}, "constant=inf"),
        ({"devices": 0}, "devices=0"),
    ],
)
def test_what_makes_no_sense_is_refused(settings, what):
    with pytest.raises(ConfigError, match=what):
        HumanTime(**settings)


def test_a_configuration_can_ask_for_it():
    from atoll.runs import parse_config, to_job

    said = {
        "data": {"source": "iris", "partition": {"name": "iid", "parties": 3}},
        "model": {"name": "linear", "features": 4, "outputs": 3},
        "evaluation": {"human_time": {"devices": 18, "simulated": 2.5}},
    }
    job, _ = to_job(parse_config(said))
    assert job.evaluation.human_time == HumanTime(devices=18, simulated=2.5)
