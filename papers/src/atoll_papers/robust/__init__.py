"""Trainings of `labels-robust`: small noise that is chosen against the model, and clients that poison what others learn."""
