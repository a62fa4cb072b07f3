"""`LocalTraining`: the local update of a learning algorithm on a PyTorch model, for one client or a cohort."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from atoll.core.algebra.aggregate import Aggregate, Total
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.errors import CompositionError, ConfigError, DataError, nearest
from atoll.learn.wrapped import Drawing

from .backend import device_of
from .blocks.choices import Choices
from .blocks.cohort import Runner
from .blocks.decide import decide
from .blocks.pool import CohortSums, Pool, Privates, TrainedBatch, columns_of
from .blocks.source import RowSource, StoredPool
from .blocks.sums import in_rows
from .buffers import BufferRules
from .client import ClientTraining, without_buffers
from .examples.choose import way_of
from .network import FunctionalModule
from .reference import as_tensors

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import nn

    from atoll.learn.algorithm import Algorithm

__all__ = ["LocalTraining"]

_DTYPES = {"float32": torch.float32, "float64": torch.float64}
_CHUNK = 512  # clients whose rows are held at once
_FETCHED = 4 << 20  # bytes of rows fetched in the time of a message to a worker and its answer


class LocalTraining(ClientTraining):
    """Runs an algorithm's local update on a model.

    ``one`` is the readable reference; ``many`` gives the same to 1e-5 relative, for a cohort, in blocks; ``many_sum``
    gives only the sums, which is faster if nothing needs a single client's reply.

    Args:
        model: any ``torch.nn.Module``; it is copied, never changed.
        algorithm: the local update, with its epochs (or steps) and batch size.
        loss: a name (see `LOSSES`) or a callable; see `atoll.learn.local.own_loss.LossSignature` for what it may
            ask for.
        device: cpu, cuda, mps or auto.
        dtype: ``"float32"`` or ``"float64"``.
        compile: "auto" (compile if the expected work repays it), "always" or "never".
        buffers: what training writes beside the parameters: "averaged" (it travels in the broadcast and the reply; see
            `atoll.torch.buffers`) or "local" (it stays in the client's private state); or the rules that several local updates of a model share.
        volume: client updates expected in the whole run, for "auto"; ``None`` assumes 2,000.
        choices: a record of earlier decisions, to repeat them.
        loss_metric: name of the metric that carries each client's mean training loss; ``""`` for none.
        protected: whether something makes replies private, so that buffers which follow the data must not leave.
        singly: whether the server sees single replies; see `atoll.learn.local.reports.buffer_replies`.
        measured: name of the loss for evaluation if ``loss`` needs what exists only in training.
        others: further losses that the algorithm's steps may ask for.

    Raises:
        ConfigError: an unknown setting, or a device that is not available.
        DataError: a model without trainable parameters.
    """

    def __init__(
        self,
        model: nn.Module,
        algorithm: Algorithm,
        *,
        loss: Any = "cross_entropy",
        device: str = "cpu",
        dtype: str = "float32",
        compile: str = "auto",  # noqa: A002 - the word that PyTorch uses
        buffers: str | BufferRules = "averaged",
        volume: int | None = None,
        choices: dict[str, Any] | None = None,
        loss_metric: str = "loss",
        protected: bool = False,
        singly: bool = True,
        measured: str = "cross_entropy",
        others: Sequence[Any] = (),
    ) -> None:
        _one_of("compile", compile, ("auto", "always", "never"))
        if not isinstance(buffers, BufferRules):
            _one_of("buffers", buffers, ("averaged", "local"))
        _one_of("dtype", dtype, tuple(_DTYPES))
        if dtype == "float64" and device_of(device).type == "mps":
            raise ConfigError(
                f"a model in double precision with device={device!r}: MPS computes in single precision alone",
                where="Training.device",
                remedy="use device='cpu', or a model.float()",
            )
        super().__init__(
            FunctionalModule(model, loss, device_of(device), _DTYPES[dtype], measured, others),
            algorithm,
            compile=compile,
            buffers=buffers if isinstance(buffers, BufferRules) else BufferRules(buffers),
            volume=2000 if volume is None else volume,
            loss_metric=loss_metric,
            protected=protected,
            singly=singly,
        )
        self.asked = algorithm
        self._choices = None if choices is None else Choices.of(choices, self.network.device.type)
        self._runner: Runner | None = None
        self._shape: tuple[int, ...] | None = None
        self._stored: NDArray[Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out programs: another process makes its own."""
        return {**self.__dict__, "_runner": None}

    @property
    def choices(self) -> dict[str, Any]:
        """Return the decisions as a plain dict; empty before the first cohort."""
        return {} if self._choices is None else self._choices.record()

    @choices.setter
    def choices(self, record: dict[str, Any]) -> None:
        self._choices = Choices.of(record, self.network.device.type) if record else None

    @property
    def seconds(self) -> dict[str, float]:
        """Return the time spent on tracing and compiling so far, and the estimates behind the decision about native code.

        ``expected_plain`` is the processor time of all local updates of the run without native code, ``expected_native`` the time that it takes to make
        it. Both are arithmetic, not measurements.
        """
        return (
            {"trace": 0.0, "compile": 0.0}
            if self._runner is None
            else {**self._runner.seconds, **self._runner.expected}
        )

    def one(
        self,
        shard: Any,
        broadcast: Tree,
        client: Tree,
        key: int,
        noise: Rng | None = None,
        epochs: int | None = None,
    ) -> tuple[dict[str, Aggregate], Tree]:
        """Train one client.

        Args:
            shard: columns ``x`` and ``y``.
            broadcast: what the server sent: ``"params"`` and anything else that the algorithm needs.
            client: the private state, ``None`` before the first round.
            key: the client's random key.
            noise: the source of the algorithm's draws, instead of the key.
            epochs: epochs (or steps, if the algorithm counts them) in place of the algorithm's own.

        Returns:
            The reply (with the training loss as a metric) and the new private state.

        Raises:
            DataError: the data does not fit the model.
        """
        pool = RowSource([shard], 1).pool(np.zeros(1, np.int64), self.network)
        pool.epochs = epochs
        self.check(pool, "the client's data", broadcast)
        outcome = self._train_one(pool, 0, broadcast, client, key, noise)
        return outcome.reply, outcome.state

    def one_of_many(
        self,
        shard: Any,
        broadcast: Tree,
        client: Tree,
        key: int,
        noise: Rng | None = None,
        epochs: int | None = None,
    ) -> tuple[dict[str, Aggregate], Tree]:
        """Train one client as a cohort of one, in the programs of cohorts, if its steps draw on its secret; otherwise as ``one`` does."""
        if self.algorithm.example_steps is None or noise is None or not len(columns_of(shard)["y"]):
            return self.one(shard, broadcast, client, key, noise, epochs)
        states, keys = None if client is None else [client], np.array([key], dtype=np.uint64)
        (batch,) = self.many([shard], broadcast, states, keys, epochs, [noise])
        for error in batch.errors.values():
            raise error
        return {name: aggregate.row(0) for name, aggregate in batch.reply.items()}, batch.state(0)

    def expected_seconds(self, clients: int) -> float:
        """Return the seconds of one core for a cohort like the last one prepared, by arithmetic alone; 0 if threads or a GPU do the work."""
        shared = self.network.device.type != "cpu" or (self._choices is not None and self._choices.threads > 1)
        return 0.0 if self._runner is None or shared else self._runner.seconds_a_client * clients

    def check_shard(self, shard: Any, where: str = "the model", *, trains: bool = True) -> None:
        """Refuse a client's data, or rows for evaluation, that do not fit the model; see `check`."""
        loss = self.network.loss if trains else self.network.measured
        pool = RowSource([shard], 1).pool(np.zeros(1, np.int64), self.network, loss)
        if trains:
            self.check(pool, where)
        elif len(pool.labels):
            loss.check(self.network.settle(pool, where), pool.labels, where)

    def check(self, pool: Pool, where: str, broadcast: Tree = None) -> None:
        """Refuse data that does not fit the model.

        Args:
            pool: rows.
            where: the place that the error names.
            broadcast: what the server sent, if known.

        Raises:
            DataError: labels outside the model's outputs, a wrong shape, or fewer rows than the loss needs.
            ConfigError: a row has no label, and the loss cannot leave it out.
        """
        self._require_rows(pool, where)
        stored = pool.stored if isinstance(pool, StoredPool) else None
        if stored is not None and stored is self._stored:
            return
        if len(pool.labels) == 0:
            self.refuse_leak(pool.x)  # and so look at what a step writes: the form of the rows is known without a row
            return
        if self._shape is None or not self.network.loss.form:
            sent = None if broadcast is None else as_tensors(without_buffers(broadcast), self.network)
            self._shape = self.network.settle(pool, where, sent)
            self.refuse_leak(pool.x)
        self.network.loss.check(self._shape, pool.labels, where)
        self.network.loss.check_holes(pool.columns, where)
        if stored is not None:
            # Labels that all fit, of any client, need no second check.
            with contextlib.suppress(DataError):
                self.network.loss.check(self._shape, stored, where)
                self._stored = stored

    def _require_rows(self, pool: Pool, where: str) -> None:
        """Refuse clients with fewer rows than the loss needs; clients without any row do not count."""
        fewest = getattr(self.network.loss.fn, "fewest", 1)
        few = pool.sizes[(pool.sizes > 0) & (pool.sizes < fewest)]
        if len(few):
            raise DataError(
                f"{few[0]} row{'' if few[0] == 1 else 's'}, and the loss {self.network.loss.name} needs {fewest}",
                where=where,
                remedy="give the client more rows, or go on without it (errors='drop')",
            )

    def many(
        self,
        shards: Any,
        broadcast: Tree,
        clients: Sequence[Tree] | Privates | None,
        keys: NDArray[np.uint64],
        epochs: int | None = None,
        secrets: Sequence[Rng] | None = None,
    ) -> Iterator[TrainedBatch]:
        """Train a cohort in blocks.

        Args:
            shards: one for each client, or `atoll.torch.blocks.source.Rows` for fetching many at once.
            broadcast: what the server sent.
            clients: private states, ``None`` entries before a client's first round; ``None`` for no state at all.
            keys: one random key for each client.
            epochs: epochs (or steps) in place of the algorithm's own; programs do not depend on it.
            secrets: a stream of each client's secret, for the algorithm's draws, instead of the key.

        Yields:
            Blocks whose values have a leading client axis, as NumPy arrays. Clients with a non-finite loss or update
            are in ``rejected``. Exceptions from a client's rows, or from the model on them, are in ``errors``; the
            other clients are trained all the same.
        """
        runner = self._open_runner()
        unfit: dict[int, Exception] = {}
        for positions, pool, states in self._chunks(shards, broadcast, clients, keys, epochs, unfit, secrets):
            own = keys[positions]
            try:
                chosen = self._choose_mode(pool, broadcast, states, own)
            except CompositionError:
                raise
            except Exception:
                chosen = Choices("each", reason="on none of these clients could it be tried")
            yield from runner.blocks(chosen, positions, pool, broadcast, states, own)
        if unfit:
            yield TrainedBatch.make_failed(unfit)

    def many_sum(
        self,
        shards: Any,
        broadcast: Tree,
        clients: Sequence[Tree] | Privates | None,
        keys: NDArray[np.uint64],
        epochs: int | None = None,
    ) -> CohortSums:
        """Train a cohort and return only its weighted sums; see `many` for the arguments.

        Raises:
            Exception: an exception from a client's rows, or from the model on them; `many` shows whose.
        """
        made = self._fresh(len(keys))
        self._add_up(made, shards, broadcast, clients, keys, epochs)
        return made

    def many_summands(
        self,
        shards: Any,
        broadcast: Tree,
        clients: Sequence[Tree] | Privates | None,
        keys: NDArray[np.uint64],
        epochs: int | None = None,
    ) -> CohortSums | None:
        """Train a cohort in native code and return what each client adds to the sums; see `many` for the arguments.

        Returns:
            Totals with a leading axis of the kept clients, or ``None`` if native code cannot do all of it.

        Raises:
            Exception: an exception from a client's rows, or from the model on them; `many` shows whose.
        """
        if self._choices is None or not self._open_runner().natives.possible(self._choices):
            return None
        made = self._fresh(len(keys))
        made.rows = []
        if not self._add_up(made, shards, broadcast, clients, keys, epochs):
            return None
        kept, made.totals = in_rows(made.rows)
        weights = made.sizes[kept].astype(np.float64)
        if self.loss_metric:
            made.totals[self.loss_metric] = Total("mean", made.losses[kept] * weights, weights, 1, "metric")
        return made

    def _fresh(self, count: int) -> CohortSums:
        zeros = np.zeros(count, np.int64)
        return CohortSums({}, zeros[:0], {}, [], zeros, np.zeros(count), zeros.copy())

    def _add_up(
        self,
        made: CohortSums,
        shards: Any,
        broadcast: Tree,
        clients: Sequence[Tree] | Privates | None,
        keys: NDArray[np.uint64],
        epochs: int | None,
    ) -> bool:
        """Train a cohort and add it up; return whether all of it was added; only totals of single clients can be incomplete."""
        runner = self._open_runner()
        for positions, pool, states in self._chunks(shards, broadcast, clients, keys, epochs):
            made.sizes[positions] = pool.sizes
            own = keys if len(positions) == len(keys) else keys[positions]
            chosen = self._choose_mode(pool, broadcast, states, own)
            if not runner.add_up(made, chosen, positions, pool, broadcast, states, own):
                return False
        made.kept = np.arange(len(keys))
        if made.rejected:
            made.kept = np.delete(made.kept, list(made.rejected))
        return True

    def prepare(
        self,
        shards: Any,
        broadcast: Tree,
        clients: Sequence[Tree] | Privates | None,
        keys: NDArray[np.uint64],
        epochs: int | None = None,
        cores: int = 1,
    ) -> None:
        """Decide, trace and compile on a sample of the cohort that one worker will get, before workers are forked.

        Native code shares cohorts among threads instead, one per core, if it can read rows in place, or if this process
        fetches all rows about as fast as workers would send their sums.
        """
        self.many_sum(shards, broadcast, clients, keys, epochs)
        for positions, pool, states in self._chunks(shards, broadcast, clients, keys, epochs):
            runner = self._open_runner()
            if self._choices is not None:
                runner.warm(self._choices, pool, broadcast, states)
            stays = isinstance(pool, StoredPool)
            others = 0.0 if stays else pool.x.nbytes / len(positions) * len(keys) * (cores - 1)
            if cores > 1 and self._choices is not None and runner.natives.ready and others <= _FETCHED:
                self._choices = replace(self._choices, threads=cores)
            break

    def _chunks(
        self,
        shards: Any,
        broadcast: Tree,
        clients: Sequence[Tree] | Privates | None,
        keys: NDArray[np.uint64],
        epochs: int | None,
        unfit: dict[int, Exception] | None = None,
        secrets: Sequence[Rng] | None = None,
    ) -> Iterator[tuple[NDArray[np.int64], Pool, Privates]]:
        """Fetch a cohort's rows in chunks; clients whose rows do not fit the model are added to ``unfit`` if given."""
        source, private = RowSource(shards, len(keys)), Privates.of(clients, len(keys))
        for begin in range(0, len(keys), _CHUNK):
            positions = np.arange(begin, min(begin + _CHUNK, len(keys)))
            try:
                pool = self._fitting(source, positions, "the cohort's data", broadcast)
            except Exception:
                found = {} if unfit is None else self._find_refused(source, positions)
                if unfit is None or not found:
                    raise
                unfit.update(found)
                positions = np.delete(positions, np.array(list(found)) - begin)
                if not len(positions):
                    continue
                pool = self._fitting(source, positions, "the cohort's data", broadcast)
            pool.epochs = epochs
            pool.secrets = None if secrets is None else [secrets[i] for i in positions.tolist()]
            if self.algorithm.example_steps is not None:
                way_of(self.network, pool.columns, as_tensors(without_buffers(broadcast), self.network))
            states = private[positions] if len(positions) < len(private) else private
            if isinstance(self.algorithm, Drawing):
                given = zip(range(len(positions)), keys[positions].tolist(), strict=True)
                own: Sequence[Rng | None] = pool.secrets or [None] * len(positions)
                drawn = [self.algorithm.hand_state(broadcast["params"], states[i], key, own[i]) for i, key in given]
                states = Privates(drawn, len(positions))
            yield positions, pool, states

    def _fitting(self, source: RowSource, positions: NDArray[np.int64], where: str, broadcast: Tree = None) -> Pool:
        pool = source.pool(positions, self.network)
        self.check(pool, where, broadcast)
        return pool

    def _find_refused(self, source: RowSource, positions: NDArray[np.int64]) -> dict[int, Exception]:
        """Return the clients whose rows cannot be fetched or do not fit the model, and why."""
        found: dict[int, Exception] = {}
        for position in positions:
            try:
                self._fitting(source, np.array([position]), "the client's data")
            except Exception as error:
                found[int(position)] = error
        return found

    def _choose_mode(self, pool: Pool, broadcast: Tree, states: Privates, keys: NDArray[np.uint64]) -> Choices:
        """Return the recorded decision, or make one on these clients."""
        if self._choices is None:
            self._choices = decide(self._open_runner(), pool, broadcast, states, keys)
        return self._choices

    def _open_runner(self) -> Runner:
        if self._runner is None:
            self._runner = Runner(self)
        return self._runner


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(
            f"{name}={value!r} is not known.{nearest(str(value), known)}",
            where="LocalTraining",
            remedy=f"use one of {', '.join(known)}",
        )
