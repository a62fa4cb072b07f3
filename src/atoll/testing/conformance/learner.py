"""What every learner must do with requests for other amounts of work and for reports, on any engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from atoll.core import message as M
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.requests.results import Combined
from atoll.learn.round.scoring import held_model

from .laws import close, require, same

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation
    from atoll.learn.training import Training

__all__ = ["check_learner"]

_ENGINES = ("inline", "batched", "processes")


def check_learner(
    job: Training,
    islands: Any,
    *,
    epochs: int = 3,
    reports: Mapping[str, Any] | None = None,
    engines: Sequence[Any] = _ENGINES,
    seed: int = 0,
    tolerance: float = 1e-4,
    by_examples: bool = True,
) -> None:
    """Require a job's learner to keep the protocol of partial work and reports.

    * A request for the algorithm's own number of epochs gives the same as no request, to the bit.
    * Reports change nothing else in a reply, to the bit; each has the client's rows as its weight.
    * The metric ``loss`` is the mean, by examples, of the reported losses.
    * A survey returns for every client what ``report_of`` returns for its data.
    * Partial work and reports are the same on all engines, over two rounds (so that private state is used), in values
      and in bytes.

    Args:
        job: model and algorithm; only the last phase of a round runs, twice from the same broadcast.
        islands: a few clients of different sizes.
        epochs: how many to ask for, different from the algorithm's own number.
        reports: the reports to ask for; ``None`` is ``{"loss": None}``.
        engines: the engines to compare with the first of them.
        seed: of the run.
        tolerance: between engines, relative to ``1 + |x|``.
        by_examples: whether the metric ``loss`` is a mean by examples, so that reported losses must have the same mean.

    Raises:
        AssertionError: it breaks the protocol.
    """
    asked = {"loss": None} if reports is None else dict(reports)
    name = type(job.model).__name__
    runs = [_Run(job, islands, engine, seed) for engine in engines]
    first = runs[0]
    own = job.algorithm.epochs if job.algorithm.steps is None else job.algorithm.steps
    same(first.trained(epochs=own), first.trained(), f"{name}: the algorithm's own number of epochs, asked for or not")
    partial, survey = first.trained(epochs=epochs, reports=asked), first.surveyed(asked)
    without = {key: value for key, value in partial["value"].items() if not key.startswith("report/")}
    same(without, first.trained(epochs=epochs)["value"], f"{name}: a reply with reports and one without")
    require(not M.equal(without, first.trained()["value"]), f"{name}: {epochs} epochs give what {own} give")
    _check_reports(first, partial["value"], survey["value"], asked, by_examples)
    for other in runs[1:]:
        close(other.trained(epochs=epochs, reports=asked), partial, f"{name}: training on {other.engine}", tolerance)
        close(other.surveyed(asked), survey, f"{name}: a survey on {other.engine}", tolerance)


class _Run:
    """Requests to a learner on an engine, each in its own world, so that all have the same keys."""

    def __init__(self, job: Training, islands: Any, engine: Any, seed: int) -> None:
        self.job, self.islands, self.engine, self.seed = job, islands, engine, seed
        self.learner = job.learner(islands)
        self.params = self.learner.init(Rng.of(seed))

    def trained(self, **more: Any) -> Tree:
        """Return the second of two contacts."""
        algorithm, buffers = self.job.algorithm, self.learner.buffers()
        phase = algorithm.phases[-1]
        sent = {**algorithm.broadcast(algorithm.init(self.params), phase), **({"buffers": buffers} if buffers else {})}

        async def program(fed: Federation) -> Tree:
            for number in range(2):
                message = {"broadcast": sent, "phase": phase, **more}
                got = await fed.sum(fed.parties, self.learner.train, message, at=number)
            return _plain(got)

        return self._simulate(program)

    def surveyed(self, reports: Mapping[str, Any]) -> Tree:
        """Return a survey."""
        message = {"params": self.model, "reports": dict(reports)}

        async def program(fed: Federation) -> Tree:
            return _plain(await fed.sum(fed.parties, self.learner.report, message))

        return self._simulate(program)

    @property
    def model(self) -> Tree:
        """Return the parameters and what travels with them, as a client has them that has not trained."""
        return held_model(self.learner, {**self.params, **self.learner.buffers()}, None)[0]

    def _simulate(self, program: Any) -> Tree:
        from atoll.simulation import simulate

        tasks = [self.learner.train, self.learner.report]
        return simulate(program, self.islands, tasks=tasks, engine=self.engine, seed=self.seed)


def _check_reports(run: _Run, partial: Tree, survey: Tree, asked: Mapping[str, Any], by_examples: bool) -> None:
    name = type(run.job.model).__name__
    shards = [run.islands.shard(i) for i in range(len(run.islands))]
    for report in asked:
        for found in (partial, survey):
            weights = [part["weight"] for part in found[f"report/{report}"]]
            same(weights, [float(len(shard)) for shard in shards], f"{name}: weights of {report!r}")
        for i, shard in enumerate(shards):
            told = survey[f"report/{report}"][i]["value"]
            again = run.learner.report_of(run.model, shard, {report: asked[report]})[report]
            close(told, again, f"{name}: {report!r} of client {i} in a survey", 1e-5)
    if "loss" in asked:
        told = partial["report/loss"]
        mean = sum(part["value"] * part["weight"] for part in told) / sum(part["weight"] for part in told)
        require(any(part["value"] != 0 for part in told), f"{name}: no client reports a loss")
        if by_examples:
            close(float(mean), float(partial["loss"]), f"{name}: the mean of reported losses", 1e-5)


def _plain(got: Combined) -> Tree:
    """Return a request's results as a tree."""

    def plain(value: Any) -> Any:
        return [{"value": p.value, "weight": p.weight} for p in value] if isinstance(value, list) else value

    value = {name: plain(value) for name, value in got.value.items()}
    return {"value": value, "weight": got.weight, "bytes": got.bytes_up, "who": got.senders.names}
