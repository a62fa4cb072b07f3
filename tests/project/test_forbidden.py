"""What never stands in Atoll's source, and what never stands in its tests."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence

import pytest

from atoll.heap import loading
from tests.support.sources import ROOT, Module, imports, modules

Nodes = Sequence[ast.AST]
TESTS = sorted([*(ROOT / "tests").rglob("*.py"), *(ROOT / "papers" / "tests").rglob("*.py")])

# They run code that came with the data, or draw from a generator that everybody shares.
LIBRARIES = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "random"}
CALLS = {"eval", "exec", "compile"}
# The parts of numpy.random that make or name a generator of one's own.
OWN_GENERATORS = {"default_rng", "Generator", "BitGenerator", "SeedSequence", "PCG64", "Philox"}
# PyTorch draws from its global generator unless one is given.
TORCH_DRAWS = {"rand", "randn", "randint", "randperm", "bernoulli", "multinomial", "normal"}
PICKLING = {"Pool", "Queue", "SimpleQueue", "JoinableQueue", "Manager"}


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def _asserts(nodes: Nodes) -> Iterator[ast.AST]:
    yield from (node for node in nodes if isinstance(node, ast.Assert) and not _narrows(node))


def _narrows(node: ast.AST) -> bool:
    """``assert x is not None``: tells the type checker what the code has set, and checks nobody's input."""
    test = getattr(node, "test", None)
    return isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.IsNot)


def _runs_code(nodes: Nodes) -> Iterator[ast.AST]:
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
            yield node
        if isinstance(node, ast.Call) and _dotted(node.func) in ("torch.load", "pickle.loads", "pickle.load"):
            yield node
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and getattr(node.value, "value", True):
            yield node.value


def _pickles_between_processes(nodes: Nodes) -> Iterator[ast.AST]:
    for node in nodes:
        if isinstance(node, ast.Call):
            owner, _, name = _dotted(node.func).rpartition(".")
            if name == "ProcessPoolExecutor" or (
                name in PICKLING and re.search(r"multiprocessing|^mp$|context|ctx", owner)
            ):
                yield node


def _global_generators(nodes: Nodes) -> Iterator[ast.AST]:
    for node in nodes:
        if isinstance(node, ast.Attribute) and _dotted(node.value) in ("np.random", "numpy.random"):
            yield from [node] if node.attr not in OWN_GENERATORS else []
        if isinstance(node, ast.Call):
            owner, _, name = _dotted(node.func).rpartition(".")
            given = any(keyword.arg == "generator" for keyword in node.keywords)
            if owner == "torch" and (name == "manual_seed" or (name in TORCH_DRAWS and not given)):
                yield node


def _prints(nodes: Nodes) -> Iterator[ast.AST]:
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            yield node


BANS: dict[str, tuple[Callable[[Nodes], Iterator[ast.AST]], str]] = {
    "assert": (_asserts, "raise an AtollError that names the value, the place and the remedy"),
    "running code from data": (_runs_code, "read data with core.message, safetensors or NumPy without pickles"),
    "pickling between processes": (_pickles_between_processes, "send messages over a pipe or socket"),
    "global generators": (_global_generators, "take a seed, an Rng or a numpy Generator as an argument"),
    "print": (_prints, "return it, record it, or let the command line show it"),
}
# (ban, file) -> why this file may.
ALLOWED: dict[tuple[str, str], str] = {
    (
        "running code from data",
        "runs/schema.py",
    ): "annotations in a part's own source, as typing.get_type_hints reads them",
    **{
        ("running code from data", file): "the compiler of native code behind one seam, which is called compile"
        for file in ("torch/blocks/block.py", "torch/blocks/native_cohort.py", "torch/native/code.py")
    },
    ("global generators", "client/connection.py"): "seeds them for a user's script, which draws from them",
    (
        "global generators",
        "torch/own_state.py",
    ): "seeds them for a user's model, which draws from them, and puts them back",
}


@pytest.mark.parametrize("ban", sorted(BANS))
def test_source_is_free_of(ban: str) -> None:
    """Nothing is found where it is not allowed, and something where it is: an exception goes when it is no longer needed."""
    find, instead = BANS[ban]
    found = {_file(m): [m.at(node) for node in find(m.nodes)] for m in modules()}
    allowed = {file for name, file in ALLOWED if name == ban}
    assert not [place for file, places in found.items() for place in places if file not in allowed], instead
    assert all(found[file] for file in allowed)


