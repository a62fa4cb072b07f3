"""What a model over columns at several parties says of itself: how the parties train it, and how they answer for rows together.

A `VerticalModel` is in parts. The guest keeps one, each host another. To predict, each host answers for the rows asked, once and for all of its part, and the guest puts the
answers together: `VerticalModel.answer`, `VerticalModel.read_answer`, `VerticalModel.margins`. These know the parts alone, so that a saved model needs no settings.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from atoll.core.errors import ConfigError, DataError, MessageError
from atoll.core.requests.island import Secret
from atoll.core.validation import Checked
from atoll.trees.objectives import TreeLoss

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.event import Event
    from atoll.core.execution.session import Peers

__all__ = ["ANSWERS", "ColumnScales", "GuestRows", "Part", "Save", "VerticalModel", "model_named", "require"]

Part = dict[str, Any]
"""One party's part of a model, as a message."""
ANSWERS = "answers"
"""The channel of a session on which parties predict."""
Save = Callable[[Any], Awaitable[None]]
"""Makes the state of a role durable, once all roles have theirs."""


def require(good: bool, what: str, where: str = "vertical model") -> None:
    """Refuse a message of a peer.

    Raises:
        MessageError: it is not ``good``.
    """
    if not good:
        raise MessageError(what, where=where, remedy="let all parties run the same version of Atoll")


@dataclass(frozen=True)
class GuestRows:
    """The guest's training rows, with labels.

    Attributes:
        x: ``(rows, features)`` in the model's precision; NaN is missing.
        targets: labels as numbers, or codes of classes; NaN where a row has none, which only models that read others' rows get.
        objective: the loss.
        columns: how many columns each party has, the guest first, for `VerticalModel.train_pooled`; empty if all are the guest's.
        classes: names of the classes, in the order of the codes; empty for numbers.
        host_labels: for `VerticalModel.train_pooled`, the labels that each host has of its own (`VerticalModel.label_of`), as names of classes; none for a host without, empty if no host has any.
        groups: the number of each input's column of categories, -1 for a column of numbers; empty if all are numbers.
    """

    x: NDArray[Any]
    targets: NDArray[np.float64]
    objective: TreeLoss
    columns: tuple[int, ...] = ()
    classes: tuple[str, ...] = ()
    host_labels: tuple[NDArray[np.str_] | None, ...] = ()
    groups: tuple[int, ...] = ()

    @property
    def base(self) -> NDArray[np.float64]:
        """The margins of a model without columns: the mean label, its log-odds, or centred log shares of the classes."""
        return self.objective.first_guess(self.objective.label_sums(self.targets), len(self.targets))


