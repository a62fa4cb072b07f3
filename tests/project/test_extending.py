"""An algorithm, a stage, a protocol and a kind of job are two files each: the code of their page as a module of one's own, and the page's run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.project.forked import Parent
from tests.project.test_docs_run import PATIENCE, blocks
from tests.support.sources import ROOT

# Page: its module, which of its Python blocks are the module, and what holds after `atoll run run.yaml`.
PAGES = {
    "algorithm": (
        "mine/algorithms.py",
        1,
        "from mine.algorithms import FedProx; assert isinstance(run.config().made().algorithm, FedProx) and run.metrics()[-1]['test/accuracy'] > 0.7\n",
    ),
    "stage": (
        "mine/stages.py",
        2,
        "from mine.stages import Share; assert isinstance(run.config().made().uplink[0], Share) and run.metrics()[-1]['test/accuracy'] > 0.5\n",
    ),
    "program": (
        "mine/clustering.py",
        1,
        "errors = [row['error'] for row in run.metrics()]\nassert len(errors) == 4 and errors == sorted(errors, reverse=True)\n",
    ),
    "job": (
        "mine/histogram.py",
        1,
        (
            "import atoll; pooled = np.histogram(atoll.data.digits().x[:, 20], 4, (0, 1))[0]\n"
            "assert json.loads((run.path / 'histogram.json').read_text()) == pooled.tolist()\n"
        ),
    ),
}
RUN = """
import json, os, sys
from pathlib import Path

import numpy as np

from atoll.cli import run as command
from atoll.runs import RunFolder

here = lambda: {str(path) for path in Path().rglob("*.[py]*") if path.suffix in (".py", ".yaml") and path.parts[0] != "runs"}
before = here() - {"check.py"}
assert command(["run", "run.yaml", "--json", "--no-report"]) == 0
sys.path.insert(0, os.getcwd())
(place,) = Path("runs").iterdir()
run = RunFolder(place)
assert here() - {"check.py"} == before and len(before) <= 2, here()
"""


@pytest.fixture(scope="module")
def parent() -> Iterator[Parent]:
    made = Parent()
    yield made
    made.close()


@pytest.mark.parametrize("page", list(PAGES))
@pytest.mark.network
def test_two_files_are_enough(parent: Parent, page: str, tmp_path: Path) -> None:
    module, count, holds = PAGES[page]
    found = blocks((ROOT / "docs" / "extend" / f"{page}.md").read_text(encoding="utf-8"))
    code = [block.text for block in found if block.info == "python"]
    begin = next(i for i, text in enumerate(code) if "class Prepared" in text or page != "job")
    files = {
        "run.yaml": [block.text for block in found if block.file == "run.yaml"],
        module: code[begin : begin + count],
    }
    assert len(files["run.yaml"]) == 1
    assert module in (ROOT / "docs" / "extend" / f"{page}.md").read_text(encoding="utf-8")
    for name, texts in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("\n\n".join(texts), encoding="utf-8")
    (tmp_path / "check.py").write_text(RUN + holds, encoding="utf-8")
    ended, said = parent.run(tmp_path / "check.py", PATIENCE)
    assert ended == 0, said
