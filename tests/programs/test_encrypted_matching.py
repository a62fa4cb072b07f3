"""Divergences of profiles whose means stay encrypted: the same numbers, and nobody sees the means."""

from __future__ import annotations

import builtins
import sys

import numpy as np
import pytest

import atoll
from atoll.algorithms import FedAvg
from atoll.core import message as M
from atoll.core.errors import CompositionError, ConfigError, MissingExtraError, PolicyError
from atoll.core.federation.federation import Federation
from atoll.learn.learner import LearnerSettings, adapt
from atoll.learn.profiles import divergence, mean_weights, plain_part
from atoll.learn.selection.fedprof import divergences_of
from atoll.pacing import SAFA, FedBuff
from atoll.programs.surveys import EncryptedMatching
from atoll.secure.encrypted import squares
from atoll.selection import FedProf
from atoll.topology import Gossip, Hierarchical
from tests.support.fedprof_toys import profile, spoiled
from tests.support.learn_toys import flat

try:
    import tenseal  # noqa: F401

    missing = False
except ImportError:
    missing = True
needs_he = pytest.mark.skipif(missing, reason='TenSEAL is not installed: pip install "atoll[secure]"')


def terms_of(public, client, own):
    """What the key holder gets of a client's profile, and its scale."""
    return squares.masked_squares(
        public, squares.encrypt(public, client["mean"]), own["mean"], mean_weights(own["var"])
    )


def reports_of(model, data):
    """Profiles in the clear, of every client and of the server."""
    learner = adapt(model, LearnerSettings(algorithm=FedAvg()), data)
    params = learner.init(atoll.core.algebra.rng.Rng.of(0).child("init"))
    asked = {"profile": {"layer": "auto"}}
    clients = [learner.report_of(params, data.shard(i), asked)["profile"] for i in range(len(data))]
    return params, clients, learner.report_of(params, data.test, asked)["profile"]


@needs_he
@pytest.mark.parametrize("q", [1, 16, 300])
def test_decrypted_sums_are_the_divergences_in_the_clear(q):
    rng = np.random.default_rng(q)
    secret, public = squares.make_keys()
    for _ in range(3):
        client, own = profile(rng, q), profile(rng, q)
        terms, scale = terms_of(public, client, own)
        found = plain_part(client["var"], own["var"]) + scale * squares.open_sum(secret, terms)
        assert found == pytest.approx(divergence(client, own), abs=2e-4)


@needs_he
def test_dead_elements_are_scaled_and_not_lost():
    own = {"mean": np.array([0.0, 1.0]), "var": np.array([0.0, 1.0])}
    client = {"mean": np.array([0.5, 1.5]), "var": np.array([0.0, 2.0])}
    secret, public = squares.make_keys()
    terms, scale = terms_of(public, client, own)
    found = plain_part(client["var"], own["var"]) + scale * squares.open_sum(secret, terms)
    assert found == pytest.approx(divergence(client, own), rel=1e-5)


@needs_he
def test_a_federation_finds_the_divergences_and_the_server_sees_no_mean(monkeypatch):
    data, model = spoiled(parties=4), atoll.models.mlp(64, 10, hidden=(16,))
    params, clients, own = reports_of(model, data)
    replies, to_holder = [], []
    ask_all = Federation.ask_all

    async def watched(self, parties, task, message=None, **terms):
        found = await ask_all(self, parties, task, message, **terms)
        replies.extend(found.values)
        if parties.names == ["key-holder"]:
            to_holder.append(message)
        return found

    monkeypatch.setattr(Federation, "ask_all", watched)
    program = EncryptedMatching(model=model, params=params).program(data)
    found = atoll.simulate(program, data, engine="inline")
    assert found.clients == [f"client-{i}" for i in range(4)]
    expected = [divergence(told, own) for told in clients]
    np.testing.assert_allclose(found.divergences, expected, atol=found.error + 1e-4)
    # All that came to the server, as bytes: no two means of a client in float32, none in float64, and no key that opens one. (Four bytes alone are met
    # by chance in a megabyte of ciphertext.)
    view = M.encode({"view": replies})
    for told in clients:
        for i in range(15):
            assert told["mean"][i : i + 2].tobytes() not in view
            assert told["mean"][i].astype(np.float64).tobytes() not in view
        assert told["var"].tobytes() in view  # the search would have found them
    keys = [reply for reply in replies if isinstance(reply, np.ndarray) and reply.dtype == np.uint8]
    assert len(keys) == 1
    squares.require_public(keys[0], "the server")
    # Nor did the key holder get a client's ciphertext.
    sealed = [reply["mean"].tobytes() for reply in replies if isinstance(reply, dict)]
    assert len(sealed) == 4
    assert not {part.tobytes() for message in to_holder[1:] for part in message["sealed"]} & set(sealed)


@needs_he
def test_somebody_else_must_hold_the_key():
    data = spoiled(parties=2)
    program = EncryptedMatching(model=atoll.models.mlp(64, 10)).program(data)
    program.others = {}
    with pytest.raises(PolicyError, match="there is no party 'key-holder' apart from the clients to hold the key"):
        atoll.simulate(program, data, engine="inline")


