"""``atoll privacy``: epsilon and noise, as people and scripts type them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from atoll.cli.app import run

SGD = ("--mechanism", "gaussian", "--sampling", "poisson:0.04", "--steps", "2250", "--delta", "1e-5")


def answer(capsys, *words, code=0):
    assert run(["privacy", *map(str, words), "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_epsilon_is_the_golden_one_and_names_what_it_means(capsys):
    found = answer(capsys, "epsilon", *SGD, "--noise", 1.5)
    assert found["rdp"] == pytest.approx(7.3293, abs=5e-5)
    assert found["pld"] == pytest.approx(6.7688, abs=5e-5)
    assert (found["adjacency"], found["unit"], found["adversary"]) == ("add-remove", "user", "model")
    assert found["amplified"] is True


def test_a_server_that_draws_the_sample_learns_as_if_there_were_none(capsys):
    few = ("--mechanism", "gaussian", "--steps", "100", "--delta", "1e-5", "--noise", "2")
    sampled = answer(capsys, "epsilon", *few, "--sampling", "poisson:0.04", "--adversary", "server")
    everybody = answer(capsys, "epsilon", *few, "--sampling", "none", "--adversary", "server")
    assert sampled["amplified"] is False
    assert (sampled["rdp"], sampled["pld"]) == (everybody["rdp"], everybody["pld"])
    hidden = answer(
        capsys, "epsilon", *few, "--sampling", "poisson:0.04", "--adversary", "server", "--drawn-by", "party"
    )
    assert hidden["pld"] < 0.2 * everybody["pld"]
    assert run(["privacy", "epsilon", *few, "--sampling", "poisson:0.04", "--adversary", "server"]) == 0
    assert "The sampling does not count" in capsys.readouterr().out


def test_noise_inverts_epsilon(capsys):
    few = ("--mechanism", "gaussian", "--sampling", "fixed:40/1000", "--steps", "20", "--delta", "1e-5")
    cost = answer(capsys, "epsilon", *few, "--noise", 1.5)
    assert cost["adjacency"] == "replace-one"
    for accountant in ("rdp", "pld"):
        found = answer(capsys, "noise", *few, "--epsilon", cost[accountant], "--accountant", accountant)
        assert found["noise"] == pytest.approx(1.5, rel=1e-5)
        assert found[accountant] <= cost[accountant] * (1 + 1e-12)


def test_integer_noise_on_vectors_has_no_loss_distribution(capsys):
    words = ("epsilon", "--mechanism", "skellam", "--noise", 40, "--sensitivity", 5, "--values", 100, "--delta", "1e-5")
    found = answer(capsys, *words)
    assert found["pld"] is None
    assert found["rdp"] > 0
    one = answer(capsys, "epsilon", "--mechanism", "discrete-gaussian", "--noise", 40, "--delta", "1e-5")
    assert one["pld"] < one["rdp"]


@pytest.mark.parametrize(
    "words",
    [
        ("--mechanism", "magic", "--noise", 1),
        ("--mechanism", "gaussian", "--noise", 0),
        ("--mechanism", "gaussian", "--noise", 1, "--sampling", "fixed:9/4"),
        ("--mechanism", "gaussian", "--noise", 1, "--sampling", "poisson:2"),
        ("--mechanism", "gaussian", "--noise", 1, "--adversary", "nobody"),
        ("--mechanism", "gaussian", "--noise", 1, "--unit", "village"),
        ("--mechanism", "gaussian", "--noise", 1, "--delta", 2),
    ],
)
def test_nonsense_is_refused_with_a_remedy(capsys, words):
    found = answer(capsys, "epsilon", *(() if "--delta" in words else ("--delta", "1e-5")), *words, code=2)
    assert "use" in found["error"]["remedy"]


@pytest.mark.slow  # the golden size of the issue; tests/auditing has its quick siblings
def test_an_audit_of_a_thousand_canaries_catches_a_tenth_of_the_noise(capsys):
    honest = answer(capsys, "audit", "--epsilon", 4, "--canaries", 1000)
    assert honest["lower"] <= honest["claimed"] == pytest.approx(4.0, rel=1e-4)
    assert honest["confidence"] == 0.95
    weak = answer(capsys, "audit", "--epsilon", 4, "--canaries", 1000, "--sabotage", 0.1)
    assert weak["lower"] > weak["claimed"]
    assert weak["right"] <= weak["guesses"] == 500


def test_an_audit_of_own_data_says_what_it_means(capsys, tmp_path):
    draw = np.random.default_rng(0)
    np.savez(tmp_path / "own.npz", x=draw.normal(size=(40, 3)), y=draw.integers(0, 2, 40))
    found = answer(capsys, "audit", "--epsilon", 1, "--canaries", 40, "--data", tmp_path / "own.npz", "--rounds", 1)
    assert {"claimed", "lower", "confidence", "right", "guesses"} <= set(found)
    assert found["lower"] <= found["claimed"]
    assert (found["unit"], found["neighbours"], found["adversary"]) == ("user", "add-remove", "model")
    assert (
        answer(capsys, "audit", "--epsilon", 1, "--sabotage", 0, "--canaries", 10, code=2)["error"]["what"]
        == "factor=0.0"
    )


@pytest.mark.network
def test_a_study_writes_a_page_with_the_plot(capsys, tmp_path):
    page = tmp_path / "cost.html"
    few = ("--mechanism", "ExampleDP", "--parties", 3, "--rounds", 1, "--seeds", 1, "--report", page)
    found = answer(capsys, "study", "iris", "--epsilon", 8, *few)
    (point,) = found["points"]
    assert 0.0 <= point["accuracy"] <= 1.0
    assert "for one example" in point["claim"]
    assert "accuracy against epsilon" in page.read_text(encoding="utf-8")
    assert answer(capsys, "study", "nothing", code=2)["error"]
