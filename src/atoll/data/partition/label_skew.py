"""Partitioners by label: Dirichlet shares, shards of sorted rows, and a dominant class."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra.rng import Rng
from atoll.core.calls import checked_call
from atoll.core.errors import DataError

from ..dataset import Dataset, root
from ..islands import Islands
from ._rows import Counts, check_between, check_parties, check_sizes, class_codes, even, rows_by_class, short

# Label skew by Dirichlet draws.


_TRIES = 20
_SWEEPS = 50
_TINY = 1e-300  # a class or a client without rows


@checked_call
def dirichlet(
    dataset: Dataset,
    *,
    parties: int,
    alpha: float,
    seed: int | Rng = 0,
    balanced: bool = False,
    min_size: int = 1,
    allow_empty: bool = False,
) -> Islands:
    """Skew the labels: each class is divided among the clients by a draw from a Dirichlet distribution.

    For each class ``c``, ``p_c ~ Dir(alpha * 1)`` over the clients, and the rows of the class are cut in these
    proportions (Yurochkin et al. 2019; Li et al. 2022, NIID-Bench). Small ``alpha`` gives few classes and uneven
    sizes; large ``alpha`` approaches an even division of each class. As usual, a draw in which a client has
    fewer than ``min_size`` rows is repeated, up to 20 times.

    With ``balanced=True`` all clients have the same size and each draws its class mix ``q_k ~ Dir(alpha * 1)`` over
    the classes (as in Hsu, Qi and Brown 2019, whose concentration is ``classes * alpha`` here). Their clients draw
    in turn until classes run out; here all mixes are scaled together to the classes' totals
    (iterative proportional fitting), so that no client is special.

    Args:
        dataset: the rows to divide; a classification.
        parties: number of clients.
        alpha: concentration, above 0.
        seed: seed or random stream.
        balanced: whether all clients have the same size.
        min_size: minimum number of rows of a client.
        allow_empty: whether clients may have no rows.

    Raises:
        DataError: there are no classes, ``alpha`` is not positive, or every draw leaves a client with fewer than ``min_size`` rows.
    """
    scheme = f"dirichlet(alpha={alpha:g}{', balanced' if balanced else ''})"
    check_parties(dataset, parties, scheme)
    if not 0.0 < alpha < np.inf:
        raise DataError(f"alpha={alpha}", where=scheme, remedy="choose a positive number, such as 0.3")
    codes, classes = class_codes(dataset, scheme)
    totals = np.bincount(codes, minlength=classes).astype(np.int64)
    rng = root(seed).child("dirichlet")
    for attempt in range(1 if balanced else _TRIES):
        generator = rng.child(attempt).generator()
        if balanced:
            counts = _balance_counts(alpha, totals, even(len(dataset), parties), generator)
        else:
            counts = _by_class(alpha, totals, parties, generator)
        sizes = counts.sum(axis=1)
        if not len(short(sizes, min_size, allow_empty)):
            break
    remedy = "ask for fewer parties, a larger alpha or balanced=True"
    check_sizes(sizes, dataset, scheme, min_size=min_size, allow_empty=allow_empty, remedy=remedy)
    owner = np.empty(len(dataset), np.int64)
    for c, rows in enumerate(rows_by_class(codes, classes, rng.child("rows").generator())):
        owner[rows] = np.repeat(np.arange(parties), counts[:, c])
    return Islands.from_owner(dataset, owner, parties, scheme=scheme)


def draw(alpha: float, shape: tuple[int, ...], axis: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Draw from Dir(alpha) along an axis, in logarithms, so that a tiny ``alpha`` does not underflow to 0/0.

    If G ~ Gamma(alpha + 1) and U is uniform, then G * U^(1/alpha) ~ Gamma(alpha).
    """
    logs = np.log(rng.standard_gamma(alpha + 1.0, shape)) + np.log1p(-rng.random(shape)) / alpha
    weights = np.exp(logs - logs.max(axis=axis, keepdims=True))
    return np.asarray(weights / weights.sum(axis=axis, keepdims=True))


def _by_class(alpha: float, totals: Counts, parties: int, rng: np.random.Generator) -> Counts:
    """Counts ``(parties, classes)``: each class cut at its cumulative shares."""
    ends = np.cumsum(draw(alpha, (parties, len(totals)), 0, rng), axis=0)
    cuts = np.rint(ends * totals).astype(np.int64)
    cuts[-1] = totals
    return np.diff(cuts, axis=0, prepend=0)


