"""A task's declaration of its messages and replies, so that both ends refuse values that do not fit before they use them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ..algebra import tree as T
from ..algebra.aggregate import Aggregate, Part, Total, Totals
from ..algebra.rng import Rng
from ..algebra.tree import Tree
from ..errors import ConfigError, MessageError, nearest
from ..message import ArraySpec, Each, ScalarSpec, Schema
from ..message.faults import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .chain import Chain

__all__ = ["TaskSchema"]

_DTYPES = {float: "float64", int: "int64", bool: "bool", complex: "complex128"}


@dataclass(frozen=True)
class TaskSchema:
    """The forms of a task's message and reply.

    A form is a tree whose leaves are `ArraySpec`, `ScalarSpec` or `Each`; ``Schema.of(example)`` makes one. A dimension ``None`` has any size. The reply to a
    sum is a dict of aggregates, and its form is the same dict with forms as the aggregates' values: ``{"w": Mean({"a": ArraySpec("float32", (3,))})}``.

    Attributes:
        message: form of the message; ``None`` declares nothing.
        reply: form of the reply, or aggregates of forms; ``None`` declares nothing.

    Raises:
        ConfigError: a form is not valid.

    Example:
        >>> form = TaskSchema(message={"w": ArraySpec("float64", (3,))}, reply=ScalarSpec(float))
        >>> form.require_message({"w": np.zeros(3)})
        >>> form.require_message({"w": np.zeros(4)})
        Traceback (most recent call last):
        ...
        atoll.core.errors.MessageError: found shape (4), expected shape (3) (in message/w). Remedy: send what the task's schema describes
    """

    message: Any = None
    reply: Any = None

    def __post_init__(self) -> None:
        _ = self._message, self._plain, self._values, self._blocks, self._totals  # these refuse invalid forms
        values = self.reply.values() if isinstance(self.reply, Mapping) else ()
        if any(isinstance(value, Aggregate) for value in values) and not self._aggregates:
            raise ConfigError(
                "some values of the reply's form are aggregates, but others are not",
                where="TaskSchema",
                remedy="use only aggregates in the reply to a sum: Mean(form), Sum(form), Vote(form) or Parts(form)",
            )

    # ------------------------------------------------------------------ forms

    @cached_property
    def _message(self) -> Schema | None:
        return _schema(self.message)

    @cached_property
    def _aggregates(self) -> Mapping[str, Aggregate]:
        reply = self.reply
        found = isinstance(reply, Mapping) and bool(reply) and all(isinstance(v, Aggregate) for v in reply.values())
        return dict(reply) if found else {}

    @cached_property
    def _plain(self) -> Schema | None:
        """The form of a reply to a request other than a sum."""
        return None if self._aggregates or self._mixed else _schema(self.reply)

    @property
    def _mixed(self) -> bool:
        return isinstance(self.reply, Mapping) and any(isinstance(v, Aggregate) for v in self.reply.values())

    @cached_property
    def _values(self) -> dict[str, Schema]:
        """The form of each aggregate's value; the fold rejects numbers that are not finite."""
        return {name: Schema(_mapped(_lax, _form(a.value))) for name, a in self._aggregates.items()}

    @cached_property
    def _blocks(self) -> dict[str, Schema]:
        """The same with a leading client axis; single replies that arrays cannot store are not checked in blocks."""
        found = {}
        for name, schema in self._values.items():
            if self._aggregates[name].summable or _is_stackable(schema.form):
                found[name] = Schema(_mapped(_stacked, schema.form))
        return found

    @cached_property
    def _totals(self) -> dict[str, Schema]:
        """The form of what each aggregate adds to the sum."""
        return {
            name: Schema(_mapped(lambda leaf, kind=self._aggregates[name].kind: _summand(leaf, kind), schema.form))
            for name, schema in self._values.items()
        }

    # ------------------------------------------------------------------ the program's end, and the party's

    def require_message(self, message: Tree) -> None:
        """Refuse a message of another form.

        Raises:
            MessageError: names the place.
        """
        schema = self._message
        if schema is not None:
            _within("message", lambda: schema.check(message))

    def require_reply(self, reply: Any) -> None:
        """Refuse one party's reply of another form.

        Raises:
            MessageError: names the place.
        """
        schema = self._plain
        if schema is not None:
            _within("reply", lambda: schema.check(reply))
        elif self._aggregates:
            if not isinstance(reply, Mapping) or not all(isinstance(a, Aggregate) for a in reply.values()):
                raise _wrong(f"a {type(reply).__name__}", f"a dict of aggregates {sorted(self._aggregates)}", "reply")
            self._require(reply, self._values)

    def require_block(self, reply: Mapping[str, Aggregate]) -> None:
        """Refuse replies of a block of clients of another form.

        Raises:
            MessageError: names the place.
        """
        if self._aggregates:
            self._require(reply, self._blocks)
        elif self._plain is not None:
            raise _wrong("a dict of aggregates", "the reply that the task declares, which is no sum's", "reply")

    def _require(self, reply: Mapping[str, Aggregate], schemas: Mapping[str, Schema]) -> None:
        _same_names(reply, self._aggregates)
        for name, aggregate in reply.items():
            _same_kind(name, aggregate, self._aggregates[name])
            schema = schemas.get(name)
            if schema is not None:
                _within(f"reply/{name}", lambda schema=schema, value=aggregate.value: schema.check(value))

    # ------------------------------------------------------------------ where replies are added up

    def sent(self, uplink: Chain, public: Sequence[Tree]) -> dict[str, Schema | None]:
        """The form of what each aggregate adds to the sum, after encoding by the stages; compute it once for a request.

        It is the form that stages give to a value of the declared form, or ``None`` if the schema leaves a size of that open.

        Args:
            uplink: the stages.
            public: parameters of the stages.
        """
        return {
            name: self._encoded(name, uplink, public) if uplink.stages and declared.staged else self._totals[name]
            for name, declared in uplink.leaving(self._aggregates).items()
        }

    def require_totals(
        self, totals: Totals, forms: Mapping[str, Schema | None] | None = None, *, apart: bool = False
    ) -> None:
        """Refuse totals of another form. Without a form, only names and kinds are checked.

        Args:
            totals: totals of a party, or of a cohort.
            forms: the result of ``sent``; by default no stage has encoded the totals.
            apart: whether they have a leading client axis.

        Raises:
            MessageError: names the place.
        """
        if not self._aggregates:
            return
        forms = self._totals if forms is None else forms
        _same_names(totals, forms)
        for name, total in totals.items():
            declared, schema = self._aggregates[name], forms[name]
            if schema is not None and apart:
                schema = Schema(_mapped(_stacked, schema.form))
            if total.kind != "parts":
                _same_kind(name, total, declared)
                _require_form(name, declared, schema, total.value)
                continue
            kinds = {part.of for part in total.value if isinstance(part, Part)} or {declared.kind}
            if kinds != {declared.kind} or total.role != declared.role:
                raise _wrong(f"parts of kind {sorted(kinds)}", f"{declared.kind!r}", f"reply/{name}")
            for part in total.value:
                _require_form(name, declared, schema, part.value)

    def _encoded(self, name: str, uplink: Chain, public: Sequence[Tree]) -> Schema | None:
        """The form of a value after the stages, found by sending a value of the declared form through them."""
        try:
            example = _mapped(_example, self._values[name].form)
        except _OpenSizeError:
            return None
        declared = self._aggregates[name]
        total = uplink.rehearsed(name, declared.with_value(example, 1.0), public, Rng(0)).total
        if total.kind == "parts":
            return Schema.of(total.value[0].value)
        return Schema.of(T.map(_array, total.value))