class VerticalModel(Checked):
    """One model over columns at several parties, as the ``model`` of `Vertical`.

    Each owner of columns has a role in the training: `train_guest` has the labels, `train_host` has columns alone. ``state`` is what ``save`` kept last, ``None`` at
    the first start; ``secret`` is the party's own entropy for keys, masks and noise.
    """

    precision: ClassVar[type[np.floating[Any]]] = np.float32
    """The floating-point type in which the model reads columns."""
    reads_others: ClassVar[bool] = False
    """Whether the parties also train on rows of their own tables that are not shared: both roles get them as ``others``, as they get the shared ones. The guest's rows may lack labels then, as NaN."""
    categories: ClassVar[bool] = False
    """Whether it reads text as categories, an input for each; else text is refused."""
    reads_groups: ClassVar[bool] = False
    """Whether it looks at all inputs of a column of categories together: a host's role then gets their ``groups``, as `GuestRows` has them."""
    as_listed: ClassVar[bool] = False
    """Whether it reads the columns of each party in the table's order, of which the first wins where gains are equal, as in XGBoost; else in the order of their names."""
    implied_task: Literal["auto", "regression"] = "auto"
    """The task of the labels where the job says ``auto``: a model of numbers alone takes whole numbers as numbers."""

    @property
    def reads_images(self) -> bool:
        """Whether a host's columns are the pixels of images, whose places count."""
        return False

    @property
    def releases(self) -> bool:
        """Whether the guest releases numbers with noise: its role also gets ``spend``, which books an event in its ledger before anything leaves."""
        return False

    security: str
    """How the parts hide from each other; ``none`` where they do not."""

    @property
    def helpers(self) -> Mapping[str, str]:
        """Parties without columns that the training needs, such as a dealer or the keeper of a key: name -> role. They run `assist`."""
        return {}

    def label_of(self, host: str) -> str | None:
        """The column of labels that a host has of its own: no feature then, and its role gets its names of classes as ``labels``, "" where a row has none. By default hosts have none."""
        del host
        return None

    def require_hosts(self, hosts: Sequence[str]) -> None:
        """Refuse parties that settings do not fit; by default none.

        Raises:
            ConfigError: a setting names another party.
        """

    def names(self) -> tuple[str, ...]:
        """The names by which a site's policy can allow or refuse the model."""
        return (type(self).__name__,)

    @classmethod
    def known_names(cls) -> tuple[str, ...]:
        """Every name that `names` of such a model can give."""
        return (cls.__name__,)

    def learns(self) -> dict[str, list[str]]:
        """What the ``guest``, a ``host`` and each helper (by its name) learn of the others beside the shared rows, in sentences."""
        raise NotImplementedError

    def predict_cost(self, rows: int, columns: Sequence[int], outputs: int = 1) -> dict[str, float]:
        """``seconds`` of all parties' processors and ``bytes`` between them, before anyone is contacted.

        Args:
            rows: training rows.
            columns: how many columns each party has, the guest first.
            outputs: margins of a row: the number of classes, 1 for two classes or numbers.
        """
        raise NotImplementedError

    def fit_objective(self, objective: TreeLoss) -> TreeLoss:
        """The loss that this model fits to labels of such an objective.

        Raises:
            ConfigError: the model has none for them.
        """
        return objective

    def training_releases(self, rows: int) -> Sequence[Event]:
        """What a host releases of so many training rows under noise of its own, for its ledger; booked before the training begins.

        Args:
            rows: training rows.
        """
        del rows
        return ()

    @classmethod
    def answer_releases(cls, part: Part, rows: int) -> Sequence[Event]:
        """What a host releases under noise of its own when it answers for so many rows, for its ledger; booked before each answer."""
        del part, rows
        return ()

    async def train_guest(
        self, rows: GuestRows, peers: Peers, hosts: Sequence[str], *, secret: Secret, state: Any = None, save: Save | None = None
    ) -> Part:  # fmt: skip
        """The guest's role; return its part of the model.

        Args:
            rows: the training rows in the common order.
            peers: the session.
            hosts: the hosts' roles, in the order of their columns.
            secret: the guest's entropy.
            state: what ``save`` kept last.
            save: called after each step with what a resumed role needs.
        """
        raise NotImplementedError

    async def train_host(
        self, x: NDArray[Any], peers: Peers, guest: str, *, secret: Secret, state: Any = None, save: Save | None = None
    ) -> Part:
        """A host's role; return its part of the model.

        Args:
            x: the training rows in the common order, ``(rows, features)``.
            peers: the session.
            guest: the guest's role.
            secret: the host's entropy.
            state: what ``save`` kept last.
            save: called after each step with what a resumed role needs.
        """
        raise NotImplementedError

    async def assist(
        self,
        helper: str,
        peers: Peers,
        parties: Sequence[str],
        *,
        secret: Secret,
        state: Any = None,
        save: Save | None = None,
    ) -> None:
        """A helper's role. It calls ``save`` as often as the parties with columns do.

        Args:
            helper: its name in `helpers`.
            peers: the session.
            parties: the roles with columns, the guest first.
            secret: the helper's entropy.
            state: what ``save`` kept last.
            save: called after each step with what a resumed role needs.
        """
        raise NotImplementedError

    def train_pooled(self, rows: GuestRows) -> Part:
        """The guest's part that the same learner makes of rows that have all columns in one place, without other parties."""
        raise NotImplementedError

    @classmethod
    def answer(cls, part: Part, x: NDArray[Any]) -> Mapping[str, Any]:
        """At a host: the message that answers for the rows ``x``."""
        raise NotImplementedError

    @classmethod
    def read_answer(cls, part: Part, message: Any, rows: int, host: int, name: str) -> Any:
        """At the guest: what a host's answer says, for `margins`.

        Args:
            part: the guest's part.
            message: the answer.
            rows: how many rows were asked for.
            host: the number of the host, from 1.
            name: its name.

        Raises:
            MessageError: it is no answer for these rows and this model.
        """
        raise NotImplementedError

    @classmethod
    def margins(cls, part: Part, x: NDArray[Any], answers: Sequence[Any]) -> NDArray[Any]:
        """At the guest: the margins of rows, ``(rows, outputs)``, before the link of the objective.

        Args:
            part: the guest's part, or that of `train_pooled`.
            x: the guest's columns of the rows, or all columns.
            answers: what `read_answer` returned, a host each; empty for a model of `train_pooled`.
        """
        raise NotImplementedError

    # Predictions: of the guest's rows, and of a host's own, what the guest's labels say of rows that it may not have.

    async def predict_guest(
        self, part: Part, x: NDArray[Any], peers: Peers, hosts: Sequence[str], *, secret: Secret
    ) -> NDArray[Any]:
        """The guest's role when the parties predict: the margins of rows, after the hosts' answers; see `predict_host`."""
        del secret
        answers, found = peers.channel(ANSWERS), []
        for k, name in enumerate(hosts, 1):
            found.append(self.read_answer(part, await answers.recv(name), len(x), k, name))
        return self.margins(part, x, found)

    async def predict_host(self, part: Part, x: NDArray[Any], peers: Peers, guest: str, *, secret: Secret) -> None:
        """A host's role when the parties predict: answer for the rows. A model whose parts hide more needs more rounds, and overrides both roles.

        Args:
            part: the host's part.
            x: the rows.
            peers: the session; the answers go over the channel `ANSWERS`.
            guest: the guest's role.
            secret: the host's entropy, for keys, masks and noise.
        """
        del secret
        await peers.channel(ANSWERS).send(guest, dict(self.answer(part, x)))

    @classmethod
    def own_margins(cls, part: Part, guest_part: Part, x: NDArray[Any]) -> NDArray[Any]:
        """The margins of a host's own rows, from its part and the guest's: what the roles `serve_host` and `serve_guest` find together.

        Raises:
            ConfigError: the model answers for the guest's rows alone.
        """
        del part, guest_part, x
        raise ConfigError(f"predictions of a host's rows by {cls.__name__}", where="vertical model", remedy="use a model of transfer, such as SFTL, or predict the guest's rows")  # fmt: skip

    async def serve_guest(self, part: Part, peers: Peers, host: str, rows: int, *, secret: Secret) -> None:
        """The guest's role when a host predicts so many rows of its own; by default nothing, for a host's part that answers alone."""

    async def serve_host(
        self, part: Part, x: NDArray[Any], peers: Peers, guest: str, *, secret: Secret
    ) -> NDArray[Any]:
        """The host's role when it predicts rows of its own: their margins; by default its part answers alone."""
        del peers, guest, secret
        return self.own_margins(part, {}, x)


