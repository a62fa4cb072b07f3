"""Trees: a kind of job that boosts or bags decision trees over all parties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np

from atoll.core.errors import CompositionError, ConfigError, DataError
from atoll.core.exposure import Explanation, Exposure
from atoll.core.federation.reducer import Plain, Reducer
from atoll.core.job import Job, Prepared
from atoll.core.validation import Checked, require_parts
from atoll.data.missing import known_rows
from atoll.data.model_columns import ModelColumns

from .model_files import model_file, model_file_name
from .objectives import TreeLoss, objective_of
from .tree import Ensemble, Scores, score

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation

__all__ = ["Trees"]

_FOREST, _SAMPLE = 100, 0.8
"""Trees of a party's forest, and the share of rows and features that each sees: the defaults of XGBoost's ``XGBRFClassifier``."""


Scheme = Literal["histogram", "bagging", "lightgbm", "forest"]


@dataclass(frozen=True, kw_only=True)
class Trees(Checked, Job):
    """Boosted or bagged trees over the rows of all parties. The result is an `Ensemble`; the run folder keeps it as an XGBoost model.

    =============  ==========================================================  =====================================
    scheme         parties send                                                result
    =============  ==========================================================  =====================================
    ``histogram``  sums of gradients by node, feature and bin (can be masked)  the trees of all rows in one place
    ``bagging``    trees grown on their own rows                               a forest a round, boosted
    ``lightgbm``   trees that LightGBM grew leaf by leaf on their own rows     the same
    ``forest``     trees grown on samples of their own rows, once              the average of all trees
    =============  ==========================================================  =====================================

    ``histogram`` equals XGBoost on the union of the rows but for the bins' edges, which counting finds, see `atoll.trees.sketch`. ``bagging`` and
    ``forest`` need XGBoost (``pip install "atoll[trees]"``), ``lightgbm`` needs LightGBM (``pip install "atoll[lightgbm]"``), and the server sees each party's trees: their splits are values of that party's rows.
    Features may be missing, if the data declare it (``missing_features=True``): each node learns which way rows without its feature go.
    Chen, Guestrin 2016, "XGBoost: A Scalable Tree Boosting System"; Roth et al. 2022, "NVIDIA FLARE: Federated Learning from Simulation to Real-World".

    Attributes:
        scheme: see above.
        objective: ``binary:logistic``, ``reg:squarederror``, ``multi:softprob``, or ``auto``: what fits the labels.
        rounds: boosting rounds; a forest has one.
        eta: learning rate: a tree's leaves are ``-eta G / (H + reg_lambda)``. A forest's is 1.
        max_depth: levels of splits.
        reg_lambda: L2 penalty of leaves.
        gamma: a split must gain more than this.
        min_child_weight: least sum of second derivatives in a child.
        max_bin: bins of a feature, at most 256.
        cuts: feature -> where its bins begin, ascending, for features whose bins are agreed beforehand, with ``histogram``; the others are found by counting.
        exact_cuts: whether the server may see all values of a feature, where those that become cuts do not say which XGBoost would choose, with ``histogram``. With
            more rows than XGBoost's queue holds (8,194 with 256 bins) it sees them by party, in blocks, see `atoll.trees.blocks`, unless ``reducer`` hides what one party sends: then it sees those of all parties together, and cuts are near XGBoost's.
        subsample: share of its rows that a party grows a tree on; by default all, and 0.8 for a forest. All with ``histogram``.
        columns: share of the features that a node may split on; by default all, and 0.8 for a forest. All with ``histogram``.
        trees: trees that each party grows a round; by default 1, and 100 for a forest. 1 with ``histogram`` and ``lightgbm``.
        leaves: most leaves of a tree, with ``lightgbm``; of all leaves the one with the largest gain is split next.
        one_side: ``(top, other)``, with ``lightgbm``: gradient-based one-side sampling, see `atoll.trees.leafwise.one_side_sample`; by default none.
        share: weights of the parties' trees: ``examples`` or ``equal``; not with ``histogram``, where every row counts the same.
        least: fewest parties whose replies a step needs.
        reducer: how sums are made, with ``histogram``.
    """

    kind: ClassVar[str] = "trees"
    one_form: ClassVar[bool] = True
    missing_features: ClassVar[bool] = True
    changeable: ClassVar[tuple[str, ...]] = ("rounds",)

    scheme: Scheme = "histogram"
    objective: str = "auto"
    rounds: int = 50
    eta: float = 0.3
    max_depth: int = 6
    reg_lambda: float = 1.0
    gamma: float = 0.0
    min_child_weight: float = 1.0
    max_bin: int = 256
    cuts: Mapping[str, Sequence[float]] = field(default_factory=dict)
    exact_cuts: bool = False
    subsample: float | None = None
    columns: float | None = None
    trees: int | None = None
    leaves: int = 31
    one_side: Sequence[float] = ()
    share: Literal["examples", "equal"] = "examples"
    least: int = 1
    reducer: Reducer = field(default_factory=Plain)

    def __post_init__(self) -> None:
        require_parts(self, {"reducer": (Reducer, "atoll.reducers.SecureAggregation()")})
        for name, good, remedy in self._bounds():
            if not good:
                raise ConfigError(f"{name}={getattr(self, name)!r}", where="Trees", remedy=remedy)
        self._require_leafwise()
        if self.scheme == "histogram":
            for name in ("subsample", "columns", "trees"):
                if getattr(self, name) not in (1, None):
                    raise CompositionError(
                        f"{name}={getattr(self, name)} with scheme='histogram'",
                        where="Trees",
                        remedy=f"leave {name} out, or use scheme='bagging'",
                    )
            for name, values in self.cuts.items():
                _require_ascending(name, values)
        elif self.cuts or self.exact_cuts:
            name = "cuts" if self.cuts else "exact_cuts"
            raise CompositionError(
                f"{name} with scheme={self.scheme!r}, whose parties find their own",
                where="Trees",
                remedy=f"leave {name} out, or use scheme='histogram'",
            )
        elif type(self.reducer) is not Plain:
            raise CompositionError(
                f"scheme={self.scheme!r} adds single trees, which {type(self.reducer).__name__} does not show",
                where="Trees",
                remedy="use scheme='histogram', or leave the reducer out",
            )

    def _require_leafwise(self) -> None:
        leafwise = self.scheme == "lightgbm"
        if leafwise and self.trees not in (1, None):
            raise CompositionError(
                f"trees={self.trees} with scheme='lightgbm', which grows one tree a round",
                where="Trees",
                remedy="leave trees out, or use scheme='bagging'",
            )
        for name, default in (("leaves", 31), ("one_side", ())):
            if not leafwise and getattr(self, name) != default:
                raise CompositionError(
                    f"{name}={getattr(self, name)} with scheme={self.scheme!r}, which grows trees level by level",
                    where="Trees",
                    remedy=f"leave {name} out, or use scheme='lightgbm'",
                )

    def _bounds(self) -> tuple[tuple[str, bool, str], ...]:
        methods = ("histogram", "bagging", "lightgbm", "forest")
        sides = [share for share in self.one_side if 0 < share < 1]
        return (
            ("scheme", self.scheme in methods, f"use {', '.join(methods)}"),
            ("share", self.share in ("examples", "equal"), "use 'examples' or 'equal'"),
            ("rounds", self.rounds >= 1, "use at least 1 round"),
            ("eta", 0 < self.eta <= 1, "use a number above 0, at most 1"),
            ("max_depth", 1 <= self.max_depth <= 16, "use 1 to 16 levels"),
            ("reg_lambda", 0 <= self.reg_lambda < np.inf, "use a finite number >= 0"),
            ("gamma", 0 <= self.gamma < np.inf, "use a finite number >= 0"),
            ("min_child_weight", 0 <= self.min_child_weight < np.inf, "use a finite number >= 0"),
            ("max_bin", 2 <= self.max_bin <= 256, "use 2 to 256 bins"),
            ("subsample", self.subsample is None or 0 < self.subsample <= 1, "use a share above 0, at most 1"),
            ("columns", self.columns is None or 0 < self.columns <= 1, "use a share above 0, at most 1"),
            ("trees", self.trees is None or self.trees >= 1, "use at least 1 tree"),
            ("leaves", 2 <= self.leaves <= 65536, "use 2 to 65536 leaves"),
            (
                "one_side",
                not self.one_side or (len(sides) == len(self.one_side) == 2 and sum(sides) <= 1),
                "use two shares of the rows, such as (0.2, 0.1)",
            ),
            ("least", self.least >= 1, "use at least 1 party"),
        )

    @property
    def most_rounds(self) -> int:
        """Boosting rounds; 1 for a forest."""
        return 1 if self.scheme == "forest" else self.rounds

    def names(self) -> tuple[str, ...]:
        """The kind and the scheme, which a site's policy can allow or refuse."""
        return (*super().names(), self.scheme)

    @classmethod
    def known_names(cls) -> tuple[str, ...]:
        """The kind and all schemes."""
        return (*super().known_names(), *get_args(Scheme))

    def xgboost_settings(self) -> dict[str, Any]:
        """What a party's XGBoost gets."""
        forest = self.scheme == "forest"
        sample = _SAMPLE if forest else 1.0
        return {
            "eta": 1.0 if forest else self.eta,
            "max_depth": self.max_depth,
            "lambda": self.reg_lambda,
            "gamma": self.gamma,
            "min_child_weight": self.min_child_weight,
            "max_bin": self.max_bin,
            "subsample": self.subsample or sample,
            "colsample_bynode": self.columns or sample,
            "num_parallel_tree": self.trees or (_FOREST if forest else 1),
        }

    def lightgbm_settings(self) -> dict[str, Any]:
        """What a party's LightGBM gets."""
        return {
            "learning_rate": self.eta,
            "num_leaves": self.leaves,
            "max_depth": self.max_depth,
            "lambda_l2": self.reg_lambda,
            "min_gain_to_split": self.gamma,
            "min_sum_hessian_in_leaf": self.min_child_weight,
            "max_bin": self.max_bin,
            "bagging_fraction": self.subsample or 1.0,
            "bagging_freq": 0 if self.subsample in (1, None) else 1,
            "feature_fraction_bynode": self.columns or 1.0,
        }

    def explain(self, data: Any = None, clients: int = 0) -> Explanation:
        """Return who sees what of the rows: sums by bin, or each party's trees."""
        parties = clients or (len(data) if data is not None else 0)
        result = Exposure("whoever gets the result", "the trees: their splits are values of features of some party")
        if self.scheme != "histogram":
            seen: tuple[Exposure, ...] = (
                Exposure("server", "the trees of every client by itself: their splits are values of its rows"),
            )
            if self.scheme != "forest":
                seen += (Exposure("other clients", "the trees of all clients, before each round but the first"),)
            notes = ["no differential privacy: trees are of the rows as they are"]
        else:
            seen = (*self.reducer.exposures(parties or 2), Exposure("other clients", "the trees so far"))
            notes = [
                "a reply is counts of values by interval, to find the bins, and sums of gradients by node, feature and bin",
                f"the server learns where the bins of a feature begin: at most {self.max_bin} of its values. Of one with at most 2,048 different values, or of up to 8,194 rows, it may learn all values, and how many rows of all parties have each",
                "no differential privacy: sums are exact",
            ]
            if self.exact_cuts and not self.reducer.secure:
                notes.append(
                    "exact_cuts: of a feature with more, the server sees each client's values, and how many of its rows have each"
                )
        return Explanation(self.title, parties, (*seen, result), notes=tuple(notes))

    def prepare(self, data: Any) -> Prepared:
        """Read the features and the labels from the form of the data.

        Raises:
            DataError: the features are not a table of numbers, or the labels do not fit the objective.
        """
        seen = data.outline() if hasattr(data, "outline") else data
        rows = np.asarray(seen.shard(0)["x"])
        if rows.ndim != 2 or rows.dtype.kind not in "biuf":
            raise DataError(
                f"features of type {rows.dtype} and shape {rows.shape[1:]} are not columns of numbers",
                where="Trees",
                remedy="give tables with one column a feature",
            )
        names = tuple(seen.about.features) or tuple(f"x{i}" for i in range(rows.shape[1]))
        test = getattr(data, "test", None)
        unknown = [name for name in self.cuts if name not in names]
        if unknown:
            raise DataError(
                f"cuts of a feature {unknown[0]!r}, which the data do not have",
                where="Trees",
                remedy=f"use names among {', '.join(names[:20])}",
            )
        missing = bool(seen.about.missing_features)
        columns = ModelColumns.of(seen)
        bare = _count_unlabelled(data)
        return _PreparedTrees(self, objective_of(self.objective, seen.about), names, test, missing, columns, bare)


