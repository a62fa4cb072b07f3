"""NVIDIA FLARE's Table 1, the cost of homomorphic encryption: what is measured, and what the table is compared with."""
