"""Compression underneath secure sums: accuracy against uplink bytes, for scalar quantisation, pruning and product quantisation.

Source: Prasad, Ghosh, Cormode, Mironov, Yousefpour, Stock, "Reconciling Security and Communication Efficiency in Federated Learning", 2022 (arXiv 2207.12779). The paper's accuracies and bytes are in figures, so its statements are judged, not its numbers. Words and counts are those that a masked sum and an enclave would
add up: a test holds trainings under `SecureAggregation` and `SecureIndexing` to the same models.
"""
