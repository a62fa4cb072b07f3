"""Leave one domain out: what a tuning is worth to its participants, and to a domain that never trains."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra.rng import Rng
from atoll.core.errors import ConfigError, DataError, nearest
from atoll.data import Dataset, Islands

from .encoder import prompts_of, unit_rows
from .mixing import mix_personal

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .job import Tuning

__all__ = ["leave_domains_out", "measure_zero_shot"]

_SHARES = (0.6, 0.2)
"""Shares of a participant's rows to train on and to choose the round by; the rest is its test."""
_LEAST = 5

Run = Callable[..., Any]


@dataclass(frozen=True)
class _Domain:
    """The rows of a domain: all of them, and their three parts."""

    whole: Dataset
    train: Dataset
    chosen_by: Dataset
    test: Dataset


def leave_domains_out(
    job: Tuning,
    rows: Sequence[Any],
    labels: Sequence[str],
    groups: Sequence[str],
    *,
    run: Run,
    leave_out: str = "each",
    mix: bool = False,
    seed: int = 0,
) -> dict[str, Any]:
    """Tune on all domains but one, and measure on the participants' test rows and on all rows of the one that never trained (Lu et al. 2023, "FedCLIP", section 4).

    A participant's rows are divided 60/20/20. The round is chosen on the second parts together, and nothing else looks at them.

    Args:
        job: the tuning.
        rows: the texts, or the images as `Encoder.encode_images` takes them, pixels of one shape.
        labels: its class.
        groups: its domain: a participant, or the one that is left out.
        run: runs a job on islands, as `atoll.simulate` does: ``run(job, islands, seed=...)``.
        leave_out: ``"each"`` domain in turn, ``"none"``, or the name of one.
        mix: whether each participant also makes a mixture of its own, as `mix_personal` does, from its first and second parts.
        seed: divides the rows, and seeds the trainings.

    Returns:
        Accuracies as fractions, each a mean over what was left out: ``zero_shot`` by prompts alone over all rows (``None`` of an encoder of images alone), ``personalization`` the mean over the
        participants' tests, ``generalization`` of the domain that never trained (``None`` if none is left out), ``comprehensive`` the mean over all domains.
        ``trainable`` values, ``bytes_up`` of a participant in a round, and ``folds`` with the numbers of each. With ``mix``, ``mixed`` is the personalization of the
        participants' own mixtures, and each fold has their weights: of the frozen encoder, of the shared adapter and of the own one.

    Raises:
        DataError: there is no such domain, fewer than two, one of fewer than 5 rows, or a row without a label, a text or an image.
    """
    started = time.perf_counter()
    domains = _divide(job.image or job.text, rows, labels, groups, seed)
    folds = _choose_folds(domains, leave_out)
    found = [_tune(job, domains, name, run, seed, mix) for name in folds]
    measures = ("personalization", "generalization", "comprehensive", *(["mixed"] if mix else []))
    return {
        "zero_shot": _zero_shot(job, domains) if "text" in job.model.rows.encoder.modalities else None,
        **{name: _mean([one[name] for one in found]) for name in measures},
        "trainable": found[0]["trainable"],
        "bytes_up": int(np.mean([one["bytes_up"] for one in found])),
        "seconds": time.perf_counter() - started,
        "encoder": job.model.rows.encoder.digest,
        "folds": found,
    }


def measure_zero_shot(job: Tuning, rows: Sequence[Any], labels: Sequence[str], groups: Sequence[str]) -> dict[str, Any]:
    """Return what `leave_domains_out` does of prompts alone: no domain trains, so that all are measured the same.

    Raises:
        ConfigError: the encoder takes images alone.
    """
    started = time.perf_counter()
    job.model.rows.encoder.require_texts()
    found = _zero_shot(job, _divide(job.image or job.text, rows, labels, groups, 0))
    return {
        "zero_shot": found, "personalization": found, "generalization": found, "comprehensive": found, "trainable": 0,
        "bytes_up": 0, "seconds": time.perf_counter() - started, "encoder": job.model.rows.encoder.digest, "folds": [],
    }  # fmt: skip


def _tune(job: Tuning, domains: Mapping[str, _Domain], left_out: str, run: Run, seed: int, mix: bool) -> dict[str, Any]:
    """Run one training; return its accuracies."""
    took_part = [name for name in domains if name != left_out]
    islands = Islands.from_datasets({name: domains[name].train for name in took_part})
    watched = islands.with_test(_join([domains[name].chosen_by for name in took_part]))
    chosen = job.replace(keep_best="test/accuracy")
    result = run(chosen, watched, seed=seed)
    score = _scorer(chosen, result.model)
    own = {name: score(domains[name].test) for name in took_part}
    other = score(domains[left_out].whole) if left_out else None
    return {
        "left_out": left_out or None,
        "personalization": float(np.mean([*own.values()])),
        "generalization": other,
        "comprehensive": float(np.mean([*own.values(), *([] if other is None else [other])])),
        "domains": own,
        "round": int(result.round),
        "trainable": int(sum(np.size(value) for value in result.params.values())),
        "bytes_up": int(result.bytes["bytes_up"] / max(1, result.bytes["messages_up"])),
        **(_mix(job, domains, took_part, result.params, seed) if mix else {}),
    }


