"""Nothing of the data leaves a site in words: canaries sit in every column, and every byte that leaves is searched for them."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.core import message as M
from atoll.core.errors import AtollError, DataError
from atoll.core.redaction import private, redacted
from atoll.core.time.clock import run
from atoll.data import Dataset, Islands
from atoll.runs import yaml
from atoll.runtime.admin import Admin
from atoll.runtime.job_spec import parse_job
from atoll.runtime.resources import Grant, Resources
from atoll.runtime.site.attempt import SiteAttempt
from atoll.runtime.worker.at_server import run_job
from atoll.runtime.worker.at_site import leaving, serve_job, trace_of
from atoll.runtime.worker.headers import told_of
from atoll.runtime.worker.words import site_spec
from tests.support.front_toys import World
from tests.support.front_toys import played as with_processes
from tests.support.work_toys import joined, load_from

NAME = "Smith-Jonathan-HIV"
NUMBER = 7360412
CANARIES = (NAME, "Smith", "HIV", str(NUMBER), "7360411", "7360413", "7.36041e")
JOB = {
    "model": {"name": "linear", "features": 2, "outputs": 2},
    "algorithm": {"name": "FedAvg", "lr": 0.1},
    "rounds": 1,
}


def has_canary(content: bytes) -> list[str]:
    wide = content.replace(b"\0", b"")  # texts in arrays have four bytes a character
    return [word for word in CANARIES if word.encode() in content or word.encode() in wide]


def table(*rows: str, head: str = "age,dose,died") -> bytes:
    return "\n".join([head, *rows, *("40,2.5,no", "50,3.5,yes")]).encode()


def arrays(**columns: Any) -> bytes:
    import io

    made = io.BytesIO()
    np.savez(made, **columns)
    return made.getvalue()


ROWS = np.ones((4, 2), np.float32)
TABLES: dict[str, tuple[str, bytes, dict[str, Any]]] = {
    "a word among numbers": ("r.csv", table(f"41,{NAME},no"), {"target": "died"}),
    "a word in the first column": ("r.csv", table(f"{NAME},1.5,no"), {"target": "died"}),
    "words in a column": ("r.csv", table(*[f"41,{NAME} {i},no" for i in range(9)]), {"target": "died"}),
    "a word in the target of a regression": ("r.csv", table(f"1,2,{NUMBER}", f"1,2,{NAME}", head="age,dose,cost"), {"target": "cost", "task": "regression"}),
    "a word in one of two targets": ("r.csv", f"age,dose,cost\n1,{NAME},2\n3,4,5\n6,7,8".encode(), {"target": ["dose", "cost"], "task": "regression"}),
    "commas in one of two targets": ("r.csv", f'age,dose,cost\n1,"{NUMBER},5",2\n3,"4,5",5'.encode(), {"target": ["dose", "cost"], "task": "regression"}),
    "numbers with a comma": ("r.csv", table(f"41,'{NUMBER},5',no".replace("'", '"')), {"target": "died"}),
    "dates of a person": ("r.csv", table(f"41,{NAME} 2020-01-01,no"), {"target": "died", "categories": {"dose": ["2.5", "3.5"]}}),
    "outside the categories": ("r.csv", table(f"41,1,{NAME}"), {"target": "died", "categories": {"died": ["no", "yes"]}}),
    "a row too long": ("r.csv", table(f"41,1,no,{NAME}"), {"target": "died"}),
    "a row too short": ("r.csv", table(NAME), {"target": "died"}),
    "a header that repeats": ("r.csv", table(head=f"{NAME},{NAME},died"), {"target": "died"}),
    "one column": ("r.csv", table(head=f"{NAME};dose;died"), {"target": f"{NAME};dose;died"}),
    "another encoding": ("r.csv", table("41,1,no").replace(b"41", f"{NAME}é".encode("latin-1")), {"target": "died"}),
    "not gzip at its end": ("r.csv.gz", gzip.compress(table(f"41,{NAME},no"))[:-9], {"target": "died"}),
    "a key": ("r.csv", "\n".join(["id,dose,died", *[f"{NAME} {i},1.5,{i % 2}" for i in range(30)]]).encode(), {"target": "died"}),
    "too many classes": ("r.csv", "\n".join(["dose,name", *[f"1.5,{NAME} {i}" for i in range(100)]]).encode(), {"target": "name"}),
    "amounts for classes": ("r.csv", "\n".join(["dose,cost", *[f"1.5,{NUMBER + i}" for i in range(100)]]).encode(), {"target": "cost"}),
    "a number for a class": ("r.npz", arrays(x=ROWS, y=np.array([0, 1, 1, NUMBER])), {}),
    "a class below 0": ("r.npz", arrays(x=ROWS, y=np.array([0, 1, 1, -NUMBER])), {}),
    "a class out of range": ("r.npz", arrays(x=ROWS, y=np.array([0, 1, 1, NUMBER]), labels=np.array(["a", "b"])), {}),
    "a binary target": ("r.npz", arrays(x=ROWS, y=np.array([0, 1, 1, NUMBER])), {"task": "binary"}),
    "texts for labels": ("r.npz", arrays(x=ROWS, y=np.array(["a", "b", NAME, "a"])), {}),
    "objects": ("r.npz", NAME.encode() * 9, {}),
    "numbers that are not finite": ("r.npz", arrays(x=np.array([[NUMBER, np.inf]] * 4), y=np.array([0, 1, 1, 0])), {}),
    "labels for a model of two": ("r.npz", arrays(x=ROWS, y=np.array([0, 1, 2, 7])), {}),
}  # fmt: skip


class Listening:
    """The server's end of a site's channel; everything that came out of the site is written down."""

    def __init__(self, channel: Any, book: list[bytes]) -> None:
        self._channel, self._book = channel, book

    def __getattr__(self, name: str) -> Any:
        if name in ("post", "feed"):  # the short ways around `send` and `recv`
            raise AttributeError(name)
        return getattr(self._channel, name)

    async def recv(self) -> Any:
        frame = await self._channel.recv()
        self._book.append(M.encode(frame))
        return frame


def overheard(job: Mapping[str, Any], load: Callable[[], Any], folder: Path) -> tuple[bytes, str]:
    """All that left the site in one attempt, and the server's error."""
    book: list[bytes] = []

    async def main() -> None:
        made = parse_job(dict(job))
        async with joined(["north"]) as (server, site):
            serving = asyncio.create_task(serve_job(site["north"], made, load, folder / "at"))
            try:
                heard = {"north": Listening(server["north"], book)}
                await run_job(heard, made, folder / "server", report=False)
            finally:
                await asyncio.gather(serving, return_exceptions=True)

    with pytest.raises(AtollError, match=r"\w") as found:
        run(main(), virtual=False)
    return b"".join(book), f"{found.value}"