def _count_unlabelled(data: Any) -> str:
    """Say how many rows have no label, which trees leave out; between sites, that there are some."""
    if getattr(data, "labelled", None) != "part":
        return ""
    if not getattr(data, "stored", False):
        return "rows without a label were left out: some sites have some"
    there = data.gather(np.arange(len(data)), "labelled")[0]
    return f"{int((~there).sum())} of {len(there)} rows were left out: they have no label"


def _require_ascending(name: str, values: Sequence[float]) -> None:
    """Refuse cuts that are not bins of single-precision numbers."""
    given = np.asarray(values, np.float32)
    if given.ndim != 1 or len(given) > 255 or not np.isfinite(given).all() or not (np.diff(given) > 0).all():
        raise ConfigError(
            f"cuts of {name!r} are not at most 255 ascending numbers that differ in single precision",
            where="Trees",
            remedy="give each cut once, in order: cuts={'age': [18, 40, 65]}",
        )


class _PreparedTrees(Prepared):
    def __init__(
        self,
        job: Trees,
        objective: TreeLoss,
        features: tuple[str, ...],
        test: Any,
        missing: bool,
        columns: ModelColumns | None,
        bare: str = "",
    ) -> None:
        self.job, self.objective, self.features, self.missing, self.columns = job, objective, features, missing, columns
        self.test = None if test is None else known_rows(test, "trees")
        self.bare = bare

    async def program(self, fed: Federation) -> Ensemble:
        """Grow the trees."""
        from .bagging import grow_apart
        from .histogram import grow_together

        given = fed, self.job, self.objective, self.features, Scores(self.objective, self.test)
        if self.job.scheme == "histogram":
            return await grow_together(*given, missing=self.missing)
        return await grow_apart(*given)

    def outcome(self, value: Ensemble) -> Ensemble:
        """The trees with what they know of the rows that they take."""
        return replace(value, columns=self.columns)

    def notices(self, rows: Sequence[Mapping[str, Any]]) -> Sequence[str]:
        """Which replies did not count, and how many rows have no label."""
        return [*super().notices(rows), *([self.bare] if self.bare else [])]

    def facts(self, outcome: Ensemble) -> Mapping[str, Any]:
        """The number of trees, the most important features, and the score on the server's test rows."""
        ranked = sorted(outcome.importance().items(), key=lambda item: -item[1])[:20]
        made: dict[str, Any] = {"trees": len(outcome.trees), "importance": dict(ranked)}
        if self.test is not None:
            name, value = score(self.objective, self.test["y"], outcome.predict(self.test["x"]))
            made[name] = value
        return {"result": made}

    def sections(self, outcome: Ensemble) -> Sequence[Mapping[str, Any]]:
        """How well the trees predict the server's test rows, and the importance of the features."""
        from .page import sections_of

        return sections_of(outcome, self.objective, self.test)

    def files(self, outcome: Ensemble) -> Mapping[str, bytes]:
        """The ensemble as a model of XGBoost, or of LightGBM."""
        return {model_file_name(outcome.library): model_file(outcome)}
