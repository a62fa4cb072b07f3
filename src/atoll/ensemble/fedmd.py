"""FedMD: clients with models of different forms learn from each other's answers to public rows.

The students are the clients: each keeps a model of its own form, which nobody else sees. Only answers to public rows travel, so that a reply has the same size for every model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from atoll.core.algebra.aggregate import Aggregate, Mean
from atoll.core.errors import ConfigError, DataError, PolicyError
from atoll.core.event import Event, NonPrivate
from atoll.core.exposure import Explanation, Exposure
from atoll.core.federation.reducer import Plain, Reducer
from atoll.core.job import Job, Prepared
from atoll.core.requests.request import ReplyForm
from atoll.core.requests.task import Task
from atoll.core.rooms import Named
from atoll.core.validation import Checked, require_parts
from atoll.data.missing import labelled_rows
from atoll.torch import seeded

from .distilling import Distillation, answer_rows, fit_labels, imitate, rows_for
from .joining import JoinedLeaves, log_probabilities, probabilities_of
from .model import score_probabilities

if TYPE_CHECKING:
    from atoll.core.algebra.tree import Tree
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island
    from atoll.core.requests.results import Combined

__all__ = ["KEPT_MODEL", "FedMD"]

KEPT_MODEL = "fedmd-model"
"""The named result that stays at each client: the numbers of its model by name."""


@dataclass(frozen=True, kw_only=True)
class FedMD(Checked, Job):
    """Model distillation between clients whose models may be of different forms (Li, Wang 2019); its outcome maps each client to its model.

    First every client trains on the public rows, if these have labels, and on its own. In each round it answers some public rows; the server takes the mean of the answers'
    logits, and sends it to all. Every client imitates the mean (``imitation``), and trains on its own rows again (``revisit``). A reply has ``rows x classes`` numbers, whatever
    the model's size, and it is a mean of equal weights, so a secure reducer can add it up. The paper imitates class scores by their absolute difference; here a client
    takes `Distillation`'s divergence.

    In a simulation, an observer sees the clients' models and scores them on the test rows. Between organisations the outcome is empty: each model stays at its site, as the named
    result ``fedmd-model``. The server scores the mean answer on public rows that have labels.

    Example::

        models = {name: mlp(64, 10, (16 + 8 * place,)) for place, name in enumerate(islands.names)}
        simulate(FedMD(models=models, rows=public), islands)

    Attributes:
        models: one model, or what makes one, for all clients; or by a client's name.
        rows: public rows, which the server sends; ``None`` for ``islands.public``, and in a job between organisations for ``data.public`` of its file.
        labels: their classes, as whole numbers; ``None`` for those of ``islands.public``, if all of its rows have one, and if nobody knows them.
        rounds: how many.
        answered: public rows of a round, drawn; 0 for all.
        begin: the training on labelled rows before the first round.
        imitation: how a client imitates the mean, the paper's digest.
        revisit: the training on a client's own rows in each round; its temperature does not count.
        reducer: how answers are added up; ``None`` for plainly.
    """

    kind: ClassVar[str] = "fedmd"
    one_form: ClassVar[bool] = True

    models: Annotated[Any, Named("model")] | Mapping[str, Annotated[Any, Named("model")]] = field(repr=False)
    rows: Any = field(default=None, repr=False, compare=False)
    labels: Any = field(default=None, repr=False, compare=False)
    rounds: int = 10
    answered: int = 0
    begin: Distillation = field(default_factory=Distillation)
    imitation: Distillation = field(default_factory=lambda: Distillation(steps=50))
    revisit: Distillation = field(default_factory=lambda: Distillation(steps=50))
    reducer: Reducer | None = None

    def __post_init__(self) -> None:
        settings = (Distillation, "atoll.ensemble.Distillation()")
        reducer = (Reducer, "atoll.reducers.SecureAggregation()")
        require_parts(
            self, {"begin": settings, "imitation": settings, "revisit": settings}, optional={"reducer": reducer}
        )
        if self.rounds < 1 or self.answered < 0:
            raise ConfigError(
                f"rounds={self.rounds}, answered={self.answered}",
                where="FedMD",
                remedy="use at least one round, and 0 or more public rows",
            )
        if self.rows is None and self.labels is not None:
            raise ConfigError("labels without rows", where="FedMD.labels", remedy="give the rows too, as rows=")
        if self.rows is not None and not len(self.rows):
            raise DataError(
                "there is no public row to answer", where="FedMD.rows", remedy="give rows, which may be generated"
            )
        if self.labels is not None and len(self.labels) != len(self.rows):
            raise DataError(
                f"{len(self.labels)} labels of {len(self.rows)} public rows",
                where="FedMD.labels",
                remedy="give each row its class, or labels=None",
            )

    @property
    def most_rounds(self) -> int:
        """The number of rounds."""
        return self.rounds

    def explain(self, data: Any = None, clients: int = 0) -> Explanation:
        """Return who sees the answers to public rows."""
        count = clients if data is None else len(data)
        what = "of answers to public rows, classes x rows numbers"
        seen = [
            *(self.reducer or Plain()).exposures(count or 2),
            Exposure("every client", f"the mean {what}"),
            Exposure("every client", "the public rows"),
        ]
        notes = [
            f"a reply is a table {what}; no parameter of a model and no row of its own leaves a client",
            "no noise is added: answers tell about the rows that a model was trained on",
        ]
        return Explanation(self.title, count, tuple(seen), {"rounds": self.rounds}, tuple(notes))

    def prepare(self, data: Any) -> PreparedAnswers:
        """Make the tasks for these clients.

        Raises:
            ConfigError: a client has no model, or a model is named for nobody.
            DataError: labels are no classes.
        """
        task = getattr(data, "task", "classification")
        if task not in ("classification", "binary"):
            raise DataError(
                f"labels of the task {task!r} are no classes",
                where="FedMD",
                remedy="train one model with Training",
            )
        return PreparedAnswers(self, data)


class PreparedAnswers(Prepared):
    """A `FedMD` for one population."""

    def __init__(self, job: FedMD, data: Any) -> None:
        self.job, self.data = job, data
        self.names = [str(name) for name in data.names]
        self.tasks = (self.start, self.turn, self.show)
        if isinstance(job.models, Mapping):
            lost = [name for name in self.names if name not in job.models]
            if lost:
                raise ConfigError(
                    f"client {lost[0]!r} has no model",
                    where="FedMD.models",
                    remedy="give each client one, or one model for all",
                )

    # ---------------------------------------------------------------- at the server

    async def program(self, fed: Federation) -> dict[str, nn.Module]:
        """Run the rounds; each is recorded with the accuracy of the mean answer, and in a simulation with that of the clients' models on the test rows."""
        job = self.job
        rows, labels = self._public_rows()
        state = await fed.restore(None)
        if state is None:
            state = {"seed": fed.rng.child("models").key % 2**31, "done": 0}
            chosen = self._draw(fed, 1, len(rows))
            message: Tree = {"seed": state["seed"], "answer": rows[chosen]}
            if labels is not None:
                message |= {"rows": rows, "labels": labels}
            answers = await self._ask(fed, self.start, message, "start", self._outputs(state["seed"], rows))
            state |= {"answers": np.asarray(answers["answers"]), "clients": answers.n}
            await fed.checkpoint(state)
        classes = int(np.asarray(state["answers"]).shape[1])
        while state["done"] < job.rounds and fed.ending is None:
            number = state["done"] + 1
            before, after = (self._draw(fed, place, len(rows)) for place in (number, number + 1))
            digested = {"seed": state["seed"], "rows": rows[before], "mean": state["answers"], "answer": rows[after]}
            answers = await self._ask(fed, self.turn, digested, ("turn", number), classes)
            state = {**state, "answers": np.asarray(answers["answers"]), "done": number, "clients": answers.n}
            row = {"round": number, "replied": answers.n, **_score_answers(state["answers"], labels, after)}
            if not fed.live and len(getattr(self.data, "test", None) or ()):
                row |= self._score(await self._show(fed, number, state["seed"]))
            fed.record(row)
            await fed.checkpoint(state)
        return {} if fed.live else await self._show(fed, "end", state["seed"])

    async def _ask(self, fed: Federation, task: Task, message: Tree, at: Any, classes: int) -> Combined:
        """Return the mean of the clients' answers; an answer of another form does not count."""
        form = ReplyForm({"answers": Mean(np.zeros((len(message["answer"]), classes), np.float32))})
        return await fed.sum(fed.parties, task, message, at=at, reducer=self.job.reducer, expects=lambda: form)

    def _public_rows(self) -> tuple[NDArray[Any], NDArray[np.int64] | None]:
        """Return the public rows, and their classes if all are known.

        Raises:
            DataError: there are none.
        """
        rows, labels, public = self.job.rows, self.job.labels, getattr(self.data, "public", None)
        if rows is None:
            if public is None or not len(public):
                raise DataError(
                    "there is no public row to answer",
                    where="FedMD.rows",
                    remedy="give rows=, which may be generated, or islands.with_public(rows); in a job file, a source as data.public",
                )
            rows = public.x
            labels = public.y if labelled_rows(public).all() else None
        known = None if labels is None else np.maximum(np.asarray(labels, np.int64), 0)  # of two classes also -1 and 1
        return np.asarray(rows), known

    def _outputs(self, seed: int, rows: NDArray[Any]) -> int:
        """Return the number of classes that the models answer.

        Raises:
            DataError: they answer different numbers, or cannot answer the public rows.
        """
        names = self.names if isinstance(self.job.models, Mapping) else self.names[:1]
        found = {
            name: int(answer_rows(self._model_of(name, seed).eval(), rows[:1], "FedMD.rows").shape[1]) for name in names
        }
        first = next(iter(found))
        other = next((name for name in found if found[name] != found[first]), None)
        if other is not None:
            raise DataError(
                f"the model of {other!r} answers {found[other]} classes, and that of {first!r} {found[first]}",
                where="FedMD.models",
                remedy="give all models as many outputs as there are classes",
            )
        return found[first]

    def _draw(self, fed: Federation, number: int, count: int) -> NDArray[np.int64]:
        if not 0 < self.job.answered < count:
            return np.arange(count)
        return np.sort(fed.rng.child("rows", number).generator().choice(count, self.job.answered, replace=False))

    async def _show(self, fed: Federation, number: int | str, seed: int) -> dict[str, nn.Module]:
        """Return the clients' models, as an observer of a simulation sees them."""
        watch = fed.scope("observer")
        watch.settle_at(fed.parties, fed.hub, fed.home)
        watch.observe()
        told = (await watch.exchange(watch.parties, self.show, {}, at=("show", number))).by_name()
        return {
            str(name): self._restore(str(name), seed, reply["state"]).eval().requires_grad_(False)
            for name, reply in told.items()
            if reply["state"] is not None
        }

    def _score(self, found: Mapping[str, nn.Module]) -> dict[str, float]:
        test = self.data.test
        y = np.asarray(test.y)
        with torch.no_grad():
            each = [probabilities_of(log_probabilities(one(rows_for(one, test.x)))) for one in found.values()]
            first = next(iter(found.values()))
            joined = probabilities_of(JoinedLeaves(list(found.values()), "logits")(rows_for(first, test.x)))
        alone = [score_probabilities(one, y)["accuracy"] for one in each]
        return {
            "test/accuracy": float(np.mean(alone)),
            "test/joined_accuracy": score_probabilities(joined, y)["accuracy"],
        }

    # ---------------------------------------------------------------- at a client

    def _model_of(self, name: str, seed: int) -> nn.Module:
        models = self.job.models
        given = models[name] if isinstance(models, Mapping) else models
        return deepcopy(given) if isinstance(given, nn.Module) else seeded(given, seed)

    def _restore(self, name: str, seed: int, kept: Mapping[str, Any]) -> nn.Module:
        """Return a client's model with the values that it has kept."""
        made = self._model_of(name, seed)
        made.load_state_dict({key: torch.tensor(value) for key, value in kept.items()})
        return made

    @property
    def start(self) -> Task:
        """Train on labelled rows, and answer public ones."""
        return Task("atoll.ensemble.distilling:start", self._start)

    @property
    def turn(self) -> Task:
        """Imitate the mean answer, train on the client's own rows, and answer again."""
        return Task("atoll.ensemble.distilling:turn", self._turn)

    @property
    def show(self) -> Task:
        """Show the observer of a simulation a client's model."""
        return Task("atoll.ensemble.distilling:show", self._show_model)

    def _start(self, island: Island, message: Tree) -> dict[str, Aggregate]:
        made = self._model_of(island.name, int(message["seed"]))
        if "labels" in message:
            x, y = rows_for(made, message["rows"]), torch.tensor(np.asarray(message["labels"]))
            made = fit_labels(made, x, y, self.job.begin, island.rng.child("public"))
        made = self._train_own(made, island, self.job.begin)
        return self._answer(island, made, int(message["seed"]), message["answer"])

    def _turn(self, island: Island, message: Tree) -> dict[str, Aggregate]:
        seed = int(message["seed"])
        if island.state is None:  # it was away when the others began
            made = self._train_own(self._model_of(island.name, seed), island, self.job.begin)
        else:
            made = self._restore(island.name, seed, island.state["model"])
        x, mean = rows_for(made, message["rows"]), torch.tensor(np.asarray(message["mean"]))
        made = imitate(made, x, mean.to(x.dtype), self.job.imitation, island.rng.child("digest"))
        return self._answer(island, self._train_own(made, island, self.job.revisit), seed, message["answer"])

    def _train_own(self, made: nn.Module, island: Island, how: Distillation) -> nn.Module:
        known = labelled_rows(island.data)
        y = np.maximum(np.asarray(island.data["y"])[known], 0).astype(np.int64)  # of two classes also -1 and 1
        x = rows_for(made, np.asarray(island.data["x"])[known])
        return fit_labels(made, x, torch.tensor(y), how, island.rng.child("own")) if len(y) else made

    def _answer(self, island: Island, made: nn.Module, seed: int, rows: Any) -> dict[str, Aggregate]:
        """Keep a client's model as its private state, and between organisations as a result that stays, and return its answers to public rows."""
        model = {name: value.numpy().copy() for name, value in made.state_dict().items()}
        island.state = {"seed": seed, "model": model}
        # In every round: a site that lets no result stay takes no part, instead of training for nothing.
        if island.remote:
            island.leave(KEPT_MODEL, model)
        return {"answers": Mean(answer_rows(made.eval(), np.asarray(rows), "FedMD.rows").float().numpy())}

    def _show_model(self, island: Island, message: Tree) -> Tree:
        """Show the observer a model.

        Raises:
            PolicyError: a server of another organisation asks.
        """
        del message
        if island.remote:
            raise PolicyError(
                "the model of a client stays with it",
                where="FedMD",
                remedy=f"see the result {KEPT_MODEL!r} at the site",
            )
        return {"state": None if island.state is None else island.state["model"]}

    # ---------------------------------------------------------------- what is known of it

    def most(self, rows: int) -> Sequence[Event]:
        """Return that answers leave without noise."""
        del rows
        return (NonPrivate(what="answers to public rows"),)

    def reason(self, value: Any, fed: Any) -> str:
        """Return why the rounds ended."""
        del value
        return str(fed.ending or f"all {self.job.rounds} rounds are done")

    def facts(self, outcome: Mapping[str, nn.Module]) -> Mapping[str, Any]:
        """Return how large the models are that are seen here."""
        sizes = {name: sum(one.numel() for one in model.parameters()) for name, model in outcome.items()}
        where = {} if sizes else {"models": f"at each site, as the result {KEPT_MODEL}"}
        return {"result": {"clients": len(self.names), **({"parameters": sizes} if sizes else where)}}


def _score_answers(
    answers: NDArray[Any], labels: NDArray[np.int64] | None, chosen: NDArray[np.int64]
) -> dict[str, float]:
    """Return how often the mean answer is right, where the classes of public rows are known."""
    if labels is None:
        return {}
    return {"public/accuracy": float((answers.argmax(1) == labels[chosen]).mean())}
