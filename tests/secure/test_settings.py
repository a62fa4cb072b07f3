"""Every setting of a secure reducer and of a coded stage can be given in a configuration, and comes back as it was."""

from __future__ import annotations

import dataclasses

import pytest
from pydantic import ValidationError

from atoll.reducers import Enclave, Encrypted, SecureAggregation
from atoll.runs.parts import part_class
from atoll.runs.registries import registry
from atoll.secure import FixedPoint, SimulatedAttestation
from atoll.secure.encrypted import BFV, Paillier

REDUCERS = (
    "BoundedSum",
    "Enclave",
    "Encrypted",
    "MultiRound",
    "OneShot",
    "SecureAggregation",
    "SecureIndexing",
    "SecureTree",
    "TwoServers",
)


def made(kind, given):
    return part_class(kind).model_validate(given).build("here")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("reducer", name) for name in REDUCERS),
        ("uplink stage", "ScalarQuantizer"),
        ("uplink stage", "ProductQuantizer"),
    ],
)
def test_a_configuration_knows_every_setting(kind, name):
    _, part = registry(kind).find(name)
    assert set(registry(kind).schema(part).names) == {field.name for field in dataclasses.fields(part) if field.init}
    config = part_class(kind).model_validate(name)
    assert config.build("here") == part()
    assert part_class(kind).model_validate(config.model_dump()).build("here") == part()


def test_a_scheme_is_a_word_or_a_part_with_settings():
    assert made("reducer", {"name": "Encrypted", "scheme": "paillier"}) == Encrypted("paillier")
    assert made("reducer", {"name": "Encrypted", "scheme": {"name": "bfv"}}) == Encrypted(BFV())
    own = {"name": "Encrypted", "scheme": {"name": "Paillier", "key_bits": 3072}, "keys": "threshold", "threshold": 0.6}
    assert made("reducer", own) == Encrypted(Paillier(3072), keys="threshold", threshold=0.6)
    with pytest.raises(ValidationError, match="validation error") as caught:
        made("reducer", {"name": "Encrypted", "scheme": "rot13"})
    (problem,) = caught.value.errors()[0]["ctx"]["problems"]
    assert (problem.loc, problem.remedy) == (("scheme",), "use one of bfv, ckks, paillier, batchcrypt")


def test_a_codec_and_an_attestation_are_sections():
    given = {
        "name": "SecureAggregation",
        "codec": {"value_bits": 16, "max_weight": 512.0},
        "neighbours": "auto",
        "loss": 0.1,
    }
    assert made("reducer", given) == SecureAggregation(
        codec=FixedPoint(16, max_weight=512.0), neighbours="auto", loss=0.1
    )
    given = {"name": "Enclave", "attestation": {"name": "SimulatedAttestation", "measurement": "mine"}}
    assert made("reducer", given) == Enclave(attestation=SimulatedAttestation("mine"))
