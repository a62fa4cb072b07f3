"""Cohorts in blocks: runs them as decided, keeps the programs, and turns blocks into replies or sums."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Mean, Total
from atoll.core.algebra.tree import Tree
from atoll.core.errors import CompositionError
from atoll.core.facets import facet
from atoll.learn.algorithm import Stateful

from ..leaves import Layout, flatten, join_reply
from ..tracing.compiler import notice
from .block import Block, TrainedBlock
from .choices import Choices
from .course import BlockCourse, courses, drawn_courses, drills, is_uneven, natural_widths
from .native_cohort import Natives
from .pool import CohortSums, Privates, TrainedBatch
from .schedule import LabelledRows, cut_blocks, schedule
from .sums import hand_over, merge, over, rejections, summands
from .update import Update, place, sent_leaves

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..client import ClientTraining
    from .pool import Pool

__all__ = ["Runner"]

Tensor = torch.Tensor
_GROUP = 16  # clients of one batch if they are trained one after another


class Runner:
    """Runs cohorts for one `ClientTraining`.

    An exception from clients trained together does not show which client caused it. These clients are then trained one
    by one, by the reference, and an exception there belongs to its client.

    Attributes:
        trying: whether a way to run is on trial; an exception rejects it.
    """

    def __init__(self, training: ClientTraining) -> None:
        self.training = training
        self.network = training.network
        self.algorithm = training.algorithm
        self.trying = False
        self._failure = ""
        self._blocks: dict[Any, Block] = {}
        self.natives = Natives(self.network, self.algorithm)
        self.seconds_a_client = 0.1  # by arithmetic; until a model is counted, worth a worker process
        self.trial_seconds: dict[str, float] = {"trace": 0.0, "compile": 0.0}
        self.expected: dict[str, float] = {}  # what the decision about native code compared, in seconds

    @property
    def seconds(self) -> dict[str, float]:
        """Return the time spent on tracing and compiling."""
        made = [self.trial_seconds, self.natives.seconds, *(block.seconds for block in self._blocks.values())]
        return {what: sum(m[what] for m in made) for what in ("trace", "compile")}

    @property
    def runs_natively(self) -> bool:
        """Tell whether whole updates, or all steps of a block, ran in native code so far."""
        return self.natives.ready or any(block.runs_natively for block in self._blocks.values())

    def blocks(
        self,
        chosen: Choices,
        positions: NDArray[np.int64],
        pool: Pool,
        broadcast: Tree,
        states: Privates,
        keys: NDArray[np.uint64],
    ) -> Iterator[TrainedBatch]:
        """Train some clients and yield their replies in blocks, and the exceptions of others."""
        if chosen.mode == "each":
            yield from self._one_by_one(positions, pool, broadcast, states, keys)
            return
        waiting: list[TrainedBatch] = []
        for members, block, trained, sent, private in self._train(chosen, pool, broadcast, states, keys, pardon=True):
            if trained is None:
                some = (pool.part(members), broadcast, states[members], keys[members])
                single = list(self._one_by_one(positions[members], *some))
                if not any(batch.errors for batch in single):
                    title, why = self.network.title, self._failure
                    notice(f"block:{title}", f"{title} is trained client by client where a block fails ({why})")
                yield from single
                continue
            made = self._replies(positions[members], block, trained, sent, private)
            errors = self._errors_of(made.rejected, positions, pool, broadcast, states, keys)
            if errors:
                made = _without(made, errors)
                yield TrainedBatch.make_failed(errors)
            waiting.append(made)
            if sum(len(batch.positions) for batch in waiting) >= _GROUP:
                yield _join(waiting)
                waiting = []
        if waiting:
            yield _join(waiting)

    def add_up(
        self,
        made: CohortSums,
        chosen: Choices,
        positions: NDArray[np.int64],
        pool: Pool,
        broadcast: Tree,
        states: Privates,
        keys: NDArray[np.uint64],
    ) -> bool:
        """Train some clients and add them to the sums; return ``False`` if only native code may do that, and cannot.

        Raises:
            Exception: the exception of one of them.
        """
        if made.rows is not None:
            left = self.natives.add_up(made, chosen, positions, pool, broadcast, states, keys)
            _raise_first(self._errors_of(made.rejected, positions, pool, broadcast, states, keys))
            return left is not None and not len(left)
        if chosen.mode == "each":
            for batch in self._one_by_one(positions, pool, broadcast, states, keys):
                _raise_first(batch.errors)
                _add_batch(made, batch)
            return True
        drawn = self.algorithm.example_steps is not None
        left = None if drawn else self.natives.add_up(made, chosen, positions, pool, broadcast, states, keys)
        if left is None or len(left):
            self._add_blocks(made, chosen, positions, pool, broadcast, states, keys, left)
        _raise_first(self._errors_of(made.rejected, positions, pool, broadcast, states, keys))
        if self.training.loss_metric:
            weights, losses = pool.sizes.astype(np.float64), made.losses[positions]
            if made.rejected:
                keep = np.array([p not in made.rejected for p in positions.tolist()])
                weights, losses = weights[keep], losses[keep]
            value, weight = np.float64((losses * weights).sum()), float(weights.sum())
            merge(made.totals, {self.training.loss_metric: Total("mean", value, weight, len(weights), "metric")})
        return True

    def _add_blocks(
        self,
        made: CohortSums,
        chosen: Choices,
        positions: NDArray[np.int64],
        pool: Pool,
        broadcast: Tree,
        states: Privates,
        keys: NDArray[np.uint64],
        which: NDArray[np.int64] | None,
    ) -> None:
        """Train clients (``which`` of them, or all) in blocks and add them to the sums."""
        if which is not None:
            pool, states, keys, positions = pool.part(which), states[which], keys[which], positions[which]
        sums: dict[int, Accumulator] = {}
        for members, block, trained, sent, private in self._train(chosen, pool, broadcast, states, keys):
            assert trained is not None  # noqa: S101
            sums.setdefault(id(block), Accumulator(block)).add(positions[members], trained, sent, private)
        for acc in sums.values():
            acc.hand_over(made)

    def privates(self, states: Privates, params: Tree, slots: int, chosen: Choices) -> tuple[list[Tensor], Layout]:
        """Return the private states of a block, stacked; empty slots repeat the first."""
        stacked, layout = states.leaves(lambda: facet(self.algorithm, Stateful).client_init(params))
        if chosen.mode == "single":
            return [place(self.network, leaf[0], channels_last=chosen.shapes.channels_last) for leaf in stacked], layout
        if slots > len(states):
            stacked = [np.concatenate([leaf, np.repeat(leaf[:1], slots - len(states), axis=0)]) for leaf in stacked]
        return [place(self.network, leaf) for leaf in stacked], layout

    def block(self, chosen: Choices, sent: Layout, private: Layout, pool: Pool, last: Block | None = None) -> Block:
        """Return the programs for blocks of one size; the last one, if this block is like it."""
        if last is not None and last.update.client == private:
            return last
        clients = chosen.block if chosen.mode == "vector" else 0
        shapes = chosen.shapes
        how = (clients, chosen.code, shapes.unroll, shapes.trimmed, shapes.channels_last)
        key = (how, pool.form, sent.key, private.key)
        found = self._blocks.get(key)
        if found is None:
            update = Update(self.network, self.algorithm, sent, private, clients, tuple(pool.columns))
            found = Block(update, chosen.code, chosen.shapes.unroll, trimmed=chosen.shapes.trimmed)
            self._blocks[key] = found
        return found

    def _train(
        self,
        chosen: Choices,
        pool: Pool,
        broadcast: Tree,
        states: Privates,
        keys: NDArray[np.uint64],
        *,
        pardon: bool = False,
    ) -> Iterator[tuple[NDArray[np.int64], Block, TrainedBlock | None, list[Tensor], list[Tensor]]]:
        """Train clients in blocks; with ``pardon``, a block that raises is ``None``, and the others go on."""
        if chosen.shapes.channels_last and pool.x.dim() == 4:
            pool.columns["x"] = pool.x.contiguous(memory_format=torch.channels_last)
        sent, sent_layout = sent_leaves(self.network, broadcast, channels_last=chosen.shapes.channels_last)
        last: Block | None = None
        for members, course in self._courses(chosen, pool, keys):
            slots = len(course.steps)
            private, layout = self.privates(states[members], broadcast["params"], slots, chosen)
            block = self.block(chosen, sent_layout, layout, pool, last)
            last = block
            trained: TrainedBlock | None = None
            try:
                trained = block.train(pool, course, sent, private)
            except CompositionError:
                raise
            except Exception as error:
                if self.trying or not pardon:
                    raise
                self._failure = f"{type(error).__name__}: {error}".splitlines()[0]
            yield members, block, trained, sent, private

    def _courses(
        self, chosen: Choices, pool: Pool, keys: NDArray[np.uint64]
    ) -> Iterator[tuple[NDArray[np.int64], BlockCourse]]:
        """Yield the clients of each block and their mini-batches."""
        if self.algorithm.example_steps is not None:
            yield from drawn_courses(
                pool,
                keys,
                self.algorithm,
                chosen.block if chosen.mode == "vector" else 0,
                trial=self.trying,
                native="steps" in chosen.code,
            )
            return
        exact, algorithm = not self.network.padded, pool.work(self.algorithm)
        sizes, labelled = pool.sizes, LabelledRows.of(pool, self.algorithm)
        if chosen.shapes.uneven or is_uneven(algorithm, sizes, keys) or self._strange(chosen, sizes):
            yield from courses(pool.offsets, keys, algorithm, chosen, exact, labelled)
            return
        if chosen.mode == "vector":
            for members in cut_blocks(sizes, chosen.block):
                plan = schedule(
                    members, pool.offsets, keys, algorithm, slots=chosen.block, exact=exact, labelled=labelled
                )
                yield members, BlockCourse.even(plan, chosen.shapes.widths)
            return
        # Clients of one size share the work of laying out their batches.
        for group in cut_blocks(sizes, _GROUP):
            alike = schedule(group, pool.offsets, keys, algorithm, exact=exact, labelled=labelled)
            for i in range(len(group)):
                yield group[i : i + 1], BlockCourse.even(alike.one(i), chosen.shapes.widths)

    def _strange(self, chosen: Choices, sizes: NDArray[np.int64]) -> bool:
        """Tell whether clients of one size have a width without a program."""
        return (
            chosen.shapes.widths is not None
            and int(natural_widths(self.algorithm, sizes[:1])[0]) not in chosen.shapes.widths
        )

    def warm(self, chosen: Choices, pool: Pool, broadcast: Tree, states: Privates) -> None:
        """Make all programs that cohorts of unequal clients can need, so that no worker has to."""
        if not chosen.shapes.uneven or chosen.mode == "each" or self.algorithm.example_steps is not None:
            return
        self.natives.warm(chosen, pool, broadcast, states[np.arange(1)])
        if self.natives.ready or "compiled" not in chosen.code:
            return
        sent, sent_layout = sent_leaves(self.network, broadcast, channels_last=chosen.shapes.channels_last)
        slots = chosen.block if chosen.mode == "vector" else 1
        private, layout = self.privates(states[np.arange(1)], broadcast["params"], slots, chosen)
        block = self.block(chosen, sent_layout, layout, pool)
        for course in drills(chosen, self.algorithm, slots):
            block.train(pool, course, sent, private)

    @torch.no_grad()
    def _replies(
        self,
        positions: NDArray[np.int64],
        block: Block,
        trained: TrainedBlock,
        sent: list[Tensor],
        private: list[Tensor],
    ) -> TrainedBatch:
        update = block.update
        inputs = [*trained.local, *sent, *private, trained.examples, trained.steps]

        def finish(*flat: Tensor) -> list[Tensor]:
            made = update.finish(*flat)
            assert update.reply is not None  # noqa: S101 - set by tracing
            return [*made, *update.finite(made[: update.reply.count])]

        made = list(block.program("finish", finish, inputs)(inputs))
        assert update.reply is not None  # noqa: S101
        assert update.state is not None  # noqa: S101
        count = len(positions)

        def lead(leaf: Tensor) -> Any:
            return _array(leaf if update.clients else leaf.unsqueeze(0), count)

        replies = [lead(leaf) for leaf in made[: update.reply.count]]
        states = [lead(leaf) for leaf in made[update.reply.count : update.reply.count + update.state.count]]
        flags = np.array([lead(flag) for flag in made[update.reply.count + update.state.count :]])
        flags = flags.reshape(-1, len(positions))  # a pass that does not reply has none
        losses = lead(trained.losses).astype(np.float64)
        reply = join_reply(update.reply.build(replies), update.kinds)
        if self.training.loss_metric:
            reply[self.training.loss_metric] = Mean(losses, examples=lead(trained.examples), role="metric")
        return TrainedBatch(
            positions,
            reply,
            update.state.build(states) if update.state.count else None,
            rejections(positions, list(update.kinds), flags, losses),
            steps=lead(trained.steps).astype(np.int64),
            losses=losses,
        )

    def _one_by_one(
        self, positions: NDArray[np.int64], pool: Pool, broadcast: Tree, states: Privates, keys: NDArray[np.uint64]
    ) -> Iterator[TrainedBatch]:
        for begin in range(0, len(positions), _GROUP):
            rows = range(begin, min(begin + _GROUP, len(positions)))
            made: list[TrainedBatch] = []
            errors: dict[int, Exception] = {}
            for i in rows:
                try:
                    made.append(self._single(positions[i], i, pool, broadcast, states[i], int(keys[i])))
                except CompositionError:
                    raise
                except Exception as error:
                    if self.trying:
                        raise
                    errors[int(positions[i])] = error
            if made:
                yield _join(made)
            if errors:
                yield TrainedBatch.make_failed(errors)

    def _errors_of(
        self,
        rejected: dict[int, str],
        positions: NDArray[np.int64],
        pool: Pool,
        broadcast: Tree,
        states: Privates,
        keys: NDArray[np.uint64],
    ) -> dict[int, Exception]:
        """Return what clients with a non-finite result raise when trained alone: perhaps an index beyond a table."""
        found: dict[int, Exception] = {}
        if self.trying or not self.network.looks_up or not rejected:
            return found
        for i, position in enumerate(positions.tolist()):
            if position in rejected:
                error = self.error_of(i, pool, broadcast, states, keys)
                found.update({} if error is None else {position: error})
        return found

    def error_of(
        self, at: int, pool: Pool, broadcast: Tree, states: Privates, keys: NDArray[np.uint64]
    ) -> Exception | None:
        """Return what a client raises when trained alone, if anything."""
        try:
            self.training._train_one(pool, at, broadcast, states[at], int(keys[at]), drawn=True)
        except Exception as error:
            return error
        return None

    def _single(self, position: Any, at: int, pool: Pool, broadcast: Tree, state: Tree, key: int) -> TrainedBatch:
        secret = None if self.trying or pool.secrets is None else pool.secrets[at]
        made = self.training._train_one(pool, at, broadcast, state, key, secret, drawn=True)
        positions = np.array([position], dtype=np.int64)
        reply = {
            name: type(a)(**{f: T.map(_with_axis, getattr(a, f)) for f in _data_fields(a)}, role=a.role)
            for name, a in made.reply.items()
        }
        flags = np.array([[_all_finite(a)] for a in made.reply.values()]).reshape(-1, 1)
        losses = np.array([float(np.mean(made.losses)) if made.losses else 0.0])
        empty = made.state is None or not flatten(made.state)[1].count
        return TrainedBatch(
            positions,
            reply,
            None if empty else T.map(_with_axis, made.state),
            rejections(positions, list(made.reply), flags, losses),
            steps=np.array([len(made.losses)]),
            losses=losses,
        )


def _add_batch(made: CohortSums, batch: TrainedBatch) -> None:
    keep = np.array([int(p) not in batch.rejected for p in batch.positions], dtype=np.float64)
    mask = None if keep.all() else keep
    merge(made.totals, {name: aggregate.block_sum(mask) for name, aggregate in batch.reply.items()})
    made.steps[batch.positions] = batch.steps
    made.losses[batch.positions] = batch.losses
    made.rejected.update(batch.rejected)
    if batch.states is not None:
        made.states.append((batch.positions, batch.states))


def _join(batches: list[TrainedBatch]) -> TrainedBatch:
    """Join blocks, one after the other, to one block."""
    if len(batches) == 1:
        return batches[0]
    first = batches[0]

    def cat(*leaves: Any) -> Any:
        # Leaves that are not numbers, such as None for no state inside another, are the same for all.
        return np.concatenate(leaves) if isinstance(leaves[0], np.ndarray) else leaves[0]

    reply = {
        name: type(a)(
            **{f: T.map(cat, *[getattr(b.reply[name], f) for b in batches]) for f in _data_fields(a)}, role=a.role
        )
        for name, a in first.reply.items()
    }
    return TrainedBatch(
        np.concatenate([b.positions for b in batches]),
        reply,
        None if first.states is None else T.map(cat, *[b.states for b in batches]),
        {p: why for b in batches for p, why in b.rejected.items()},
        steps=np.concatenate([b.steps for b in batches]),
        losses=np.concatenate([b.losses for b in batches]),
    )


def _without(batch: TrainedBatch, errors: dict[int, Exception]) -> TrainedBatch:
    """Return the block without the clients that raised."""
    keep = np.array([p not in errors for p in batch.positions.tolist()])

    def cut(leaf: Any) -> Any:
        return leaf[keep] if isinstance(leaf, np.ndarray) and leaf.ndim else leaf

    reply = {
        name: type(a)(**{f: T.map(cut, getattr(a, f)) for f in _data_fields(a)}, role=a.role)
        for name, a in batch.reply.items()
    }
    return TrainedBatch(
        batch.positions[keep],
        reply,
        None if batch.states is None else T.map(cut, batch.states),
        {p: why for p, why in batch.rejected.items() if p not in errors},
        steps=batch.steps[keep],
        losses=batch.losses[keep],
    )


def _raise_first(errors: dict[int, Exception]) -> None:
    for error in errors.values():
        raise error


def _data_fields(aggregate: Any) -> list[str]:
    return [name for name in aggregate.__dataclass_fields__ if name not in ("role", "kind", "summable")]


def _all_finite(aggregate: Any) -> bool:
    leaves = [leaf for name in _data_fields(aggregate) for leaf in T.leaves(getattr(aggregate, name))]
    return all(bool(np.isfinite(leaf).all()) for leaf in leaves if isinstance(leaf, np.ndarray | float))


def _with_axis(leaf: Any) -> Any:
    """Return a leaf with a client axis of one."""
    return np.asarray(leaf)[None] if isinstance(leaf, np.ndarray | np.generic | int | float) else leaf


def _array(tensor: Tensor, count: int) -> NDArray[Any]:
    """Return the first rows as a NumPy array with its own memory."""
    return np.array(tensor[:count].detach().contiguous().cpu().numpy(), copy=True)


# Weighted sums of a block's replies without ever writing single replies to memory.


class Accumulator:
    """Adds up the replies of blocks of one shape; clients with non-finite replies are left out."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.sums: list[Tensor] = []
        self._added: list[tuple[NDArray[np.int64], list[Tensor]]] = []

    @torch.no_grad()
    def add(
        self, positions: NDArray[np.int64], trained: TrainedBlock, sent: list[Tensor], private: list[Tensor]
    ) -> None:
        """Add a block.

        Args:
            positions: of its clients in the cohort; any further slots are empty.
            trained: the block after its last step.
            sent: leaves of the broadcast.
            private: leaves of the private states.
        """
        update, count = self.block.update, len(positions)
        if count not in self.block.valid:
            valid = torch.arange(update.clients or 1, device=update.network.device) < count
            self.block.valid[count] = valid if update.clients else valid[0]
        rest = [*trained.local, *sent, *private, trained.examples, trained.steps, trained.losses]
        if not self.sums:
            self.sums = [torch.zeros_like(leaf) for leaf in self._templates(rest)]
        inputs = [*self.sums, *rest, self.block.valid[count]]
        owned = set(range(len(self.sums)))
        made = list(self.block.program(("sum", len(self.sums)), self._function(len(self.sums)), inputs, owned)(inputs))
        place = 2 + len(update.kinds)
        # New states may share memory with buffers of the block, which the next block overwrites.
        made[place:] = [leaf.clone() for leaf in made[place:]]
        self._added.append((positions, [trained.steps, *made]))

    def hand_over(self, made: CohortSums) -> None:
        """Put the sums, and the results of each client, into the cohort's."""
        at = np.concatenate([positions for positions, _ in self._added])
        columns = [self._column(i) for i in range(len(self._added[0][1]))]
        hand_over(
            made, self.block.update, at, columns, [leaf.detach().contiguous().cpu().numpy() for leaf in self.sums]
        )

    def _column(self, i: int) -> NDArray[Any]:
        """Return one result over all blocks, one row per client."""
        clients = self.block.update.clients
        if clients:
            made = torch.cat([leaves[i][: len(positions)] for positions, leaves in self._added])
        else:
            made = torch.stack([leaves[i] for _, leaves in self._added])
        array: NDArray[Any] = made.detach().contiguous().cpu().numpy()
        return array

    def _templates(self, rest: list[Tensor]) -> list[Tensor]:
        """Return tensors shaped like the sums, inferred from one reply; the block caches them."""
        if self.block.templates is None:
            update = self.block.update
            made = update.finish(*rest[:-1])
            assert update.reply is not None  # noqa: S101
            values = [fields["value"] for fields in update.reply.build(made[: update.reply.count]).values()]
            leaves = [leaf for value in values for leaf in T.leaves(value)]
            self.block.templates = [leaf[0] if update.clients else leaf for leaf in leaves]
        return self.block.templates

    def _function(self, count: int) -> Any:
        """``sums, local, broadcast, client, examples, steps, losses, valid -> flags, losses, weights, states``; it adds in place."""
        update = self.block.update

        def call(*flat: Tensor) -> list[Tensor]:
            sums, rest = list(flat[:count]), flat[count:]
            *inputs, losses, valid = rest
            made = update.finish(*inputs)
            assert update.reply is not None  # noqa: S101
            flags = [torch.isfinite(losses), *update.finite(made[: update.reply.count])]
            keep = torch.stack(flags).all(0) & valid
            terms, weights = summands(update, made, losses)
            for total, term in zip(sums, terms, strict=True):
                term = torch.where(over(keep, term), term, torch.zeros_like(term))
                total.add_(term.sum(0) if update.clients else term)
            return [torch.stack(flags, -1), losses, *weights, *made[update.reply.count :]]

        return call
