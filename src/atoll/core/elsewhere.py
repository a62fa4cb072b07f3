"""What other frameworks call a thing, and where Atoll has it: an `AttributeError` on a package leads there, and so does the page *Names elsewhere*.

Names are compared without case, hyphens and underscores. An entry is an address, or a sentence with addresses, commands or pages.
"""

from __future__ import annotations

__all__ = ["PEERS", "find_peer", "plain_name"]

_TRAINING = "atoll.Training, which atoll.simulate runs"
_FLOWER = (
    "`atoll flower` runs a Flower app as it is (docs/coming-from/flower.md); a loop of your own is atoll.client.connect"
)
_SCRIPT = "atoll.client.connect in your own script (docs/howto/scripts.md)"
_ROBUST = "no rule that needs single replies: atoll.reducers.BoundedSum bounds the norm of each reply inside a secure sum, atoll.stages.Clip clips it (docs/concepts/hostile-sites.md)"
_LINEAR = "atoll.fitting.GLM with atoll.fitting.Fit, or `atoll fit glm`"
_TREES = "atoll.trees.Trees, or `atoll trees`"
_VERTICAL = "atoll.vertical.Vertical, or `atoll vertical` (docs/howto/vertical.md)"
_ENCRYPTED = "atoll.reducers.Encrypted"
_MASKED = "atoll.reducers.SecureAggregation"

