"""Jobs that a person submits with other tools than ours."""

from __future__ import annotations

from typing import Any

from atoll.core.requests.wire import unpack_error
from atoll.runs import yaml
from tests.support.forging import forged
from tests.support.hostile import Besieged

CODE = b"async def run(fed): pass\n"


def job(name: str = "one", **settings: Any) -> bytes:
    tree = {"name": name, "job": "program", "program": "own:run", "source": "source", "sites": ["north"], **settings}
    return yaml.dump(tree).encode()


def signed(siege: Besieged, text: bytes | None = None, who: str = "anna", code: bytes = CODE) -> bytes:
    files = [("job.yaml", job() if text is None else text), ("source/own.py", code)]
    return forged(files, siege.kit(who).credentials())


async def submitted(siege: Besieged, text: bytes | None = None, token: str = "t", code: bytes = CODE) -> Any:
    """Submit as somebody with other tools than ours; the job's id, or the error."""
    found = await siege.ask("anna", {"op": "submit", "bundle": signed(siege, text, code=code), "token": token})
    return unpack_error(found["error"]) if "error" in found else found["job"]["job"]


PROGRAM = """
import numpy as np

import atoll


@atoll.task
def reply(island, message):
    return {"sum": atoll.Sum(np.asarray(island.data.x)[0], role="update")}


async def add(fed, masked):
    reducer = atoll.SecureAggregation() if masked else None
    found = await fed.sum(fed.parties, reply, None, reducer=reducer)
    return {"x": found["sum"]}
"""
