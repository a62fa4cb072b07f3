"""NVIDIA FLARE's paper: encryption, drivers, statistics, federated XGBoost, and how its algorithms meet heterogeneity."""