def _balance_counts(alpha: float, totals: Counts, sizes: Counts, rng: np.random.Generator) -> Counts:
    """Counts ``(parties, classes)`` with exact row sums ``sizes`` and column sums ``totals``."""
    fit = draw(alpha, (len(sizes), len(totals)), 1, rng) + 1e-12
    for _ in range(_SWEEPS):
        fit *= (totals / np.maximum(fit.sum(axis=0), _TINY))[None, :]
        fit *= (sizes / np.maximum(fit.sum(axis=1), _TINY))[:, None]
    fit *= np.minimum(1.0, totals / np.maximum(fit.sum(axis=0), _TINY))[None, :]
    counts = np.floor(fit * (1.0 - 1e-12)).astype(np.int64)
    # Deal out the remainder of the floors at random: rows and columns have the same number of slots.
    clients = np.repeat(np.arange(len(sizes)), sizes - counts.sum(axis=1))
    classes = np.repeat(np.arange(len(totals)), totals - counts.sum(axis=0))
    np.add.at(counts, (rng.permutation(clients), classes), 1)
    return counts


# Label skew by shards, and by a fixed number of classes per client.


@checked_call
def shards(
    dataset: Dataset,
    *,
    parties: int,
    per_client: int = 2,
    seed: int | Rng = 0,
    min_size: int = 1,
    allow_empty: bool = False,
) -> Islands:
    """Sort by label, cut into ``parties * per_client`` equal shards, and give each client ``per_client`` of them.

    The pathological split of McMahan et al. (2017), section 3: with two shards most clients see two classes.

    Args:
        dataset: the rows to divide; a classification.
        parties: number of clients.
        per_client: shards per client.
        seed: shuffles the rows within a class and the shards.
        min_size: minimum number of rows of a client.
        allow_empty: whether clients may have no rows.

    Raises:
        DataError: there are no classes, or a client has fewer than ``min_size`` rows.
    """
    scheme = f"shards(per_client={per_client})"
    check_parties(dataset, parties, scheme)
    if per_client < 1:
        raise DataError(f"per_client={per_client}", where=scheme, remedy="give each client at least one shard")
    codes, classes = class_codes(dataset, scheme)
    rng = root(seed).child("shards")
    by_label = np.concatenate(rows_by_class(codes, classes, rng.child("rows").generator()))
    dealt = rng.child("deal").generator().permutation(parties * per_client)
    owner_of_shard = np.empty(parties * per_client, np.int64)
    owner_of_shard[dealt] = np.repeat(np.arange(parties), per_client)
    owner = np.empty(len(dataset), np.int64)
    owner[by_label] = np.repeat(owner_of_shard, even(len(dataset), parties * per_client))
    sizes = np.bincount(owner, minlength=parties)
    remedy = "ask for fewer parties or fewer shards per client"
    check_sizes(sizes, dataset, scheme, min_size=min_size, allow_empty=allow_empty, remedy=remedy)
    return Islands.from_owner(dataset, owner, parties, scheme=scheme)


@checked_call
def classes_per_client(
    dataset: Dataset,
    *,
    parties: int,
    classes: int,
    cyclic: bool = False,
    seed: int | Rng = 0,
    min_size: int = 1,
    allow_empty: bool = False,
) -> Islands:
    """Give each client rows of ``classes`` classes; a class is divided evenly among the clients that have it.

    The "#C = k" split of Li et al. (2022, NIID-Bench). Client ``k`` always has class ``k mod C`` (the classes in
    random order), so that each class has a client. Its other classes are drawn at random, or are the next ones
    in a circle with ``cyclic=True`` (then in code order, as in the FEMNIST split of FedProx: ``(k + j) mod C``).

    Args:
        dataset: the rows to divide; a classification.
        parties: number of clients.
        classes: classes per client, ``1..C``.
        cyclic: whether to use neighbouring classes instead of random ones.
        seed: seed or random stream.
        min_size: minimum number of rows of a client.
        allow_empty: whether clients may have no rows.

    Raises:
        DataError: a class would have no client, or a client has fewer than ``min_size`` rows.
    """
    scheme = f"classes_per_client({classes})"
    check_parties(dataset, parties, scheme)
    codes, total = class_codes(dataset, scheme)
    if not 1 <= classes <= total:
        raise DataError(f"classes={classes} of {total}", where=scheme, remedy=f"choose 1 to {total}")
    rng = root(seed).child("classes_per_client")
    has_class = _deal_cyclic(parties, classes, total) if cyclic else _draw_classes(parties, classes, total, rng)
    owner = np.empty(len(dataset), np.int64)
    for c, rows in enumerate(rows_by_class(codes, total, rng.child("rows").generator())):
        owners = np.flatnonzero((has_class == c).any(axis=1))
        if len(owners):
            mixed = rng.child("order", c).generator().permutation(owners)
            owner[rows] = np.repeat(mixed, even(len(rows), len(owners)))
        elif len(rows):
            raise DataError(
                f"no client would have class {c}, which has {len(rows)} rows",
                where=f"{scheme} of {dataset.name!r}",
                remedy=f"ask for at least {-(-total // classes)} parties or more classes per client",
            )
    sizes = np.bincount(owner, minlength=parties)
    check_sizes(sizes, dataset, scheme, min_size=min_size, allow_empty=allow_empty, remedy="ask for fewer parties")
    return Islands.from_owner(dataset, owner, parties, scheme=scheme)


