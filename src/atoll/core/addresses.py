"""Addresses: names of the form ``module:name``, which stay when modules move.

Tasks, stages, metrics and parts of configurations are named by where they were first defined. Messages, random keys, ledgers, policies,
checkpoints and configurations hold these declared names, so a name must never change, and must never mean another thing. What moves gets a
line in `MOVED`; all else is named by where it lies.

Public names that people import have an address, ``package.name``. One that left its package gets a line in `RENAMED`. Whoever asks at an old address, of a
module or of a name, gets the new one for one more version, with a `MovedWarning` that says it.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

__all__ = ["MOVED", "RENAMED", "MovedWarning", "declared_name", "find_renamed", "load_object", "warn_moved"]

MOVED: dict[str, str] = {
    "atoll.auditing.broken:HalfGaussian": "atoll.auditing.run:HalfGaussian",
    "atoll.auditing.broken:HalfLaplace": "atoll.auditing.run:HalfLaplace",
    "atoll.auditing.replies:own_value": "atoll.auditing.run:own_value",
    "atoll.client.flare": "atoll.bridges.nvflare",
    "atoll.core.federation.ending": "atoll.core.federation.scope",
    "atoll.core.federation.reduction": "atoll.core.federation.reducer",
    "atoll.core.requests.context": "atoll.core.requests.stage",
    "atoll.core.requests.cost": "atoll.core.requests.results",
    "atoll.data.shard": "atoll.data.islands",
    "atoll.flower": "atoll.bridges.flower",
    "atoll.flower.client:answer": "atoll.bridges.flower_grid:answer",
    "atoll.labels.evaluators.pseudo:PseudoLabels": "atoll.labels.evaluators.unlabelled:PseudoLabels",
    "atoll.labels.look": "atoll.labels.pre_pass",
    "atoll.labels.methods.voting.votes:VoteNoise": "atoll.labels.methods.pate:VoteNoise",
    "atoll.learn.admm": "atoll.programs",
    "atoll.learn.admm.asynchronous": "atoll.programs.consensus",
    "atoll.learn.admm.asynchronous:worker_step": "atoll.programs.consensus:worker_step",
    "atoll.learn.admm.attack": "atoll.programs.factorisation",
    "atoll.learn.admm.factorisation": "atoll.programs.factorisation",
    "atoll.learn.admm.graph_admm": "atoll.programs.consensus",
    "atoll.learn.admm.graph_admm:meet": "atoll.programs.consensus:meet",
    "atoll.learn.admm.graph_admm:node_step": "atoll.programs.consensus:node_step",
    "atoll.learn.admm.losses": "atoll.programs.consensus",
    "atoll.learn.admm.mocha": "atoll.programs.multitask",
    "atoll.learn.admm.mocha:mocha_step": "atoll.programs.multitask:mocha_step",
    "atoll.learn.admm.multitask": "atoll.programs.multitask",
    "atoll.learn.admm.multitask:multitask_step": "atoll.programs.multitask:multitask_step",
    "atoll.learn.admm.sums_only": "atoll.programs.factorisation",
    "atoll.learn.admm.user": "atoll.programs.factorisation",
    "atoll.learn.admm.user:user_step": "atoll.programs.factorisation:user_step",
    "atoll.learn.aggregation.equal": "atoll.learn.aggregation.base",
    "atoll.learn.aggregation.keep_global": "atoll.learn.aggregation.base",
    "atoll.learn.aggregation.rescaled": "atoll.learn.aggregation.base",
    "atoll.learn.bandits": "atoll.programs.bandits",
    "atoll.learn.bandits.discounted": "atoll.programs.bandits",
    "atoll.learn.bandits.federated": "atoll.programs.bandits",
    "atoll.learn.bandits.federated:play": "atoll.programs.bandits:play",
    "atoll.learn.bandits.federated:share": "atoll.programs.bandits:share",
    "atoll.learn.bandits.linucb": "atoll.programs.bandits",
    "atoll.learn.bandits.tree": "atoll.programs.bandits",
    "atoll.learn.convex": "atoll.programs.convex",
    "atoll.learn.convex.aggregated": "atoll.programs.convex",
    "atoll.learn.convex.aggregated:noisy_gradient": "atoll.programs.convex:noisy_gradient",
    "atoll.learn.convex.aggregated:noisy_minimiser": "atoll.programs.convex:noisy_minimiser",
    "atoll.learn.convex.logistic": "atoll.programs.convex",
    "atoll.learn.convex.shared_noise": "atoll.programs.convex",
    "atoll.learn.counts": "atoll.learn.round.state",
    "atoll.learn.counts:count_examples": "atoll.learn.round.state:count_examples",
    "atoll.learn.counts:own_examples": "atoll.learn.round.state:own_examples",
    "atoll.learn.divergence:sizes_of": "atoll.programs.surveys:sizes_of",
    "atoll.learn.local.partial": "atoll.learn.local.update",
    "atoll.learn.local.release": "atoll.learn.local.reports",
    "atoll.learn.offered": "atoll.learn.learner",
    "atoll.learn.pacing.cached.arrivals": "atoll.learn.pacing.safa",
    "atoll.learn.pacing.cached.bias": "atoll.learn.pacing.bias",
    "atoll.learn.pacing.cached.course": "atoll.learn.pacing.safa",
    "atoll.learn.pacing.cached.lag": "atoll.learn.pacing.safa",
    "atoll.learn.pacing.regions.edge_log": "atoll.learn.pacing.hybridfl",
    "atoll.learn.pacing.regions.edge_visit": "atoll.learn.pacing.hybridfl",
    "atoll.learn.pacing.regions.regional": "atoll.learn.pacing.hybridfl",
    "atoll.learn.pacing.regions.slack": "atoll.learn.pacing.slack",
    "atoll.learn.pacing.regions.slack_estimator": "atoll.learn.pacing.slack",
    "atoll.learn.pacing.returning": "atoll.learn.pacing.steering",
    "atoll.learn.pacing.tier_rounds": "atoll.learn.pacing.tiered",
    "atoll.learn.pacing.versions.asynchronous": "atoll.learn.pacing.asynchronous",
    "atoll.learn.pacing.versions.buffered": "atoll.learn.pacing.fedbuff",
    "atoll.learn.pacing.versions.dispatch": "atoll.learn.pacing.dispatch",
    "atoll.learn.pacing.versions.in_flight": "atoll.learn.pacing.asynchronous",
    "atoll.learn.pacing.versions.round_log": "atoll.learn.pacing.asynchronous",
    "atoll.learn.pacing.versions.waiting": "atoll.learn.pacing.asynchronous",
    "atoll.learn.private.adaptive_clip": "atoll.learn.private.central",
    "atoll.learn.private.clipped": "atoll.learn.private.central",
    "atoll.learn.private.correlated_sum": "atoll.learn.private.ftrl",
    "atoll.learn.private.parts": "atoll.learn.private.base",
    "atoll.learn.round.scoring": "atoll.learn.round.evaluation",
    "atoll.learn.selection.coverage": "atoll.learn.selection.submodular",
    "atoll.learn.selection.divfl": "atoll.learn.selection.submodular",
    "atoll.learn.selection.inquiry": "atoll.learn.selection.base",
    "atoll.learn.selection.samples.labelled": "atoll.learn.selection.labelled",
    "atoll.learn.selection.samples.secret": "atoll.learn.selection.secret_sample",
    "atoll.learn.selection.seen": "atoll.learn.selection.base",
    "atoll.learn.server.contributions": "atoll.learn.aggregation.valued",
    "atoll.learn.surveys": "atoll.programs.surveys",
    "atoll.learn.surveys.divergence": "atoll.programs.surveys",
    "atoll.learn.surveys.matching": "atoll.programs.surveys",
    "atoll.learn.topology.blind.mixer": "atoll.learn.topology.server_blind",
    "atoll.learn.topology.blind.server_blind": "atoll.learn.topology.server_blind",
    "atoll.learn.topology.decentralised": "atoll.learn.topology.base",
    "atoll.learn.topology.groups": "atoll.learn.topology.hierarchical",
    "atoll.learn.topology.lockstep": "atoll.learn.topology.hierarchical",
    "atoll.learn.topology.membership": "atoll.learn.topology.graphs",
    "atoll.learn.topology.mixer": "atoll.learn.topology.mixing",
    "atoll.learn.topology.node_block": "atoll.learn.topology.nodes",
    "atoll.learn.transforms.adaptive": "atoll.learn.transforms",
    "atoll.learn.transforms.base": "atoll.learn.transforms",
    "atoll.learn.transforms.clip": "atoll.learn.transforms",
    "atoll.learn.transforms.momentum": "atoll.learn.transforms",
    "atoll.learn.transforms.pull": "atoll.learn.transforms",
    "atoll.privacy.accountants": "atoll.privacy.accountant",
    "atoll.privacy.bands": "atoll.privacy.factorisation",
    "atoll.privacy.discrete.additive": "atoll.privacy.discrete",
    "atoll.privacy.discrete.laws": "atoll.privacy.discrete",
    "atoll.privacy.discrete.sampler": "atoll.privacy.discrete",
    "atoll.privacy.lattice": "atoll.privacy.events",
    "atoll.privacy.profiles": "atoll.privacy.loss_distribution",
    "atoll.privacy.spending.account": "atoll.privacy.spending",
    "atoll.privacy.spending.allowance": "atoll.privacy.spending",
    "atoll.privacy.spending.demand": "atoll.privacy.spending",
    "atoll.privacy.spending.statements": "atoll.privacy.spending",
    "atoll.privacy.subsampled": "atoll.privacy.renyi",
    "atoll.privacy.tradeoff": "atoll.privacy.canaries",
    "atoll.query.strategies.kept:compute_from_kept": "atoll.query.strategies.kept_shares:compute_from_kept",
    "atoll.query.strategies.kept:drop_kept": "atoll.query.strategies.kept_shares:drop_kept",
    "atoll.query.strategies.kept:keep_relation": "atoll.query.strategies.kept_shares:keep_relation",
    "atoll.query.strategies.kept:measure_kept": "atoll.query.strategies.kept_shares:measure_kept",
    "atoll.query.strategies.kept:share_for_kept": "atoll.query.strategies.kept_shares:share_for_kept",
    "atoll.query.strategies.smcql:compute_shares": "atoll.query.strategies.shared_rows:compute_shares",
    "atoll.query.strategies.smcql:measure_rows": "atoll.query.strategies.shared_rows:measure_rows",
    "atoll.query.strategies.smcql:share_rows": "atoll.query.strategies.shared_rows:share_rows",
    "atoll.report.tensorboard": "atoll.report.trackers",
    "atoll.rounds.stop": "atoll.rounds.loop",
    "atoll.runtime.provision.checkup": "atoll.runtime.provision.doctor",
    "atoll.secure.bounded.halves:add": "atoll.secure.bounded:add",
    "atoll.secure.bounded.halves:compare": "atoll.secure.bounded:compare",
    "atoll.secure.bounded.halves:receive": "atoll.secure.bounded:receive",
    "atoll.secure.bounded.halves:split": "atoll.secure.bounded:split",
    "atoll.secure.encrypted.halves:answer_sum": "atoll.secure.encrypted.party_steps:answer_sum",
    "atoll.secure.encrypted.halves:deal_keys": "atoll.secure.encrypted.party_steps:deal_keys",
    "atoll.secure.encrypted.halves:encrypt_totals": "atoll.secure.encrypted.party_steps:encrypt_totals",
    "atoll.secure.encrypted.halves:make_keys": "atoll.secure.encrypted.party_steps:make_keys",
    "atoll.secure.encrypted.halves:open_sum": "atoll.secure.encrypted.party_steps:open_sum",
    "atoll.secure.encrypted.halves:vote_on_sum": "atoll.secure.encrypted.party_steps:vote_on_sum",
    "atoll.secure.holders": "atoll.secure.seed_holders",
    "atoll.secure.holders.halves:attest": "atoll.secure.seed_holders:attest",
    "atoll.secure.holders.halves:describe": "atoll.secure.seed_holders:describe",
    "atoll.secure.holders.halves:entrust": "atoll.secure.seed_holders:entrust",
    "atoll.secure.holders.halves:masked": "atoll.secure.seed_holders:masked",
    "atoll.secure.holders.halves:open_masks": "atoll.secure.seed_holders:open_masks",
    "atoll.secure.indexing.halves:add": "atoll.secure.indexing.party_steps:add",
    "atoll.secure.indexing.halves:send": "atoll.secure.indexing.party_steps:send",
    "atoll.secure.masking.coded:code_words": "atoll.secure.masking.one_shot:code_words",
    "atoll.secure.masking.coded:sum_shares": "atoll.secure.masking.one_shot:sum_shares",
    "atoll.secure.masking.coded:vote_on_sum": "atoll.secure.masking.one_shot:vote_on_sum",
    "atoll.secure.masking.halves:deal": "atoll.secure.masking.party_steps:deal",
    "atoll.secure.masking.halves:masked": "atoll.secure.masking.party_steps:masked",
    "atoll.secure.masking.halves:reveal": "atoll.secure.masking.party_steps:reveal",
    "atoll.secure.masking.halves:vote": "atoll.secure.masking.party_steps:vote",
    "atoll.secure.noise.laws:DiscreteGaussianNoise": "atoll.secure.noise:DiscreteGaussianNoise",
    "atoll.secure.noise.laws:SkellamMixtureNoise": "atoll.secure.noise:SkellamMixtureNoise",
    "atoll.secure.noise.laws:SkellamNoise": "atoll.secure.noise:SkellamNoise",
    "atoll.secure.noise.stage:LatticeNoise": "atoll.secure.noise:LatticeNoise",
    "atoll.secure.standing": "atoll.secure.multi_round",
    "atoll.secure.standing.halves:introduce": "atoll.secure.multi_round:introduce",
    "atoll.secure.standing.halves:join": "atoll.secure.multi_round:join",
    "atoll.secure.standing.halves:masked": "atoll.secure.multi_round:masked",
    "atoll.secure.standing.halves:reveal": "atoll.secure.multi_round:reveal",
    "atoll.secure.standing.halves:vote": "atoll.secure.multi_round:vote",
    "atoll.stages.around": "atoll.stages.remembering",
    "atoll.stages.around:Around": "atoll.stages.remembering:Around",
    "atoll.stages.bits": "atoll.stages.packed",
    "atoll.stages.coded.adapting": "atoll.stages.coded.scalar",
    "atoll.stages.coded.checks": "atoll.stages.coded.scalar",
    "atoll.stages.coded.kmeans": "atoll.stages.coded.product",
    "atoll.stages.feedback": "atoll.stages.remembering",
    "atoll.stages.feedback:ErrorFeedback": "atoll.stages.remembering:ErrorFeedback",
    "atoll.stages.filters.exclude": "atoll.stages.filters",
    "atoll.stages.filters.exclude:ExcludeVariables": "atoll.stages.filters:ExcludeVariables",
    "atoll.stages.filters.percentile": "atoll.stages.filters",
    "atoll.stages.filters.percentile:Percentile": "atoll.stages.filters:Percentile",
    "atoll.stages.local.anonymous": "atoll.stages.local",
    "atoll.stages.local.anonymous:Anonymous": "atoll.stages.local:Anonymous",
    "atoll.stages.local.base": "atoll.stages.local",
    "atoll.stages.local.base:Randomiser": "atoll.stages.local:Randomiser",
    "atoll.stages.local.fedsel": "atoll.stages.local",
    "atoll.stages.local.fedsel:FedSel": "atoll.stages.local:FedSel",
    "atoll.stages.local.noise": "atoll.stages.local",
    "atoll.stages.local.noise:LocalGaussian": "atoll.stages.local:LocalGaussian",
    "atoll.stages.local.noise:LocalLaplace": "atoll.stages.local:LocalLaplace",
    "atoll.stages.local.response": "atoll.stages.local",
    "atoll.stages.local.response:RandomisedSigns": "atoll.stages.local:RandomisedSigns",
    "atoll.stages.local.sparse_vector": "atoll.stages.local",
    "atoll.stages.local.sparse_vector:SparseVector": "atoll.stages.local:SparseVector",
    "atoll.stages.shift": "atoll.stages.remembering",
    "atoll.stages.shift:Shift": "atoll.stages.remembering:Shift",
    "atoll.stages.ternary": "atoll.stages.qsgd",
    "atoll.stages.ternary:Ternary": "atoll.stages.qsgd:Ternary",
    "atoll.statistics.aggregates.drift": "atoll.statistics.histogram",
    "atoll.statistics.aggregates.histogram": "atoll.statistics.histogram",
    "atoll.statistics.aggregates.moments": "atoll.statistics.moments",
    "atoll.statistics.aggregates.relations": "atoll.statistics.moments",
    "atoll.statistics.aggregates.sketch": "atoll.statistics.sketch",
    "atoll.statistics.agreement": "atoll.statistics.summed",
    "atoll.statistics.cells": "atoll.statistics.plan",
    "atoll.statistics.disclosure.answered": "atoll.statistics.answered",
    "atoll.statistics.disclosure.coarsening": "atoll.statistics.disclosure",
    "atoll.statistics.disclosure.noise": "atoll.statistics.disclosure",
    "atoll.statistics.disclosure.suppression": "atoll.statistics.disclosure",
    "atoll.statistics.noised": "atoll.statistics.private",
    "atoll.statistics.noised:noised_ranges": "atoll.statistics.private:noised_ranges",
    "atoll.statistics.noised:noised_ranges_told": "atoll.statistics.private:noised_ranges_told",
    "atoll.statistics.noised:noised_sums": "atoll.statistics.private:noised_sums",
    "atoll.statistics.noised:noised_told": "atoll.statistics.private:noised_told",
    "atoll.statistics.page": "atoll.statistics.summary",
    "atoll.statistics.summarising.features": "atoll.statistics.summarising",
    "atoll.statistics.summarising.greedy": "atoll.statistics.summarising",
    "atoll.statistics.summarising.mwem": "atoll.statistics.summarising",
    "atoll.statistics.summarising.program": "atoll.statistics.summarising",
    "atoll.statistics.summarising.program:histogram_of": "atoll.statistics.summarising:histogram_of",
    "atoll.statistics.summarising.program:noisy_embedding": "atoll.statistics.summarising:noisy_embedding",
    "atoll.sweeps": "atoll.study",
    "atoll.testing.conformance.learner": "atoll.testing.conformance.algorithm",
    "atoll.testing.conformance.looking": "atoll.testing.conformance.secrecy",
    "atoll.testing.conformance.program": "atoll.testing.conformance.engine",
    "atoll.testing.conformance.sight": "atoll.testing.conformance.secrecy",
    "atoll.testing.hostile.catalogue": "atoll.testing.hostile.attack",
    "atoll.testing.hostile.mouth": "atoll.testing.hostile.attack",
    "atoll.testing.hostile.playing": "atoll.testing.hostile.local_job",
}
"""Maps a declared name to where it lies today.