def without_the_library(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.partition(".")[0] == "tenseal":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setitem(sys.modules, "tenseal", None)
    monkeypatch.setattr(builtins, "__import__", without)


def test_settings_that_cannot_be():
    model = atoll.models.mlp(64, 10)
    with pytest.raises(ConfigError, match="mask_bits=30"):
        EncryptedMatching(model=model, mask_bits=30)
    with pytest.raises(ConfigError, match="digits=9"):
        EncryptedMatching(model=model, digits=9)
    with pytest.raises(ConfigError, match=r"floor=0\.0"):
        EncryptedMatching(model=model, floor=0.0)
    with pytest.raises(ConfigError, match="the server has no data to compare clients with"):
        EncryptedMatching(model=model).program(spoiled(parties=2, test=False))


def test_the_plain_part_is_the_divergence_of_profiles_with_equal_means():
    rng = np.random.default_rng(0)
    client, own = profile(rng, 9), profile(rng, 9)
    same = {"mean": own["mean"], "var": client["var"]}
    assert plain_part(client["var"], own["var"]) == pytest.approx(divergence(same, own), rel=1e-9)


# ---------------------------------------------------------------- within FedProf's rounds


def prof_job(matching="encrypted", rounds=3, **parts):
    """One of some clients a round, half of whom have data that are none of the task."""
    rule = {"selection": FedProf(1, alpha=0.3, matching=matching), **parts}
    return atoll.Training(
        model=atoll.models.mlp(64, 10, hidden=(6,)),
        algorithm=FedAvg(lr=0.2),
        rounds=rounds,
        evaluation=atoll.Evaluation(participants=True),
        **rule,
    )


def cohorts(result):
    return [row["replied_clients"] for row in result.metrics]


@needs_he
@pytest.mark.slow
def test_fedprof_selects_the_same_clients_whether_profiles_are_encrypted_or_not(monkeypatch, tmp_path):
    """One run in the clear, one encrypted, and that one again, cut off after its second round and resumed with the key that it had."""
    data, memory = spoiled(parties=3), {}
    accept = FedProf.accept

    def watched(self, seen, state):
        memory[self.matching] = accept(self, seen, state)
        return memory[self.matching]

    def stop(row):
        if row["round"] == 2:
            raise KeyboardInterrupt("cut off")

    monkeypatch.setattr(FedProf, "accept", watched)
    clear, sealed = (
        atoll.simulate(prof_job(matching), data, seed=3, engine="inline") for matching in ("clear", "encrypted")
    )
    assert cohorts(clear) == cohorts(sealed)
    assert len({tuple(cohort) for cohort in cohorts(clear)}) > 1
    found, expected = memory["encrypted"]["divergence"], divergences_of(memory["clear"])
    np.testing.assert_allclose(found, expected, atol=2e-3)
    assert np.ptp(expected) > 0.05  # there is something to tell apart
    assert np.array_equal(memory["encrypted"]["version"], memory["clear"]["version"])
    assert sorted(memory["encrypted"]) == ["divergence", "key", "version", "who"]  # the server keeps no profile
    squares.require_public(memory["encrypted"]["key"], "the server")
    # Ciphertexts of 0.33 MB: from all three before the first round and from one after each; the key once. Who has the model is sent the key alone.
    up = [row["bytes_up"] for row in sealed.metrics]
    assert 3 * 331_000 + 1.8e6 < up[0] - up[1] < 3 * 450_000 + 1.9e6
    assert 331_000 < up[1] < 450_000
    with pytest.raises(KeyboardInterrupt, match="cut off"):
        atoll.simulate(prof_job(callbacks=[stop]), data, seed=3, engine="inline", folder=tmp_path)
    again = atoll.simulate(prof_job(), data, seed=3, engine="inline", folder=tmp_path, resume=True)
    assert cohorts(again) == cohorts(sealed)
    for one, other in ((clear, sealed), (sealed, again)):
        np.testing.assert_array_equal(flat(one.params), flat(other.params))


@needs_he
@pytest.mark.parametrize(
    ("parts", "match"),
    [
        (
            {"pacing": SAFA(resume=False)},
            "FedProf asks a round's cohort about one model, and SAFA lets clients work on models of several versions",
        ),
        ({"topology": Hierarchical(groups=2)}, "about the model of one server, and Hierarchical has rounds of its own"),
        (
            {"pacing": FedBuff()},
            "FedProf compares clients' reports about one model, and FedBuff lets clients work on several",
        ),
        ({"topology": Gossip()}, "FedProf compares what clients report, and Gossip has no server"),
    ],
)
def test_what_encrypted_matching_does_not_go_with(parts, match):
    with pytest.raises(CompositionError, match=match):
        atoll.simulate(prof_job(**parts), spoiled(parties=4))


def test_fedprof_refuses_settings_and_a_missing_library_before_anyone_is_contacted(monkeypatch):
    with pytest.raises(ConfigError, match="matching='sealed'"):
        FedProf(matching="sealed")
    with pytest.raises(ConfigError, match="lag=2 with matching='encrypted'"):
        FedProf(matching="encrypted", lag=2)
    without_the_library(monkeypatch)
    with pytest.raises(MissingExtraError, match=r'needs tenseal.*pip install "atoll\[secure\]"'):
        prof_job().learner(spoiled(parties=2))
