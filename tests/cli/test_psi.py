"""``atoll psi``: files of two parties, and what they share."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from atoll.cli.app import run
from atoll.core.requests.island import Secret
from atoll.secure.encrypted import Paillier
from atoll.secure.psi import RowKeys

Asked = Callable[..., dict]


@pytest.fixture
def psi(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Asked:
    """``psi(a, b, *words, code=0)``: the answer about two files of these texts, with the lines of the file that it wrote."""

    def asked(a: str, b: str, *words: str, code: int = 0) -> dict:
        for name, text in (("bank", a), ("shop", b)):
            (tmp_path / f"{name}.csv").write_text(text, encoding="utf-8")
        out = tmp_path / "f.csv"
        assert run(["psi", *(str(tmp_path / f"{name}.csv") for name in ("bank", "shop")), "--out", str(out), *words, "--json"]) == code  # fmt: skip
        found = json.loads(capsys.readouterr().out)
        return found if code else {**found, "lines": list(csv.reader(out.read_text(encoding="utf-8").splitlines()))}

    return asked


def test_it_is_the_plain_intersection_in_the_order_of_u(psi: Asked) -> None:
    left, right = (list(map(str, range(start, start + 40))) for start in (0, 25))
    found = psi("\n".join(["id", *left]), "\n".join(["id", *right]), "--seed", "3")
    wanted = [name for name in RowKeys.of({"id": left}, "id", seed=3).names if name in right]
    assert found["count"] == 15
    assert found["sum"] is None
    assert found["lines"] == [["id"], *([name] for name in wanted)]
    assert found["bytes"] > sum(2 * 40 * width for width in (32, 32, 8))
    assert found["seconds"] > 0
    assert found["predicted_seconds"] > 0
    assert found["predicted_bytes"] == pytest.approx(found["bytes"], rel=0.05)
    assert found["sizes"] == {"bank": 40, "shop": 40}


@pytest.mark.parametrize("result", ["ids", "count"])
def test_one_key_may_be_written_in_many_ways(psi: Asked, result: str) -> None:
    found = psi(
        'id\n7\n"caf\u00e9"\nu2\n', "\ufeffid,x\n 7,1\ncafe\u0301,2\nu2 ,3\nu2,4\nnull,5\n,6\n", "--result", result
    )
    assert found["count"] == 3


def test_repeats_are_one_key_and_null_matches_nothing(psi: Asked) -> None:
    found = psi("id\nu1\nu2\nu2\nu3\n", "id,x\nu2,1\nu2,2\nu3,3\nu9,4\n,5\n")
    assert sorted(found["lines"][1:]) == [["u2"], ["u3"]]


def test_rows_without_a_key_are_counted_by_party(psi: Asked) -> None:
    """Oracle: the blank, null and missing cells, counted by hand."""
    found = psi("id,b\nu1,1\nnull,2\n ,3\nu4,4\n", "id,x\nu1,1\n ,2\nu3,3\n")
    assert found["notices"] == [
        "2 of 4 rows of 'bank' have no key in 'id': they match no row of another party",
        "1 of 3 rows of 'shop' has no key in 'id': they match no row of another party",
    ]
    # Of a key of two columns either may be missing.
    found = psi("id,b\nu1,1\nu2,\n,3\n", "id,b\nu1,1\nu2,2\n", "--id", "id,b")
    assert found["notices"] == ["2 of 3 rows of 'bank' have no key in 'id' and 'b': they match no row of another party"]
    assert "notices" not in psi("id\nu1\n", "id\nu1\n")


def test_two_texts_of_one_number_need_a_word(psi: Asked) -> None:
    files = "id\n007\n7\n8\n", "id\n7\n8\n"
    error = psi(*files, code=3)["error"]
    assert "«007» at row 2 and «7» at row 3" in error["what"]
    assert "--key" in error["remedy"]
    assert psi(*files, "--key", "text")["lines"][1:] == psi("id\n7\n8\n", files[1])["lines"][1:]
    assert psi(*files, "--key", "number")["sizes"] == {"bank": 2, "shop": 2}
    assert psi("id\n007\n8\n", "id\n7\n8\n", "--key", "number")["count"] == 2
    with pytest.warns(UserWarning, match="1 key of bank and shop differs in zeros"):
        assert psi("id\n007\n8\n", "id\n7\n8\n", "--key", "text")["count"] == 1


@pytest.mark.parametrize(
    ("left", "right", "said"),
    [
        ("U2\nu2", "u2\nu3", "table of bank: 1 key differs from another key in capitals alone, first in rows 2 and 3"),
        ("U2\nu3", "u3\nu2", "1 key of bank and shop differs in capitals alone, first in row 2 of bank and row 3 of shop"),
        ("x\nB\nu3\nA", "u3\na\nb", "2 keys of bank and shop differ in capitals alone, first in row 3 of bank and row 4 of shop"),
    ],
)  # fmt: skip
def test_capitals_make_two_keys_and_a_warning(psi: Asked, left: str, right: str, said: str) -> None:
    with pytest.warns(UserWarning, match=said):
        assert psi(f"id\n{left}\n", f"id\n{right}\n")["count"] == 1


def test_nothing_shared_is_an_answer(psi: Asked) -> None:
    found = psi("id\n007\n", "id\nu9\n")
    assert (found["count"], found["lines"][1:]) == (0, [])
    assert found["shapes"] == {"bank": {"999": 1}, "shop": {"a9": 1}}


def test_composite_keys(psi: Asked) -> None:
    found = psi("id,day\nu1,1\nu1,2\nu2,1\n", "day,id\n2,u1\n2,u2\n1,u2\n", "--id", "id,day")
    assert sorted(found["lines"]) == [["id", "day"], ["u1", "2"], ["u2", "1"]]


def test_a_sum_that_nobody_counts(psi: Asked) -> None:
    files = "id\nu1\nu2\n", "id,amount\nu2,2.5\nu3,7\nu2,\n"
    found = psi(*files, "--protocol", "circuit", "--result", "sum:amount")
    assert (found["count"], found["sum"]) == (None, 2.5)
    assert found["lines"] == [["count", "sum"], ["", "2.5"]]
    assert "how many keys all share" not in {one["sees"] for one in found["learns"]}
    assert psi(*files, "--protocol", "circuit", "--result", "count")["count"] == 1
    assert (
        "stay at the parties"
        in psi(*files, "--protocol", "circuit", "--result", "shares:shop.amount", code=2)["error"]["what"]
    )


@pytest.mark.parametrize("word", ["amount", "shop.amount"])
def test_the_sum_of_a_column(psi: Asked, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = Paillier(2048).make_keys(Secret(0))  # takes up to seconds
    monkeypatch.setattr(Paillier, "make_keys", lambda scheme, secret: keys)
    found = psi("id\nu1\nu2\n", "amount,id\n.1,u1\n.2,u2\n,u2\n.7,u2\n5,u3\n", "--result", f"sum:{word}")
    assert (found["count"], found["sum"]) == (2, math.fsum([0.1, 0.2, 0.7]))
    assert found["lines"] == [["count", "sum"], ["2", str(found["sum"])]]


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("words", "code", "what"),
    [
        (["--protocol", "ecd"], 2, "Did you mean 'ecdh'"),
        (["--result", "idz"], 2, "result='idz'"),
        (["--result", "sum:x"], 2, "no file has a column 'x'"),
        (["--result", "sum:id"], 2, "bank and shop have a column 'id'"),
        (["--result", "sum:shop.id"], 3, "holds text"),
        (["--key", "words"], 2, "--key words"),
        (["--id", "key"], 3, "no column 'key'"),
        (["--to", "mill"], 2, "'mill' is no party"),
        (["--min-count", "2"], 2, "min_count=2 with result='ids'"),
    ],
)  # fmt: skip
def test_words_that_make_no_sense_are_refused(psi: Asked, words: list[str], code: int, what: str) -> None:
    assert what in psi("id\nu1\n", "id\nu1\n", *words, code=code)["error"]["what"]


def test_one_learner(psi: Asked) -> None:
    found = psi("id\nu1\n", "id\nu1\n", "--to", "bank")
    assert {one["who"] for one in found["learns"] if one.get("kind") == "ids"} == {"bank", "the program"}


def test_three_files(psi: Asked, tmp_path: Path) -> None:
    (tmp_path / "mill.csv").write_text("id\nu3\nu1\n", encoding="utf-8")
    found = psi("id\nu1\nu2\nu3\n", "id\nu2\nu3\n", str(tmp_path / "mill.csv"))
    assert (found["protocol"], found["lines"]) == ("Opprf", [["id"], ["u3"]])


def test_nearly_equal_records_and_columns_are_paired(psi: Asked) -> None:
    files = (
        "name,town\nAnna Schmidt,Bonn\nPeter Pan,Oslo\n",
        "name,place\npeter  pan,OSLO\nAna Schmidt,Bonn\nEve Else,Rome\n",
    )
    found = psi(*files, "--fuzzy", "name", "--threshold", "0.7")
    assert found["pairs"] == [[2, 3], [3, 2]]
    assert found["lines"] == [["bank", "shop"], ["2", "3"], ["3", "2"]]
    assert {one["who"] for one in found["learns"]} == {"bank", "shop", "linker", "the program"}
    assert psi(*files, "--match-columns", "--threshold", "0.9")["pairs"] == [["name", "name"]]
    assert "ask for one" in psi(*files, "--fuzzy", "name", "--match-columns", code=2)["error"]["remedy"]


def test_rows_are_counted_as_lines_of_the_files(psi: Asked) -> None:
    table = "id,x\nu1,1\nu2,inf\nu3,1\n"
    told = psi("id\nu2\n", table, "--protocol", "circuit", "--result", "sum:x", code=3)["error"]
    assert "an infinity in row 3" in told["what"]
    found = psi("id\n007\n7\n", "id\n7\n", code=3)["error"]
    assert "at row 2" in found["what"]
    assert "at row 3" in found["what"]


def test_remedies_name_options_and_protocols_that_can(psi: Asked, tmp_path: Path) -> None:
    files = "id\nu1\n", "id\nu1\n"
    told = psi(*files, "--protocol", "circuit", code=4)["error"]["remedy"]
    assert told == "use --protocol Ecdh or --protocol Opprf or --protocol Oprf or --protocol Unbalanced"
    (tmp_path / "mill.csv").write_text("id\nu1\n", encoding="utf-8")
    told = psi(*files, str(tmp_path / "mill.csv"), "--result", "count", code=4)["error"]["remedy"]
    assert told.startswith("no protocol gives a count of 3 parties: use --result ids")