@pytest.mark.parametrize("name", TABLES)
def test_what_is_wrong_with_a_table_is_said_without_its_values(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, content, settings = TABLES[name]
    (tmp_path / file).write_bytes(content)
    (tmp_path / "site.yaml").write_text(yaml.dump({"path": file, **settings}))
    load = load_from(site_spec(str(tmp_path / "site.yaml")), "north")
    try:
        load()
        own = ""
    except DataError as error:
        own = str(error)
    left, told = overheard(JOB, load, tmp_path)
    files = [
        path for path in (tmp_path / "server").rglob("*") if path.is_file() and path.name != "log.jsonl"
    ]  # one process, one log
    kept = b"".join(path.read_bytes() for path in files)
    assert has_canary(left + told.encode() + kept) == []
    assert "site 'north'" in told or "Linear.outputs" in told  # somebody learns where to look
    if has_canary(own.encode()):
        assert "the site's own log has the words" in told
        assert has_canary(caplog.text.encode())  # and there the words are


@atoll.task
def reads(island: Any, message: Any) -> Any:
    """A job's own code that stumbles over a row, in the way that the message names."""
    word, number = str(island.data["word"][0]), float(island.data["x"][0, 0])
    how = message["how"]
    if how == "value":
        return float(word)
    if how == "key":
        return {"a": 1}[word]
    if how == "assert":
        assert word == "", f"unexpected {word}"
    if how == "wrapped":
        try:
            float(word)
        except ValueError as error:
            raise DataError(f"a row cannot be read: {error}", where="rows", remedy="correct it") from error
    if how == "marked":
        raise DataError(f"a row has {private(word)} and {private(number)}", where=f"row {private(word)}")
    if how == "many":
        raise RuntimeError("\n".join([word, str(number), "»" + word]))
    if how == "exit":
        raise SystemExit(f"no {word}")
    raise MemoryError(word)


@atoll.task
async def says(island: Any, peers: Any, how: str) -> Any:
    """The same in a session."""
    return reads.run(island, {"how": how})


async def stumbles(fed: Any, how: str, kind: str) -> Any:
    if kind == "sum":
        return (await fed.sum(fed.parties, reads, {"how": how}))["x"]
    if kind == "session":
        names = fed.parties.names
        return await fed.session({name: (name, says.with_args(how=how)) for name in names})
    return (await fed.ask_all(fed.parties, reads, {"how": how})).values


@pytest.mark.parametrize("kind", ["sum", "ask", "session"])
@pytest.mark.parametrize("how", ["value", "key", "assert", "wrapped", "marked", "many", "memory", "exit"])
def test_an_error_in_a_jobs_own_code_is_said_by_its_kind(
    how: str, kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from tests.support.work_toys import site_of

    rows = Dataset({"x": np.full((3, 2), float(NUMBER)), "word": np.array([NAME] * 3)})
    job = {"job": "program", "program": f"{__name__}:stumbles", "arguments": {"how": how, "kind": kind}}
    both = Islands.from_datasets({"a": rows, "b": rows})
    left, told = overheard(job, lambda: site_of("north", both), tmp_path)
    assert "north/a" in told, told
    assert has_canary(left + told.encode()) == []
    assert has_canary(caplog.text.encode())


def test_a_value_in_marks_is_one_line_and_cannot_close_them_itself() -> None:
    text = f"column 'a' has {private('x» and «y' + chr(10) + 'z' * 500)} at row 3"
    assert "\n" not in text
    assert redacted(text) == "column 'a' has «…» at row 3"
    assert redacted(text[:40]) == "column 'a' has «…»"  # cut in the middle
    assert redacted("nothing to hide") == "nothing to hide"


def test_an_error_of_ours_without_values_leaves_as_it_is() -> None:
    error = DataError("no column 'dose'", where="rows.csv", remedy="correct the table")
    assert leaving(error) is error


def test_an_error_is_written_to_the_log_once(caplog: pytest.LogCaptureFixture) -> None:
    error = ValueError(NAME)
    assert (
        str(leaving(error))
        == str(leaving(error))
        == "ValueError: «…». Remedy: see the log of the site; the site's own log has the words"
    )
    assert caplog.text.count(NAME) == 1


def looked_up(word: str) -> None:
    try:
        float(word)
    except ValueError as error:
        raise KeyError(word) from error


def test_a_traceback_holds_no_text_of_an_error() -> None:
    with pytest.raises(KeyError, match="Smith") as found:
        looked_up(NAME)
    trace = "\n".join(trace_of(found.value))
    assert has_canary(trace.encode())  # in marks, for the site's own log
    assert has_canary(redacted(trace).encode()) == []
    assert "ValueError: «…»" in redacted(trace)
    assert redacted(trace).endswith("KeyError: «…»")


def test_a_line_of_a_jobs_log_leaves_without_its_values(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    told: list[Any] = []
    post: Any = SimpleNamespace(
        kit=SimpleNamespace(name="north"), folder=tmp_path, tell=lambda op, **fields: told.append(fields)
    )

    async def play() -> None:
        SiteAttempt(post, "job", 1, Grant("job", Resources(1.0, 0, 0)))._log(["plain", f"ValueError: {private(NAME)}"])

    asyncio.run(play())
    assert told == [{"job": "job", "lines": ["plain", "ValueError: «…»"]}]
    assert NAME in caplog.text
    assert "plain" not in caplog.text


# ---------------------------------------------------------------------- classes


def spec_of(folder: Path, content: bytes, **settings: Any) -> dict[str, Any]:
    (folder / "r.csv").write_bytes(content)
    (folder / "site.yaml").write_text(yaml.dump({"path": "r.csv", **settings}))
    return site_spec(str(folder / "site.yaml"))


def test_the_sites_person_sees_the_names_of_classes_before_anybody_else(tmp_path: Path) -> None:
    rows = table("41,1.5,no")
    (line,) = told_of(spec_of(tmp_path, rows, target="died"), "north")
    assert line.endswith("the names of the 2 classes of 'died': no, yes")
    (line,) = told_of(spec_of(tmp_path, rows, target="died", categories={"died": ["no", "yes", "?"]}), "north")
    assert line.endswith("the names of the 3 classes of 'died': no, yes, ?")
    (line,) = told_of(spec_of(tmp_path, rows, target="dose"), "north")
    assert "classes" not in line
    names = "\n".join(["dose,name", *[f"1.5,{NAME} {i}" for i in range(100)]]).encode()
    with pytest.raises(DataError, match=r"the target 'name' has more than 20 classes, and the server and all") as found:
        told_of(spec_of(tmp_path, names, target="name"), "north")
    assert "categories: {name: [...]}" in str(found.value.remedy)
    (line,) = told_of(spec_of(tmp_path, names, target="name", task="unlabelled"), "north")
    assert "classes" not in line


@pytest.mark.network
def test_classes_of_a_parquet_file_and_of_an_archive(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"dose": [1.0, 2.0, 3.0], "died": ["no", "yes", None]}), tmp_path / "r.parquet")
    (line,) = told_of({"path": str(tmp_path / "r.parquet"), "target": "died"}, "north")
    assert line.endswith("the names of the 2 classes of 'died': no, yes")
    np.savez(tmp_path / "r.npz", x=ROWS, y=np.array([0, 1, 1, 0]), labels=np.array(["no", "yes"]))
    (line,) = told_of({"path": str(tmp_path / "r.npz")}, "north")
    assert line.endswith("the names of the 2 classes of the data: no, yes")


# ---------------------------------------------------------------------- real processes


@pytest.mark.network
@pytest.mark.parametrize("transport", ["tcp", "grpc"])
@pytest.mark.quick("tcp")
def test_with_real_processes_neither_job_store_nor_logs_nor_auditor_see_a_cell(transport: str, tmp_path: Path) -> None:
    data = {}
    for name, row in (("site-1", "41,1.5,no"), ("site-2", f"41,{NAME},no")):
        (tmp_path / "data" / name).mkdir(parents=True)
        (tmp_path / "data" / name / "r.csv").write_bytes(table(row))
        (tmp_path / "data" / name / "site.yaml").write_text("path: r.csv\ntarget: died\n")
        data[name] = [str(tmp_path / "data" / name / "site.yaml")]
    job = tmp_path / "job"
    job.mkdir()
    (job / "job.yaml").write_text(yaml.dump({"name": "words", "sites": list(data), **JOB}))
    seen: list[Any] = []

    async def body(world: World) -> None:
        made = await world.admin.submit(job)
        ended = await world.end(made["job"])
        seen.append(ended)
        for kit in ("admin", "auditor"):
            async with Admin(world.poc.kit(kit), world.poc.address) as person:
                seen.append(await person.jobs())
                seen.append([line async for line in person.logs(made["job"])])
        assert ended["state"] == "failed", ended
        assert "column 'dose' holds numbers, and «…» at row 2" in str(ended["error"]), ended

    with_processes(tmp_path, body, transport=transport, data=data)
    assert has_canary(repr(seen).encode()) == []
    for path in (tmp_path / "run" / "server").rglob("*"):
        assert not path.is_file() or has_canary(path.read_bytes()) == [], path
    assert has_canary((tmp_path / "run" / "site-2" / "log.jsonl").read_bytes())