def _mix(
    job: Tuning, domains: Mapping[str, _Domain], took_part: Sequence[str], params: Mapping[str, Any], seed: int
) -> dict[str, Any]:
    """Return the accuracies of the participants' own mixtures on their tests, and the weights."""
    found, weights = {}, {}
    for name in took_part:
        parts = domains[name]
        mixture = mix_personal(job, params, parts.train, parts.chosen_by, seed=seed)
        found[name] = float((mixture.score(parts.test).argmax(1) == np.asarray(parts.test["y"])).mean())
        weights[name] = [mixture.frozen, mixture.shared, mixture.own]
    return {"mixed": float(np.mean([*found.values()])), "mixed_domains": found, "mixtures": weights}


def _scorer(job: Any, model: Any) -> Callable[[Dataset], float]:
    """Return what measures a model's accuracy on rows."""
    from atoll.core.extras import need

    torch = need("torch", "torch", "leave_domains_out")
    model.eval()

    def score(rows: Dataset) -> float:
        encoded = job.model.rows.encode(rows)
        x, y = np.array(encoded["x"]), np.asarray(encoded["y"])
        with torch.no_grad():
            parts = [model(torch.from_numpy(x[at : at + 256])).argmax(1).numpy() for at in range(0, len(x), 256)]
        return float((np.concatenate(parts) == y).mean())

    return score


def _zero_shot(job: Tuning, domains: Mapping[str, _Domain]) -> float:
    """Return the accuracy of the prompts alone, the mean over the domains."""
    encoder = job.model.rows.encoder
    found = []
    for domain in domains.values():
        prompts = unit_rows(prompts_of(encoder, [str(label) for label in domain.whole.about.labels], job.prompt))
        features = job.model.rows.features_of(domain.whole)
        found.append(float(((features @ prompts.T).argmax(1) == np.asarray(domain.whole["y"])).mean()))
    return float(np.mean(found))


def _divide(
    column: str, rows: Sequence[Any], labels: Sequence[str], groups: Sequence[str], seed: int
) -> dict[str, _Domain]:
    """Divide the rows by domain, and each domain's into three parts."""
    if not len(rows) == len(labels) == len(groups):
        raise DataError(
            f"{len(rows)} rows, {len(labels)} labels and {len(groups)} groups",
            where="leave_domains_out",
            remedy="give one of each a row",
        )
    shapes = {np.shape(row) for row in rows}
    if len(shapes) > 1:
        raise DataError(
            f"pixels of {len(shapes)} shapes",
            where="leave_domains_out",
            remedy="give images of one shape, or names of files",
        )
    names, said = sorted(set(groups)), sorted(set(labels))
    for what, values in (("label", labels), (column, rows)):
        empty = next((row for row, one in enumerate(values, 1) if isinstance(one, str) and not one.strip()), None)
        if empty is not None:
            raise DataError(f"row {empty} has no {what}", where="leave_domains_out", remedy="leave it out")
    if len(names) < 2 or len(said) < 2:
        raise DataError(
            f"{len(names)} domains and {len(said)} classes",
            where="leave_domains_out",
            remedy="name columns with at least two of each",
        )
    code, every = {label: i for i, label in enumerate(said)}, np.asarray(groups)
    domains = {}
    for name in names:
        at = np.flatnonzero(every == name)
        if len(at) < _LEAST:
            raise DataError(
                f"the domain {name!r} has {len(at)} rows",
                where="leave_domains_out",
                remedy=f"leave out domains of fewer than {_LEAST} rows",
            )
        own = [rows[i] for i in at.tolist()]
        whole = Dataset(
            {column: np.array(own, dtype=np.str_) if isinstance(own[0], str) else np.stack(own), "y": np.array([code[labels[i]] for i in at.tolist()])},
            task="classification", classes=len(said), labels=tuple(said), name=name,
        )  # fmt: skip
        order = Rng.of(seed).child("domain", name).generator().permutation(len(at))
        ends = [int(len(at) * _SHARES[0]), int(len(at) * sum(_SHARES))]
        domains[name] = _Domain(whole, *(whole.take(np.sort(part)) for part in np.split(order, ends)))
    return domains


def _choose_folds(domains: Mapping[str, _Domain], leave_out: str) -> list[str]:
    if leave_out == "each":
        return list(domains)
    if leave_out == "none":
        return [""]
    if leave_out not in domains:
        raise ConfigError(
            f"leave_out={leave_out!r}.{nearest(leave_out, domains)}",
            where="leave_domains_out",
            remedy=f"use each, none, or one of {', '.join(domains)}",
        )
    return [leave_out]


def _join(parts: Sequence[Dataset]) -> Dataset:
    """Return the rows of several domains together."""
    about = parts[0].about
    columns: dict[str, NDArray[Any]] = {
        name: np.concatenate([np.asarray(part[name]) for part in parts]) for name in parts[0].columns
    }
    return Dataset(columns, task=about.task, classes=about.classes, labels=about.labels, name="chosen by")


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