def _require_form(name: str, declared: Aggregate, schema: Schema | None, value: Any) -> None:
    if schema is not None:
        found = value if declared.kind == "parts" else T.map(_array, value)
        _within(f"reply/{name}", lambda: schema.check(found))


class _OpenSizeError(Exception):
    """A form leaves a size open, so it has no single example."""


def _schema(form: Any) -> Schema | None:
    return None if form is None else Schema(_form(form))


def _form(form: Any) -> Any:
    return form.form if isinstance(form, Schema) else form


def _mapped(rule: Any, form: Any) -> Any:
    """A form with each spec replaced."""
    if isinstance(form, Each):
        if rule is not _lax:
            raise ConfigError("a list of any length cannot be added up", where="TaskSchema", remedy="name every item")
        return Each(_mapped(rule, form.form), form.least, form.most)
    if isinstance(form, dict):
        return {key: _mapped(rule, part) for key, part in form.items()}
    if isinstance(form, list | tuple):
        return type(form)(_mapped(rule, part) for part in form)
    if not isinstance(form, ArraySpec | ScalarSpec):
        Schema(form)  # raises an error that says what is wrong
    return rule(form)


def _is_stackable(form: Any) -> bool:
    """Whether values of a form are numbers and arrays, which a block of clients stores as columns."""
    try:
        _mapped(_stacked, form)
    except ConfigError:
        return False
    return True