``module:name`` -> ``module:name`` for one object, which keeps its declared name in its new place. ``module`` -> ``module`` finds the other names of a
module that moved whole; it renames nothing, since several modules may have been merged into one.
"""
RENAMED: dict[str, str] = {
    "atoll.auditing.CostPoint": "atoll.study.CostPoint",
    "atoll.auditing.PrivacyCost": "atoll.study.PrivacyCost",
    "atoll.auditing.privacy_cost": "atoll.study.privacy_cost",
    "atoll.labels.look.OneLook": "atoll.labels.pre_pass.PrePass",
    "atoll.labels.look.split_look": "atoll.labels.pre_pass.split_pre_pass",
    "atoll.labels.views.*": "atoll.views.*",
    "atoll.learn.Divergence": "atoll.programs.Divergence",
    "atoll.learn.EqualWeights": "atoll.aggregation.EqualWeights",
    "atoll.learn.Everyone": "atoll.selection.Everyone",
    "atoll.learn.FedAvg": "atoll.algorithms.FedAvg",
    "atoll.learn.FedSGD": "atoll.algorithms.FedSGD",
    "atoll.learn.GradientDivergence": "atoll.programs.GradientDivergence",
    "atoll.learn.KeepGlobal": "atoll.aggregation.KeepGlobal",
    "atoll.learn.KeepLocal": "atoll.aggregation.KeepLocal",
    "atoll.learn.Renormalised": "atoll.aggregation.Renormalised",
    "atoll.learn.Rescaled": "atoll.aggregation.Rescaled",
    "atoll.learn.Schedule": "atoll.selection.Schedule",
    "atoll.learn.SizeProportional": "atoll.selection.SizeProportional",
    "atoll.learn.SufficientStatistics": "atoll.algorithms.SufficientStatistics",
    "atoll.learn.Synchronous": "atoll.pacing.Synchronous",
    "atoll.learn.Uniform": "atoll.selection.Uniform",
    "atoll.learn.aggregation.*": "atoll.aggregation.*",
    "atoll.learn.algorithms.*": "atoll.algorithms.*",
    "atoll.learn.offered.let_go": "atoll.learn.learner.release_learner",
    "atoll.learn.offered.offered_by": "atoll.learn.learner.capabilities_of",
    "atoll.learn.pacing.*": "atoll.pacing.*",
    "atoll.learn.private.*": "atoll.mechanisms.*",
    "atoll.learn.selection.*": "atoll.selection.*",
    "atoll.learn.topology.*": "atoll.topology.*",
    "atoll.models.MonaiBundle": "atoll.bridges.MonaiBundle",
    "atoll.models.monai_bundle": "atoll.bridges.monai_bundle",
    "atoll.secure.BoundedSum": "atoll.reducers.BoundedSum",
    "atoll.secure.Enclave": "atoll.reducers.Enclave",
    "atoll.secure.Encrypted": "atoll.reducers.Encrypted",
    "atoll.secure.MultiRound": "atoll.reducers.MultiRound",
    "atoll.secure.OneShot": "atoll.reducers.OneShot",
    "atoll.secure.SecureAggregation": "atoll.reducers.SecureAggregation",
    "atoll.secure.SecureIndexing": "atoll.reducers.SecureIndexing",
    "atoll.secure.SecureTree": "atoll.reducers.SecureTree",
    "atoll.secure.TwoServers": "atoll.reducers.TwoServers",
    "atoll.sweeps.SweepResult": "atoll.study.StudyResult",
}
"""Maps a public name that left its package to its address today, ``package.name`` -> ``package.name``; ``*`` stands for every name of the new package."""
_DECLARED = {place: name for name, place in MOVED.items() if ":" in name}


def declared_name(found: Any) -> str:
    """Return the name of a class or function, ``module:name``, wherever it lies today.

    A class of another distribution that moved says its name itself: ``declared: ClassVar = "module:name"``. A task says it by ``@task(name=...)``.
    """
    place = f"{found.__module__}:{found.__qualname__}"
    own: str = getattr(found, "__dict__", {}).get("declared", place)  # a subclass is another thing
    return _DECLARED.get(place, own)


def load_object(name: str) -> Any:
    """Return the object of a declared name, ``module:name``, or ``module`` for a module.

    Modules that left this package for a distribution of their own are found too: the distribution lists each as an entry point of the group
    ``atoll.addresses``, its old name and where it lies today.

    Raises:
        ImportError: there is no such module.
        AttributeError: the module has no such name.
    """
    module, _, path = MOVED.get(name, name).partition(":")
    found: Any = _import_module(MOVED.get(module, module))
    for part in path.split(".") if path else ():
        found = getattr(found, part)
    return found


def _import_module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        from importlib.metadata import entry_points  # nothing else here needs it, and it loads parsers of mail

        moved = entry_points(group="atoll.addresses", name=name)
        if not moved or not f"{name}.".startswith(f"{error.name}."):  # the module is there, and imports what is not
            raise
        return importlib.import_module(next(iter(moved)).value)


# ------------------------------------------------------------------ old addresses


class MovedWarning(FutureWarning):
    """A name or module was asked for at an address that works for one more version. The text has the new address."""


def warn_moved(old: str, new: str, stacklevel: int) -> None:
    """Say where a name or module is now, at the line that asks."""
    warnings.warn(f"{old} is {new} now; the old address goes with the next version", MovedWarning, stacklevel + 1)


def find_renamed(package: str, name: str) -> str:
    """Return the address today of a public name that left its package; empty if it never was there."""
    if (place := RENAMED.get(f"{package}.{name}")) is not None:
        return place
    whole = RENAMED.get(f"{package}.*", "").removesuffix(".*")
    return f"{whole}.{name}" if whole and name in importlib.import_module(whole).__all__ else ""


class _OldModules:
    """Lets ``import`` find a module that moved whole, for one version: the old module has the names of the new one, and says where that is.

    Python asks it last, and so only for modules that are not there.
    """

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return how to load an old module, or a package that is only on the way to one."""
        del path, target
        place, inner = MOVED.get(name), any(old.startswith(f"{name}.") for old in MOVED)
        if place is None and not inner:
            return None
        origin = None if place is None else getattr(find_spec(place), "origin", None)
        return ModuleSpec(name, _OldModules(), origin=origin, is_package=inner)  # type: ignore[arg-type]

    @staticmethod
    def get_code(name: str) -> Any:
        """Return the code of the new module, for ``python -m`` of the old one."""
        found = find_spec(MOVED[name])
        return found.loader.get_code(found.name)  # type: ignore[union-attr]

    @staticmethod
    def create_module(spec: ModuleSpec) -> None:
        """Take the usual kind of module."""
        del spec

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        """Give the old module the names of the new one; an old package has only its modules."""
        place = MOVED.get(module.__name__)
        if place is None:
            vars(module).update(__getattr__=lambda name: _child_of(module.__name__, name))
            return
        found = importlib.import_module(place)
        warn_moved(module.__name__, place, stacklevel=2)
        vars(module).update((name, value) for name, value in vars(found).items() if not name.startswith("__"))
        vars(module).update(__doc__=found.__doc__, __getattr__=lambda name: _name_of(module.__name__, found, name))


def _name_of(old: str, found: ModuleType, name: str) -> Any:
    """Return a name of a module that moved; it may have another name in the new one."""
    new = RENAMED.get(f"{old}.{name}", "").rpartition(".")[2]
    return getattr(found, new or name)


def _child_of(package: str, name: str) -> ModuleType:
    """Return a module of an old package."""
    if f"{package}.{name}" not in MOVED:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return importlib.import_module(f"{package}.{name}")


sys.meta_path.append(_OldModules)
