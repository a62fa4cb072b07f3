"""The program of `Fit`: agree on the columns, prepare them, and let the method ask until it is done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from atoll.core.errors import DataError
from atoll.core.federation.row_rules import required_min_count

from .asking import FitRequests
from .columns import agreed
from .contacts import Contacts
from .fitted import FittedModel
from .method import Known
from .preparation import prepared
from .rows import FeatureLayout

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation

    from .job import Fit

__all__ = ["fitted"]


async def fitted(fed: Federation, job: Fit, contacts: Contacts) -> FittedModel:
    """Run the job; a checkpoint follows every contact."""
    kept = await fed.restore({"least": None, "layout": None, "preparing": {}, "state": None, "number": 0, "counts": {}})
    asked = job.min_count if kept["least"] is None else kept["least"]
    quorum = len(fed.parties) if job.quorum is None else job.quorum
    least = job.least_rows if job.model.events() else await required_min_count(fed, fed.parties, asked, quorum=quorum)
    job, kept = replace(job, min_count=least), {**kept, "least": least}
    asking = FitRequests(fed, job)
    if kept["layout"] is None:
        layout = await agreed(asking, contacts)
        kept = {**kept, "layout": layout.packed()}
        await fed.checkpoint(kept)
    layout = await prepared(asking, contacts, FeatureLayout.unpacked(kept["layout"]), kept)
    method = job.model
    known = Known(layout, fed.rng.child("fit").generator(), asking.words, job.least_rows)
    method.check(known)
    state, number = kept["state"], int(kept["number"])
    counts = dict(kept["counts"])
    state = method.start(known) if state is None else state
    while not state.get("done") and not fed.ending:
        known = Known(layout, fed.rng.child("fit", number).generator(), asking.words, job.least_rows)
        message = {"layout": layout.packed(), "state": state}
        if state["phase"] in method.singly:
            proposals = await asking.singly(contacts.proposed, message)
            state = method.gather(state, proposals, known)
        else:
            sums = await asking.sums(contacts.replied, message, f"{number}")
            counts = {"rows": int(sums.pop("rows")), "withheld": int(sums.pop("withheld"))}
            _require_rows(counts, job.least_rows)
            state = method.step(state, sums, known)
        number += 1
        fed.record(
            {
                "contact": number,
                "phase": str(message["state"]["phase"]),
                "parties": asking.parties,
                **method.measures(state),
            }
        )
        if number >= job.rounds and not state.get("done"):
            state = {**state, "done": True, "stopped": True}
        kept = {**kept, "state": state, "number": number, "counts": counts}
        await fed.checkpoint(kept)
    told = {**counts, "contacts": number, "converged": not state.get("stopped", False)}
    return FittedModel(method, layout, method.result(state), told)


def _require_rows(counts: Mapping[str, int], least: int) -> None:
    if counts["rows"] < 1:
        few = (
            f": {counts['withheld']} rows are at parties with fewer than min_count={least}"
            if counts["withheld"]
            else ""
        )
        raise DataError(f"no party has a usable row{few}", where="Fit", remedy="invite parties that have data")