def _lax(spec: Any) -> Any:
    """The same spec without the check that numbers are finite."""
    if isinstance(spec, ScalarSpec):
        return ScalarSpec(spec.type)
    return ArraySpec(spec.dtype, spec.shape)


def _numbers(spec: Any) -> ArraySpec:
    """A number as an array without axes."""
    if isinstance(spec, ArraySpec):
        return spec
    if spec.type not in _DTYPES:
        raise ConfigError(
            f"a {spec.type.__name__} cannot be added up", where="TaskSchema", remedy="use numbers or arrays"
        )
    return ArraySpec(_DTYPES[spec.type], ())


def _stacked(spec: Any) -> ArraySpec:
    """The spec of a block's leaf, with a client axis."""
    one = _numbers(spec)
    return ArraySpec(one.dtype, None if one.shape is None else (None, *one.shape))


def _summand(spec: Any, kind: str) -> Any:
    """The spec of a client's summand."""
    if kind == "parts":
        return spec
    one = _numbers(spec)
    dtype = np.dtype(one.dtype)
    return one if kind != "mean" or dtype.kind in "fc" else ArraySpec("float64", one.shape)


def _example(spec: Any) -> Any:
    one = _numbers(spec)
    if one.shape is None or None in one.shape:
        raise _OpenSizeError
    return np.ones([size or 0 for size in one.shape], dtype=np.dtype(one.dtype))


def _array(leaf: Any) -> Any:
    """A plain number as an array without axes."""
    return np.asarray(leaf)[()] if type(leaf) in _DTYPES else leaf


def _same_names(found: Mapping[str, Any], declared: Mapping[str, Any]) -> None:
    for name in found:
        if name not in declared:
            raise _wrong(f"an unexpected {name!r}", f"only {sorted(declared)}.{nearest(str(name), declared)}", "reply")
    for name in declared:
        if name not in found:
            raise _wrong(f"no {name!r}", f"{sorted(declared)}", "reply")


def _same_kind(name: str, found: Aggregate | Total, declared: Aggregate) -> None:
    ours, theirs = (found.kind, found.role), (declared.kind, declared.role)
    if ours != theirs:
        raise _wrong(f"a {ours[0]} of role {ours[1]!r}", f"a {theirs[0]} of role {theirs[1]!r}", f"reply/{name}")


def _wrong(found: str, expected: str, where: str) -> MessageError:
    return MessageError(
        f"found {found}, expected {expected}", where=where, remedy="send what the task's schema describes"
    )


def _within(place: str, check: Any) -> None:
    """Add the place to the error of a value that does not fit."""
    try:
        check()
    except MessageError as error:
        where = place if error.where in (None, ROOT) else f"{place}/{error.where}"
        raise MessageError(error.what, where=where, remedy=error.remedy) from None
