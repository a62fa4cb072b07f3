"""What a model of one's own has to say, and how parties scale their columns."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll
from atoll.core.errors import AtollError
from atoll.runtime.job_spec import JobConfig
from atoll.secure.encrypted import Paillier
from atoll.vertical import SecureBoost, Vertical, VerticalModel
from atoll.vertical.model import ColumnScales, model_named


class SumOfColumns(VerticalModel):
    """Adds all columns up; the weight of each is 1."""

    precision = np.float64
    security = "none"

    def learns(self):
        return {"guest": ["sums of rows"], "host": []}

    async def train_guest(self, rows, peers, hosts, **more):
        return {}

    async def train_host(self, x, peers, guest, **more):
        return {}

    def train_pooled(self, rows):
        return {}

    @classmethod
    def answer(cls, part, x):
        return {"sum": x.sum(axis=1)}

    @classmethod
    def read_answer(cls, part, message, rows, host, name):
        return message["sum"]

    @classmethod
    def margins(cls, part, x, answers):
        return (x.sum(axis=1) + sum(answers))[:, None]


def test_a_model_of_ones_own_has_its_precision():
    rng = np.random.default_rng(0)
    ids, x = np.arange(200), rng.normal(size=(200, 3))
    parties = {
        "bank": {"id": ids, "a": x[:, 0], "y": x.sum(axis=1)},
        "shop": {"id": ids[::-1], "b": x[::-1, 1]},
        "mall": {"id": ids, "c": x[:, 2] + 1e9},
    }
    run = atoll.simulate(Vertical(model=SumOfColumns()), parties, engine="inline", progress=False)
    told = run.predictions
    order = told["id"].astype(np.int64)
    np.testing.assert_array_equal(told["alone"][:, 0], x[order, 0])
    np.testing.assert_allclose(told["federated"][:, 0], x[order].sum(axis=1) + 1e9, rtol=0, atol=1e-6)
    assert told["federated"].dtype == np.float64
    np.testing.assert_array_equal(run.predict(parties)[order], told["federated"][:, 0])


@pytest.mark.parametrize("name", ["SumOfColumns", "VerticalResult", "nothing", "train_pooled"])
def test_a_saved_part_of_an_unknown_model_is_refused(name):
    with pytest.raises(AtollError, match=f"a part of a model '{name}'"):
        model_named(name)


@given(st.integers(0, 1000), st.sampled_from([0.0, 1e9, -1e6]), st.sampled_from([1e-9, 1.0, 1e9]))
def test_scaled_columns_know_no_offset_and_no_scale(seed, offset, scale):
    x = np.random.default_rng(seed).normal(size=(40, 1)) * scale
    x[::7] = np.nan
    plain, moved = (ColumnScales.of(each).apply(each) for each in (x, x + offset * scale))
    np.testing.assert_allclose(moved, plain, atol=1e-6)
    assert abs(plain[~np.isnan(x)].mean()) < 1e-12
    assert plain[~np.isnan(x)].std() == pytest.approx(1)
    assert (plain[np.isnan(x)] == 0).all()


def test_columns_without_a_spread_are_zero():
    x = np.array([[1e9 + 0.1, np.nan, 5.0]] * 30)
    assert (ColumnScales.of(x).apply(x) == 0).all()


def test_a_setting_that_is_one_class_alone_travels_without_its_name():
    """The cipher of `SecureBoost` can only be Paillier, so that a configuration gives its settings alone."""
    model = SecureBoost(cipher=Paillier(key_bits=3072))
    told = JobConfig.of(Vertical(model=model, guest="a"), name="v", sites=["a", "b"]).model_dump(exclude_defaults=True)
    assert told["model"]["name"] == "SecureBoost"
    assert told["model"]["cipher"] == {"key_bits": 3072, "insecure": False}