def test_only_the_torch_room_narrows_by_assert() -> None:
    narrowing = {m.room for m in modules() for node in m.nodes if isinstance(node, ast.Assert)}
    assert narrowing <= {"torch"}


def _file(module: Module) -> str:
    base = ROOT / "papers" / "src" if module.room == "papers" else ROOT / "src" / "atoll"
    return module.path.relative_to(base).as_posix()


def test_source_imports_nothing_that_runs_code_from_data_or_shares_a_generator() -> None:
    seeds = {file for ban, file in ALLOWED if ban == "global generators"}
    found = [
        i.where
        for m in modules()
        for i in imports(m)
        if i.target.split(".")[0] in LIBRARIES and not (i.target == "random" and _file(m) in seeds)
    ]
    assert not found


@pytest.mark.parametrize(
    ("ban", "text"),
    [
        ("assert", "assert x > 0"),
        ("running code from data", "eval('1')"),
        ("running code from data", "np.load(f, allow_pickle=True)"),
        ("running code from data", "torch.load(f)"),
        ("pickling between processes", "multiprocessing.Pool(2)"),
        ("global generators", "np.random.rand(3)"),
        ("global generators", "torch.randn(3)"),
        ("print", "print(1)"),
    ],
)
def test_every_ban_finds_what_it_bans(ban: str, text: str) -> None:
    assert list(BANS[ban][0](list(ast.walk(ast.parse(text)))))


@pytest.mark.parametrize(
    ("ban", "text"),
    [
        ("assert", "assert x is not None"),
        ("running code from data", "model.eval(); np.load(f, allow_pickle=False)"),
        ("pickling between processes", "asyncio.Queue()"),
        ("global generators", "np.random.default_rng(0).normal(); torch.randn(3, generator=g)"),
    ],
)
def test_no_ban_finds_more(ban: str, text: str) -> None:
    assert not list(BANS[ban][0](list(ast.walk(ast.parse(text)))))


def test_tests_never_sleep() -> None:
    found = [f"{path.relative_to(ROOT)}:{line}" for path in TESTS for line in _calls(path.read_text("utf-8"), "time.sleep")]  # fmt: skip
    assert not found, "wait for an event, or use virtual time"


def test_every_expected_error_is_expected_with_its_text() -> None:
    found = [f"{path.relative_to(ROOT)}:{line}" for path in TESTS for line in _raises_without_match(path.read_text("utf-8"))]  # fmt: skip
    assert not found, "give pytest.raises a match="


@pytest.mark.parametrize(
    "text",
    [
        "with pytest.raises(ValueError):\n    f(match=1)\n",
        "with pytest.raises(ValueError, match='no'), pytest.warns(UserWarning):\n    f()\n",
        "with pytest.raises(\n    ValueError\n):\n    f()\n",
    ],
)
def test_an_error_without_its_text_is_found(text: str) -> None:
    assert list(_raises_without_match(text)) == [1]
    assert not list(_raises_without_match(text.replace("Error)", "Error, match='no')").replace("Warning)", "Warning, match='no')").replace("Error\n", "Error, match='no'\n")))  # fmt: skip


def _calls_of(text: str) -> list[tuple[str, ast.Call]]:
    with loading():
        return [(_dotted(node.func), node) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]


def _calls(text: str, dotted: str) -> Iterator[int]:
    if dotted.rpartition(".")[2] in text:
        yield from (node.lineno for name, node in _calls_of(text) if name == dotted)


_EXPECTS = re.compile(r"pytest\.(?:raises|warns)\(")


def _raises_without_match(text: str) -> Iterator[int]:
    expecting = [line for line in text.split("\n") if "pytest.raises(" in line or "pytest.warns(" in line]
    if all(len(_EXPECTS.findall(line)) <= line.count("match=") for line in expecting):
        return  # as in most files; to parse all of them takes seconds
    for name, node in _calls_of(text):
        expects = name in ("pytest.raises", "pytest.warns")
        if expects and not any(keyword.arg == "match" for keyword in node.keywords):
            yield node.lineno
