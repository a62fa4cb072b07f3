"""``atoll fit``: federated, alone and pooled, as people and scripts type it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import Ridge

from atoll.cli.app import run
from atoll.fitting import FittedModel


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    draw = np.random.default_rng(0)
    x = np.concatenate([draw.normal(size=(90, 2)), draw.normal(size=(90, 2)) + 4])[draw.permutation(180)]
    table = pd.DataFrame(x, columns=["p", "q"]).assign(
        y=(x.sum(axis=1) > 4).astype(int), time=np.ceil(draw.exponential(9, 180)), event=draw.integers(0, 2, 180)
    )
    for name, rows in {"north": slice(0, 80), "south": slice(80, 180)}.items():
        table[rows].to_csv(tmp_path / f"{name}.csv", index=False)
    return tmp_path


def asked(folder: Path, method: str, *more: str) -> list[str]:
    return ["fit", method, str(folder / "north.csv"), str(folder / "south.csv"), *more, "--json"]


def found(capsys: Any, *words: Any) -> dict[str, Any]:
    assert run(asked(*words)) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


PAIR = ("--columns", "p,q")
CALLS: dict[str, tuple[str, ...]] = {
    "ridge": ("--label", "q", "--columns", "p"),
    "glm": (*PAIR, "--label", "y", "--set", "alpha=1"),
    "bayes": (*PAIR, "--label", "y"),
    "svm": (*PAIR, "--label", "y"),
    "pca": (*PAIR, "--set", "components=1", "--scale", "standard"),
    "svd": (*PAIR, "--set", "components=1"),
    "kmeans": (*PAIR, "--set", "clusters=2"),
    "gmm": (*PAIR, "--set", "components=2"),
    "cox": PAIR,
    "km": (),
}


@pytest.mark.parametrize("method", CALLS)
def test_a_federation_finds_what_all_rows_give(capsys: Any, folder: Path, method: str) -> None:
    told = found(capsys, folder, method, *CALLS[method])
    assert set(told["alone"]) == {"north", "south"}
    if method == "svm":
        assert abs(told["federated"] - told["pooled"]) <= 0.03
        return
    assert told["difference"] < 1e-8
    assert told["federated"] == pytest.approx(told["pooled"], rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    ("method", "more", "said"),
    [
        ("glm", ("--set", "alpha=0.1"), ["column", "estimate", "error", "low", "high", "p"]),
        ("cox", (), ["ratio", "ratio low", "ratio high"]),
        ("km", (), ["at risk", "survival", "median"]),
        ("kmeans", (), ["cluster", "rows"]),
    ],
)
def test_people_read_what_r_prints(
    capsys: Any, folder: Path, method: str, more: tuple[str, ...], said: list[str]
) -> None:
    words = [*asked(folder, method, *CALLS[method], *more)[:-1], "--html", str(folder / "page.html")]
    assert run(words) == 0
    told = capsys.readouterr()
    assert all(word in told.out for word in said)
    assert "Page:" in told.err
    assert ("<svg" in (folder / "page.html").read_text().split("<h2>")[1]) == (method != "kmeans")
    compared = (folder / "page.html").read_text().partition("Alone, federated, pooled</h2>")[2]
    assert re.findall(r"<td>([^<]+)</td>", compared)[:3] == ["north alone", "south alone", "federated"]


def test_coefficients_as_r_has_them_are_in_the_answer(capsys: Any, folder: Path) -> None:
    told = found(capsys, folder, "glm", *CALLS["glm"], "--set", "alpha=0.1")
    assert list(told["coefficients"]) == ["p", "q", "(intercept)"]
    for name, one in told["coefficients"].items():
        assert set(one) == {"estimate", "error", "low", "high", "p"}
        assert told["pooled_coefficients"][name]["error"] == pytest.approx(one["error"], rel=1e-6)
    assert (told["rank"], told["difference"] < 1e-9) == (2, True)
    assert told["condition"] > 1
    (curve,) = found(capsys, folder, "km")["curves"].values()
    assert len(curve["time"]) == len(curve["survival"]) == len(curve["high"])


def test_without_the_library_people_read_how_to_install_it(
    capsys: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [one for one in sys.modules if one.startswith("statsmodels")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "statsmodels", None)
    assert run([word for word in asked(folder, "glm", *CALLS["glm"]) if word != "--json"]) == 0
    assert 'pip install "atoll[compare]"' in capsys.readouterr().err


def test_sums_alone_give_the_same_and_the_model_is_saved(capsys: Any, folder: Path) -> None:
    told = found(
        capsys, folder, "ridge", *CALLS["ridge"], "--set", "alpha=0.5", "--secure", "--out", str(folder / "m.json")
    )
    assert told["difference"] < 1e-10
    whole = pd.concat([pd.read_csv(folder / f"{name}.csv") for name in ("north", "south")])
    pooled = Ridge(alpha=0.5).fit(whole[["p"]], whole.q)
    assert told["federated"] == pytest.approx(pooled.score(whole[["p"]], whole.q))
    np.testing.assert_allclose(FittedModel.load(told["model"]).predict(whole), pooled.predict(whole[["p"]]))


def test_other_columns_of_a_file_do_not_matter_if_the_command_names_those_it_uses(capsys: Any, folder: Path) -> None:
    wanted = found(capsys, folder, "glm", *CALLS["glm"])
    south = pd.read_csv(folder / "south.csv")
    south[south.columns[::-1]].assign(note="x", q2=1.5).to_csv(folder / "south.csv", index=False)
    again = found(capsys, folder, "glm", *CALLS["glm"])
    # An eigenvalue may differ in its last digit, as rows lie elsewhere in memory.
    conditions = [one["params"].pop("condition") for one in (again, wanted)]
    assert conditions[0] == pytest.approx(conditions[1], rel=1e-12)
    assert again["params"] == wanted["params"]
    assert again["federated"] == wanted["federated"]
    assert run(asked(folder, "glm", "--label", "y")) != 0
    said = json.loads(capsys.readouterr().out)["error"]
    assert "is in no other table" in said["what"]
    assert said["where"] == f"table '{folder / 'south.csv'}'"
    assert "--columns" in said["remedy"]
    south.rename(columns={"q": "qq"}).to_csv(folder / "south.csv", index=False)
    assert run(asked(folder, "glm", *CALLS["glm"])) != 0
    assert "no column 'q'. Did you mean 'qq'?" in json.loads(capsys.readouterr().out)["error"]["what"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("forest",), "no method 'forest'"),
        (("kmeans", "--set", "clusters"), "--set clusters"),
        (("kmeans", "--set", "k=3"), "k"),
        (("kmeans", "--secure", *PAIR), "each party's own clusters are no sum"),
        (("glm",), "GLM needs a label"),
        (("km", "--out", "no/such/m.json"), "there is no such folder"),
        (("km", "--html", "no/such/m.html"), "--html no/such/m.html: there is no such folder"),
        (("km", "--min-count", "5"), "times of single rows would be told"),
    ],
)
def test_what_cannot_be_is_said(capsys: Any, folder: Path, words: tuple[str, ...], said: str) -> None:
    assert run(asked(folder, *words)) != 0
    assert said in json.loads(capsys.readouterr().out)["error"]["what"]