PEERS: dict[str, dict[str, str]] = {
    "Flower": {
        "NumPyClient": _FLOWER, "ClientApp": _FLOWER, "ServerApp": _FLOWER, "Strategy": "atoll.Algorithm", "SuperLink": "`atoll server`",
        "SuperNode": "`atoll site`", "start_simulation": "atoll.simulate", "run_simulation": "atoll.simulate", "FedOpt": "atoll.algorithms.ServerOptimised",
        "FedMedian": _ROBUST, "FedTrimmedAvg": _ROBUST, "Krum": _ROBUST, "MultiKrum": _ROBUST, "Bulyan": _ROBUST, "QFedAvg": "Atoll has none: atoll.selection.AFL invites clients with a large loss more often",
        "FaultTolerantFedAvg": "atoll.Synchronous(quorum=...)", "FedXgbBagging": "atoll.trees.Trees(scheme='bagging'), or `atoll trees --method bagging`",
        "FedXgbCyclic": _TREES, "SecAgg": _MASKED, "SecAggPlus": _MASKED, "SecAggPlusWorkflow": _MASKED,
        "DifferentialPrivacyServerSideFixedClipping": "atoll.mechanisms.CentralDP(clip=...)", "DifferentialPrivacyServerSideAdaptiveClipping": "atoll.mechanisms.CentralDP(adapt=atoll.mechanisms.AdaptiveClip())",
        "DifferentialPrivacyClientSideFixedClipping": "atoll.mechanisms.CentralDP(clip=...)", "LocalDpMod": "atoll.mechanisms.GaussianLDP", "FederatedDataset": "atoll.data.Islands",
        "DirichletPartitioner": "atoll.data.dirichlet", "IidPartitioner": "atoll.data.iid", "NaturalIdPartitioner": "atoll.data.natural", "PathologicalPartitioner": "atoll.data.classes_per_client",
        "ShardPartitioner": "atoll.data.shards",
    },
    "NVFlare": {
        "FedAvgRecipe": _TRAINING, "Recipe": _TRAINING, "SimEnv": "atoll.simulate", "FedJob": _TRAINING, "Controller": "an `async def program(fed)` (docs/howto/programs.md)",
        "Executor": "atoll.task", "ScatterAndGather": "atoll.topology.Star", "CyclicController": "atoll.topology.Cyclic", "SwarmClientController": "atoll.topology.Swarm",
        "FLModel": _SCRIPT, "Filter": "atoll.Stage", "SVTPrivacy": "atoll.stages.SparseVector, with an accountant: atoll.mechanisms.FedSelDP", "PercentilePrivacy": "atoll.stages.Percentile, which is no privacy: atoll.mechanisms.CentralDP is",
        "HEModelEncryptor": _ENCRYPTED, "CrossSiteModelEval": "atoll.Evaluation(cross_site=True)", "FederatedStatistics": "atoll.statistics.Statistics, or `atoll stats`", "PSI": "atoll.secure.psi",
        "TensorBoard": "atoll.report.trackers", "XGBoost": _TREES, "KaplanMeierAnalysis": "atoll.fitting.KaplanMeier, or `atoll fit km`", "POC": "`atoll poc`",
    },
    "FATE and SecretFlow": {
        "HomoLR": _LINEAR, "HomoNN": _TRAINING, "SecureBoost": "atoll.vertical.SecureBoost, or `atoll vertical`", "HomoSecureBoost": _TREES, "SBT": _TREES, "Paillier": "atoll.reducers.Encrypted(scheme='paillier')", "CKKS": "atoll.reducers.Encrypted(scheme='ckks')",
        "HEU": _ENCRYPTED, "SPU": "atoll.secure.shares", "PlainAggregator": "atoll.Training without reducer=", "SecureAggregator": _MASKED, "FLModelSF": _TRAINING,
    },
    "pfl-research, FedJAX, TFF, FLSim and Opacus": {
        "FederatedAveraging": "atoll.FedAvg", "SimulatedBackend": "atoll.simulate", "CentralMechanism": "atoll.mechanisms.CentralDP", "BandedMatrixFactorizationMechanism": "atoll.mechanisms.DPFTRL(factorisation='banded')",
        "PrivacyEngine": "atoll.mechanisms.ExampleDP or atoll.algorithms.DPSGD", "DPOptimizer": "atoll.algorithms.DPSGD", "RDPAccountant": "atoll.privacy.Budget(method=...), `atoll privacy`",
        "AdaptiveClipping": "atoll.mechanisms.AdaptiveClip", "IterativeProcess": "atoll.Algorithm", "for_each_client": "atoll.engines.Batched", "AsyncFLServer": "atoll.pacing.FedBuff", "MimeLiteServer": "atoll.algorithms.MimeLite",
        "HypCluster": "atoll.algorithms.IFCA", "federated_sum": "atoll.Federation.sum", "DP-FTRL": "atoll.mechanisms.DPFTRL",
    },
    "Papers and everyday words": {
        "SCAFFOLD": "atoll.Scaffold", "FedBN": "atoll.Training(buffers='local')", "FedPer": "atoll.stages.ExcludeVariables", "FedRep": "atoll.stages.ExcludeVariables", "APFL": "atoll.algorithms.Ditto",
        "MOON": "Atoll has none: atoll.algorithms.FedProx and atoll.Scaffold correct the drift of local steps", "LightSecAgg": "atoll.reducers.OneShot", "Bonawitz": _MASKED, "HE": _ENCRYPTED, "TenSEAL": _ENCRYPTED, "MPC": "atoll.secure.shares",
        "TopKSparsification": "atoll.stages.TopK", "Quantization": "atoll.ScalarQuantizer", "LDP": "atoll.mechanisms.LocalDP", "DP": "atoll.mechanisms.CentralDP", "DifferentialPrivacy": "atoll.mechanisms.CentralDP",
        "LogisticRegression": _LINEAR, "LinearRegression": "atoll.fitting.Ridge", "CoxPH": "atoll.fitting.Cox, or `atoll fit cox`", "LightGBM": "atoll.trees.Trees(scheme='lightgbm')", "RandomForest": "atoll.trees.Trees(scheme='forest')",
        "GradientBoosting": _TREES, "GMM": "atoll.fitting.GaussianMixture", "Shapley": "atoll.aggregation.Valued", "FedMD": "atoll.ensemble.FedMD", "FedBoost": "atoll.ensemble.FedBoost", "PromptFL": "atoll.adapters.PromptFL", "CoOp": "atoll.adapters.PromptFL", "HFL": "atoll.topology.Hierarchical",
        "P2P": "atoll.topology.Gossip", "DecentralizedFL": "atoll.topology.Gossip", "SplitLearning": "atoll.vertical.SplitNet, or `atoll vertical --model net`",
        "VerticalFL": _VERTICAL, "Client": "atoll.task and atoll.client.connect", "Server": "`atoll server`, or atoll.simulate on one machine",
        "Aggregator": "atoll.aggregation.Aggregation", "Trainer": _TRAINING, "Simulator": "atoll.simulate", "train": _TRAINING, "run": "atoll.simulate", "grid_search": "atoll.sweep, or `atoll sweep`", "evaluate": "atoll.Evaluation",
        "load_data": "atoll.data.read_data", "Dataset": "atoll.data.Dataset", "Partitioner": "atoll.data.dirichlet, atoll.data.iid and others", "PyTorch": "model= of atoll.Training takes a torch.nn.Module (docs/howto/torch.md)",
        "sklearn": "model= of atoll.Training takes an estimator (docs/howto/sklearn.md)", "Metrics": "atoll.learn.metrics",
        "DDP": _SCRIPT, "DistributedDataParallel": _SCRIPT, "torchrun": _SCRIPT,
    },
}  # fmt: skip
"""Framework -> its name of a thing -> where Atoll has it."""


def plain_name(name: str) -> str:
    """A name without case, hyphens and underscores."""
    return name.replace("_", "").replace("-", "").lower()


def find_peer(name: str) -> str:
    """Return where Atoll has what others call so; empty if the table has no such name."""
    wanted = plain_name(name)
    return next((place for names in PEERS.values() for own, place in names.items() if plain_name(own) == wanted), "")
