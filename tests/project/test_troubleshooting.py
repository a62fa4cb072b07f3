"""The page of failures and the messages of the runtime: neither has what the other has not."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from tests.support.sources import ROOT, Module

PAGE = (ROOT / "docs" / "howto" / "troubleshooting.md").read_text(encoding="utf-8")
PAGES = PAGE + "".join(
    (ROOT / "docs" / "howto" / name).read_text(encoding="utf-8") for name in ("jobs.md", "provision.md")
)
RUNTIME = sorted((ROOT / "src" / "atoll" / "runtime").rglob("*.py"))
_FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
SHORT = 8  # characters of a piece of a message below which it says too little
INTERNAL = {
    # where=
    "line settings", "channel", "placement", "scheduler",
    # remedy=
    "a defect of the server", "ask the site that has them; a task sees its own island only", "enter it first", "give one size for each client",
    "let at least one job run", "name each of them once", "submit it with a new token", "submit it: atoll submit JOB", "use a positive number",
    "use numbers, words, lists and mappings", "ask for them by a task: fed.sum or fed.ask; `sizes` and `about` are known",
}  # fmt: skip
"""Places and remedies of errors that only programs meet, which use modules of the runtime themselves."""


def _pieces(nodes: Iterable[ast.AST]) -> list[str]:
    """The literal parts of a text."""
    found = [part.value for part in nodes if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    return [piece.strip(" :;,") for piece in found]


def _messages() -> Iterator[tuple[str, list[str]]]:
    """(where in the code, literal parts) of every error with a remedy."""
    for path in RUNTIME:
        for call in Module(path).nodes:
            if not (isinstance(call, ast.Call) and getattr(call.func, "id", "").endswith("Error") and call.args):
                continue
            said = {key.arg: _pieces(ast.walk(key.value)) for key in call.keywords}
            if "remedy" not in said or INTERNAL & {*said["remedy"], *said.get("where", ())}:
                continue
            pieces = [piece for piece in _pieces(ast.walk(call.args[0])) if len(piece) >= SHORT]
            if pieces:
                yield f"{path.name}:{call.lineno}", pieces


def _said(text: str) -> list[str]:
    """The literal parts of the messages in a text: what stands between backticks, without what may be anything."""
    return [
        piece.strip(" :;,()") for span in re.findall(r"`([^`]+)`", _FENCED.sub("", text)) for piece in span.split("…")
    ]


def test_every_message_of_the_runtime_is_explained() -> None:
    known = [piece for piece in _said(PAGES) if len(piece) >= SHORT]
    missing = [
        f"{place}: {' … '.join(pieces)}"
        for place, pieces in _messages()
        if not any(words in piece or piece in words for piece in pieces for words in known)
    ]
    assert not missing, "add to docs/howto/troubleshooting.md:\n" + "\n".join(missing)


def test_every_message_on_the_page_is_one_of_the_code() -> None:
    files = [
        *RUNTIME,
        *(path for room in ("core", "cli", "data", "runs") for path in (ROOT / "src" / "atoll" / room).rglob("*.py")),
    ]
    code = "\n".join(piece for path in files for piece in _pieces(Module(path).nodes)).lower()
    rows = [line.split(" | ")[0] for line in PAGE.splitlines() if line.startswith("| `")]
    assert len(rows) > 60
    assert not [piece for piece in _said("\n".join(rows)) if len(piece) > 2 and piece.lower() not in code]