def _deal_cyclic(parties: int, classes: int, total: int) -> Counts:
    return (np.arange(parties)[:, None] + np.arange(classes)[None, :]) % total


def _draw_classes(parties: int, classes: int, total: int, rng: Rng) -> Counts:
    """Distinct classes per client, ``(parties, classes)``: the first in turns, the others at random."""
    first = rng.child("first").generator().permutation(total)[np.arange(parties) % total]
    order = rng.child("others").generator().random((parties, total))
    order[np.arange(parties), first] = -1.0
    return np.argsort(order, axis=1)[:, :classes]


# Label skew by one dominant class per client.


@checked_call
def dominant_class(
    dataset: Dataset,
    *,
    parties: int,
    share: float = 0.6,
    random: bool = False,
    seed: int | Rng = 0,
    min_size: int = 1,
    allow_empty: bool = False,
) -> Islands:
    """Give client ``k`` mostly rows of class ``k mod C``.

    Of the rows of class ``y``, the fraction ``share`` goes to the clients with ``k mod C = y`` and the rest to the
    others. With equal class sizes, about ``share`` of each client's rows are of its dominant class. FedProf
    uses 0.6 ("dc0.6"), HybridFL 0.75 ("non-IID 0.75"). HybridFL does not state where the other quarter goes;
    the uniform spread over the other clients is our reading.

    Args:
        dataset: the rows to divide; a classification.
        parties: number of clients, at least one per class.
        share: fraction of a class's rows that its own clients get.
        random: whether to assign each row independently with these probabilities (sizes vary), not in exact, even parts.
        seed: seed or random stream.
        min_size: minimum number of rows of a client.
        allow_empty: whether clients may have no rows.

    Raises:
        DataError: fewer clients than classes, a share outside [0, 1], or a client with fewer than ``min_size`` rows.
    """
    scheme = f"dominant_class(share={share:g})"
    check_parties(dataset, parties, scheme)
    check_between(share, 0.0, 1.0, "share", scheme)
    codes, classes = class_codes(dataset, scheme)
    if parties < classes or classes < 2:
        raise DataError(
            f"parties={parties} for {classes} classes",
            where=f"{scheme} of {dataset.name!r}",
            remedy=f"use two classes or more and at least {classes} parties",
        )
    rng = root(seed).child("dominant_class")
    clients = np.arange(parties)
    owner = np.empty(len(dataset), np.int64)
    for c, rows in enumerate(rows_by_class(codes, classes, rng.child("rows").generator())):
        generator = rng.child("deal", c).generator()
        own = int(generator.binomial(len(rows), share)) if random else round(share * len(rows))
        owner[rows[:own]] = _deal_rows(clients[clients % classes == c], own, random, generator)
        owner[rows[own:]] = _deal_rows(clients[clients % classes != c], len(rows) - own, random, generator)
    sizes = np.bincount(owner, minlength=parties)
    check_sizes(sizes, dataset, scheme, min_size=min_size, allow_empty=allow_empty, remedy="ask for fewer parties")
    return Islands.from_owner(dataset, owner, parties, scheme=scheme)


def _deal_rows(
    clients: np.ndarray[tuple[int], np.dtype[np.int64]], rows: int, random: bool, rng: np.random.Generator
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Draw an owner for each row: at random, or in turns from a random start."""
    if random:
        return rng.choice(clients, rows)
    return np.resize(rng.permutation(clients), rows)