def model_named(name: str) -> type[VerticalModel]:
    """The class of a saved part.

    Raises:
        DataError: there is none of that name.
    """
    import atoll.vertical

    found = getattr(atoll.vertical, name, None) if name in dir(atoll.vertical) else None
    if not (isinstance(found, type) and issubclass(found, VerticalModel)):
        raise DataError(
            f"a part of a model {name!r}, which this version does not know",
            where="vertical model",
            remedy="train again, or use the version that trained it",
        )
    return found


@dataclass(frozen=True)
class ColumnScales:
    """How a party reads its own columns for models that need them centred: ``(x - mean) / deviation``, and 0, the mean, for a missing value.

    Attributes:
        mean: of the known training values of each column; 0 for a column without any.
        deviation: of the same values, divided by their number; 1 where all are equal.
    """

    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]

    @classmethod
    def of(cls, x: NDArray[Any]) -> ColumnScales:
        """The scales of training rows. Means come first, then deviations from them, so that an offset of 1e9 costs no digits."""
        wide = np.asarray(x, np.float64)
        known = ~np.isnan(wide)
        count = np.maximum(known.sum(axis=0), 1)
        mean = np.where(known, wide, 0.0).sum(axis=0) / count
        centred = np.where(known, wide - mean, 0.0)
        shift = centred.sum(axis=0) / count  # what rounding left of the mean
        deviation = np.sqrt((np.where(known, centred - shift, 0.0) ** 2).sum(axis=0) / count)
        # A constant column leaves rounding alone, which must not be blown up to a deviation of 1.
        flat = deviation <= 1e-12 * np.maximum(np.abs(mean), np.finfo(np.float64).tiny)
        return cls(mean + shift, np.where(flat, 1.0, deviation))

    def apply(self, x: NDArray[Any]) -> NDArray[np.float64]:
        """The scaled columns."""
        made = (np.asarray(x, np.float64) - self.mean) / self.deviation
        return np.where(np.isnan(made), 0.0, made)

    def packed(self) -> dict[str, Any]:
        """The scales as a message."""
        return {"mean": self.mean, "deviation": self.deviation}

    @classmethod
    def unpacked(cls, message: Any) -> ColumnScales:
        """The inverse of `packed`."""
        return cls(np.asarray(message["mean"], np.float64), np.asarray(message["deviation"], np.float64))
