"""Every model on every site's data: who is asked for a model, what each model is worth to each site, and the matrix of all."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from atoll.core.algebra.rng import Rng
from atoll.core.errors import AtollError, ConfigError, nearest
from atoll.core.federation.row_rules import told_rules
from atoll.core.requests.disclosure import Disclosure
from atoll.core.requests.request import Mailboxes
from atoll.core.requests.task import Task

from .capabilities import OWN_MODELS
from .learner import SupportsPersonal
from .metrics import pack_metric, unpack_metric
from .round.evaluation import held_model, merged_results, scores, summarise
from .round.state import global_model
from .topology.node import Node, Turn

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.algebra.tree import Tree
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island
    from atoll.core.requests.results import Exchanged
    from atoll.rounds.loop import Ended

    from .context import Context

__all__ = ["Across", "CrossSite"]


@dataclass(frozen=True)
class CrossSite:
    """Every model on every site's data.

    A site's own model is its personal model, if the algorithm keeps one. Otherwise it is what one more round of the algorithm makes of the global
    model with that site's rows alone.

    Attributes:
        models: the global model, the best global model with ``keep_best``, and a model for each site that sent one, by the site's name.
        sites: the sites, in their order.
        examples: rows of each site; 0 if it told nothing.
        values: metric -> ``(models, sites)``, NaN where a site told nothing.
        withheld: site -> why it sent no model or told nothing.
    """

    models: tuple[str, ...]
    sites: tuple[str, ...]
    examples: tuple[int, ...]
    values: Mapping[str, NDArray[np.float64]] = field(repr=False)
    withheld: Mapping[str, str] = field(default_factory=dict)

    def matrix(self, metric: str) -> NDArray[np.float64]:
        """Return one metric, ``(models, sites)``.

        Raises:
            ConfigError: it was not measured.
        """
        if metric not in self.values:
            raise ConfigError(
                f"no {metric!r} in the cross-site evaluation.{nearest(metric, self.values)}",
                where="CrossSite",
                remedy=f"use one of {', '.join(self.values)}",
            )
        return self.values[metric]

    def to_pandas(self, metric: str) -> Any:
        """Return one metric as a ``pandas.DataFrame``: a row a model, a column a site."""
        import pandas  # type: ignore[import-untyped]

        return pandas.DataFrame(self.matrix(metric), index=list(self.models), columns=list(self.sites))

    def plain(self) -> dict[str, Any]:
        """Return plain data, for a file: ``None`` where a site told nothing."""
        rows = {name: [[_number(v) for v in row] for row in values.tolist()] for name, values in self.values.items()}
        told = {"models": list(self.models), "sites": list(self.sites), "examples": list(self.examples)}
        return {**told, "values": rows, "withheld": dict(self.withheld)}

    def sections(self) -> list[dict[str, Any]]:
        """Return a table a metric, for the report."""
        tables = [
            {
                "head": [name, *self.sites],
                "rows": [[model, *row] for model, row in zip(self.models, self._format_matrix(name), strict=True)],
            }
            for name in self.values
        ]
        why = "".join(f" {site} is left out: {reason}." for site, reason in self.withheld.items())
        text = f"Each model (rows) on the data of each site (columns).{why}"
        return [{"title": "Cross-site evaluation", "text": text, "tables": tables}]

    def _format_matrix(self, name: str) -> list[list[str]]:
        return [["–" if np.isnan(v) else f"{v:.4g}" for v in row] for row in self.values[name].tolist()]


def _number(value: float) -> float | None:
    return None if np.isnan(value) else value


# ---------------------------------------------------------------- asking sites for their models


LAST, BEST = "global", "global (best)"


class Across:
    """The evaluation of one training: its tasks, and how the server asks for them.

    Args:
        context: the training's context.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.node = Node(context.algorithm, context.learner)

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The two tasks of a site."""
        return (self.own, self.judge)

    @property
    def own(self) -> Task:
        """Send the site's own model to the other sites."""
        return Task("atoll.learn.cross_site:own", self._own, work=self.node.work)

    @property
    def judge(self) -> Task:
        """Measure every model on the site's data."""
        return Task("atoll.learn.cross_site:judge", self._judge, discloses=lambda m: Disclosure(int(m["min_count"])))

    async def _own(self, island: Island, message: Tree) -> Tree:
        if len(island.data) < int(message["min_count"]):
            return {"sent": False}
        model = await self._make_own(island, message["model"], message["key"])
        for name in message["to"]:
            if name != island.name:
                island.post(name, model)
        return {"sent": True}

    async def _make_own(self, island: Island, model: Tree, key: str) -> Tree:
        """Return the site's own model, the same whenever it is asked for."""
        learner = self.context.learner
        if OWN_MODELS in self.context.algorithm.offers and isinstance(learner, SupportsPersonal):
            return cast("Tree", learner.personal(model, island.state))
        start = self.node.begin(0)
        params = {name: model[name] for name in start["server"]["params"]}
        buffers = {name: model[name] for name in start["buffers"]} if start["buffers"] else start["buffers"]
        fresh = {**start, "server": self.context.algorithm.init(params), "buffers": buffers}
        view = Turn(island, None, Rng(int(key)).child(island.name))
        node, _ = await self.node.round(view, fresh, 1)  # type: ignore[arg-type]
        return global_model(node)

    async def _judge(self, island: Island, message: Tree) -> Tree:
        if len(island.data) < int(message["min_count"]):
            return {"rows": 0, "scores": {}}
        metrics = [unpack_metric(packed) for packed in message["metrics"]]
        sent = {f"site {name}": model for name, model in island.inbox.items()}
        if message["own"]:
            sent[f"site {island.name}"] = await self._make_own(island, message["models"][LAST], message["key"])
        found = {}
        for name, model in {**message["models"], **sent}.items():
            model = {**held_model(self.context.learner, {}, island.state)[0], **model}
            told = self.context.learner.evaluate(model, island.data)
            told = await told if inspect.isawaitable(told) else told
            given = [summarise(metrics, self.context.learner, model, island.data)] if metrics else []
            more = merged_results(metrics, given)
            found[name] = {key: float(value) for key, value in {**scores(told), **more}.items()}
        return {"rows": len(island.data), "scores": found}

    async def run(self, fed: Federation, ended: Ended) -> CrossSite:
        """Ask the sites for their models and for what each model is worth to them."""
        watch = fed.scope("cross-site")
        watch.settle_at(fed.parties, fed.hub, fed.home)
        watch.observe()
        names, withheld = list(fed.parties.names), dict[str, str]()
        ask = functools.partial(self._each, watch, names, withheld)
        least = self.context.evaluation.min_count
        if least is None:
            rules = await ask(told_rules, dict.fromkeys(names), Mailboxes())
            least = max((int(one.values[0]["min_count"]) for one in rules.values()), default=1)
        common = {"min_count": least, "key": str(watch.rng.child("own").key)}
        sent = await ask(self.own, {name: {**common, "model": ended.last, "to": names} for name in names}, Mailboxes())
        made = {name: one for name, one in sent.items() if one.values[0]["sent"]}
        mail = functools.reduce(lambda a, b: a | b, [one.mail for one in made.values()], Mailboxes())
        models = {LAST: ended.last, **({} if ended.best is None else {BEST: ended.best["params"]})}
        asked = {**common, "models": models, "metrics": [pack_metric(one) for one in self.context.evaluation.metrics]}
        told = await ask(self.judge, {name: {**asked, "own": name in made} for name in names}, mail)
        replies = {name: one.values[0] for name, one in told.items()}
        for name, reply in replies.items():
            if not reply["rows"]:
                withheld[name] = f"it has fewer rows than min_count={least}, or none"
        return _gather_matrices(
            names, [*models, *(f"site {name}" for name in names if name in made)], replies, withheld
        )

    async def _each(
        self,
        watch: Federation,
        names: Sequence[str],
        withheld: dict[str, str],
        task: Task,
        messages: Mapping[str, Tree],
        mail: Mailboxes,
    ) -> dict[str, Exchanged]:
        """Ask each site by itself: one that refuses, fails or is silent is left out, and loses the others nothing."""

        async def one(name: str) -> Exchanged | str:
            try:
                found = await watch.exchange(
                    watch.parties.named(name), task, messages[name], mail=mail, quorum=0, at=(0, name)
                )
            except AtollError as error:  # the training is done: a site that fails or refuses must not lose it
                return error.what
            why = {**{k: str(e) for k, e in found.errors.items()}, **found.rejected}
            return found if len(found) else why.get(name, "it did not answer")

        heard = dict(zip(names, await asyncio.gather(*(one(name) for name in names)), strict=True))
        withheld.update({name: found for name, found in heard.items() if isinstance(found, str)})
        return {name: found for name, found in heard.items() if not isinstance(found, str)}


def _gather_matrices(
    sites: Sequence[str], models: Sequence[str], replies: Mapping[str, Tree], withheld: Mapping[str, str]
) -> CrossSite:
    """Return the replies as matrices."""
    cells = {
        (model, site): told for site, reply in replies.items() for model, told in reply["scores"].items()
    }  # what a site tells of each model
    measured = sorted({name for told in cells.values() for name in told})
    values = {
        name: np.array([[cells.get((m, s), {}).get(name, np.nan) for s in sites] for m in models], dtype=np.float64)
        for name in measured
    }
    rows = tuple(int(replies[site]["rows"]) if site in replies else 0 for site in sites)
    return CrossSite(tuple(models), tuple(sites), rows, values, withheld)
