"""The expected form of a whole message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from atoll.core.errors import ConfigError, MessageError, nearest
from atoll.core.message.faults import enter, fault, finish, shown_key
from atoll.core.message.leaves import known
from atoll.core.message.limits import DEFAULT_LIMITS
from atoll.core.message.size import text_key, too_deep
from atoll.core.message.specs import ARRAYS, ArraySpec, Each, ScalarSpec, array_spec, describe, wrong

__all__ = ["Schema"]


class Schema:
    """The expected form of a message.

    Args:
        form: a tree (dict, list, tuple) whose leaves are ArraySpec, ScalarSpec or Each.

    Raises:
        ConfigError: ``form`` has anything else.
    """

    __slots__ = ("form",)

    def __init__(self, form: Any) -> None:
        try:
            self.form = _walk(form, _check_spec)
        except MessageError as error:
            where = finish(error).where
            raise ConfigError(error.what, where=f"Schema: {where}", remedy=error.remedy) from None

    @classmethod
    def of(cls, example: Any, *, finite: bool = False) -> Schema:
        """Return the schema of trees with the containers, types, dtypes and shapes of ``example``.

        Args:
            example: a message tree; its values do not matter.
            finite: refuse NaN, infinities and NaT.

        Raises:
            MessageError: ``example`` has a value that cannot be sent.
        """
        try:
            return cls(_walk(example, lambda leaf: _spec_of(leaf, finite=finite)))
        except MessageError as error:
            raise finish(error) from None

    def check(self, tree: Any) -> None:
        """Check a tree: containers, keys (in any order), types, dtypes, shapes, finite values.

        Raises:
            MessageError: names the first place, in the schema's order, that differs.
        """
        try:
            _check(self.form, tree)
        except MessageError as error:
            raise finish(error) from None

    def __eq__(self, other: object) -> bool:
        return self.form == other.form if isinstance(other, Schema) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Schema({self.form!r})"


def _spec_of(leaf: Any, *, finite: bool) -> ArraySpec | ScalarSpec:
    leaf = known(leaf)
    if type(leaf) in ARRAYS:
        return array_spec(leaf, finite=finite)
    return ScalarSpec(type(leaf), finite)


def _walk(tree: Any, visit: Callable[[Any], Any], depth: int = 0) -> Any:
    """Return ``tree`` with ``visit`` applied to its leaves; errors name the path of their leaf."""
    if depth > DEFAULT_LIMITS.max_depth:
        raise too_deep(DEFAULT_LIMITS.max_depth)
    if not isinstance(tree, dict) and type(tree) not in (list, tuple):
        return visit(tree)
    step: Any = ""
    try:
        if isinstance(tree, dict):
            items = {}
            for step, value in tree.items():
                items[text_key(step)] = _walk(value, visit, depth + 1)
            return items
        values = []
        for step, value in enumerate(tree):  # noqa: B007 - for the error
            values.append(_walk(value, visit, depth + 1))
        return tuple(values) if isinstance(tree, tuple) else values
    except MessageError as error:
        enter(error, step if type(tree) in (list, tuple) else shown_key(step))
        raise


def _check_spec(leaf: Any) -> Any:
    if isinstance(leaf, Each):
        return Each(_walk(leaf.form, _check_spec), leaf.least, leaf.most)
    if isinstance(leaf, ArraySpec | ScalarSpec):
        return leaf
    raise fault(f"a {type(leaf).__name__} is not a spec", "use ArraySpec, ScalarSpec or Each, or Schema.of(example)")


def _check(form: Any, value: Any) -> None:
    if isinstance(form, ArraySpec | ScalarSpec):
        form.check(known(value))
    elif isinstance(form, Each):
        _check_each(form, value)
    elif isinstance(form, dict):
        _check_mapping(form, value)
    else:
        _check_sequence(form, value)


def _check_each(form: Each, value: Any) -> None:
    if type(value) is not list:
        raise wrong(describe(value), "a list")
    if len(value) < form.least or (form.most is not None and len(value) > form.most):
        most = "more" if form.most is None else form.most
        raise wrong(f"a list of {len(value)}", f"one of {form.least} to {most} items")
    for place, item in enumerate(value):
        _inside(place, form.form, item)


def _check_sequence(form: Any, value: Any) -> None:
    if type(value) is not type(form) or len(value) != len(form):
        found = f"a {type(value).__name__}"
        found += f" of {len(value)}" if isinstance(value, list | tuple) else ""
        raise wrong(found, f"a {type(form).__name__} of {len(form)}")
    for place, (part, item) in enumerate(zip(form, value, strict=True)):
        _inside(place, part, item)


def _check_mapping(form: dict[str, Any], value: Any) -> None:
    if not isinstance(value, dict):
        raise wrong(describe(value), f"a dict with keys {sorted(form)}")
    for key in value:
        if text_key(key) not in form:
            hint = nearest(key, form)
            raise wrong(f"an unexpected key {key!r}", f"only {sorted(form)}.{hint}")
    for key, part in form.items():
        if key not in value:
            raise wrong(f"no key {key!r}", f"keys {sorted(form)}")
        _inside(key, part, value[key])


def _inside(step: str | int, form: Any, value: Any) -> None:
    try:
        _check(form, value)
    except MessageError as error:
        enter(error, step)
        raise
