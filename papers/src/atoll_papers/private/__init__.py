"""Reproductions about differential privacy: what mechanisms cost, and audits of them."""
