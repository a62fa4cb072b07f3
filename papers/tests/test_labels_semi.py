"""`labels-semi`: what is judged, from scores; and scores that are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import atoll
from atoll.core.errors import ConfigError
from atoll.reproduce import Interrupted, Lab, find_entry
from atoll.runs import Stopping
from atoll_papers.labels import semi
from atoll_papers.labels.semi import TrialSize, scores

SCALE = TrialSize(rows=10, parties=2, cohort=1, rounds=2, seeds=2, warm_up=1)


def judged(monkeypatch: pytest.MonkeyPatch, right: dict[str, list[float]]) -> dict[str, Any]:
    """Return the claims when trainings have these accuracies, by seed; one that is not named has .5, and traffic that follows its name."""

    def found(lab: Lab, name: str, scale: TrialSize, make: Any) -> list[dict[str, Any]]:
        traffic = {"pool-few": 1e6, "pool-all": 3e6, "pool-bandit": 2e6, "predictions-models": 9e6}.get(name, 1e3)
        made = []
        for value in right.get(name, [0.5, 0.5]):
            row = {"test/accuracy": value, "bytes_up": traffic}
            rounds = [
                {**row, "test/accuracy": 0.7, "tau": 0.7, "pool_used": 0.9},
                {**row, "tau": 0.95, "pool_used": 0.4},
            ]
            made.append({"last": row, "rounds": rounds})
        return made

    monkeypatch.setattr(semi, "scores", found)
    return {claim.claim: claim for claim in find_entry("labels-semi").run(Lab(Path("nowhere")), False)}


def test_what_the_survey_says_is_judged_seed_by_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = {
        "server-SemiFL": [0.9, 0.8], "alone-strong": [0.7, 0.7], "server-FedMatch": [0.6, 0.85], "classes-FedPU": [0.3, 0.3],
        "taught": [0.8, 0.7], "forgetting": [0.1, 0.2],
        "pool-bandit": [0.6, 0.6], "pool-all": [0.61, 0.61], "pool-few": [0.55, 0.4],
    }  # fmt: skip
    found = judged(monkeypatch, right)
    verdicts = {claim.partition(":")[0]: made.verdict for claim, made in found.items()}
    assert verdicts["unlabelled rows help"] == "holds"
    assert verdicts["SemiFL is more competitive than FedMatch"] == "undecided", "the seeds disagree"
    assert verdicts["FedPU outperforms FedMatch where clients label a part of the classes"] == "does not hold"
    assert verdicts["rounds on unlabelled rows alone forget what labels taught"] == "holds"
    assert verdicts["fewer clients a round cost less communication"] == "holds"
    assert verdicts["a higher threshold leaves out more of the server's rows"] == "holds"
    assert verdicts["a bandit over both balances accuracy and cost"] == "holds"
    assert verdicts["predictions cost less communication than parameters"] == "holds"
    worse = judged(monkeypatch, {**right, "pool-all": [0.7, 0.7]})
    kept = judged(monkeypatch, {**right, "forgetting": [0.9, 0.8]})
    assert kept["rounds on unlabelled rows alone forget what labels taught"].verdict == "does not hold"
    assert worse["a bandit over both balances accuracy and cost"].verdict == "does not hold"


def test_nothing_is_judged_that_is_not_kept(tmp_path: Path) -> None:
    claims = find_entry("labels-semi").run(Lab(tmp_path, kept=True), False)
    assert {claim.verdict for claim in claims} == {"not run"}
    assert len(claims) == 13


def tiny(seed: int) -> Any:
    data = atoll.data.iid(atoll.data.iris(), parties=2, seed=seed)
    return atoll.Training(model=atoll.models.linear(4, 3), algorithm=atoll.FedAvg(lr=0.1), rounds=1), data


def test_a_score_is_kept_and_an_interrupted_run_keeps_the_others(tmp_path: Path) -> None:
    made = scores(Lab(tmp_path), "tiny", SCALE, tiny)
    assert made is not None
    assert [set(one["rounds"][0]) >= {"test/accuracy", "bytes_up"} for one in made] == [True, True]
    assert scores(Lab(tmp_path, kept=True), "tiny", SCALE, lambda seed: pytest.fail("it is kept")) == made
    stopping = Stopping()
    stopping.ask()
    with pytest.raises(Interrupted, match="other-10-2-0"):
        scores(Lab(tmp_path, stopping), "other", SCALE, tiny)


def test_a_view_that_is_not_there_is_refused() -> None:
    from atoll_papers.labels.semi import _view

    assert _view("no") is None
    with pytest.raises((ConfigError, AttributeError), match="loud"):
        _view("loud")


def test_methods_train_on_rows_without_labels_where_the_survey_does() -> None:
    from atoll.labels import FixMatch

    made = semi._on_any_rows(FixMatch)(lr=0.1, horizon=3)
    assert made.label_holders == ()
    assert FixMatch(lr=0.1).label_holders == ("clients",)
    assert repr(made) == repr(FixMatch(lr=0.1, horizon=3))
