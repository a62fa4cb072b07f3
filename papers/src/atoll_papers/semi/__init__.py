"""Trainings of `labels-semi`: few labels on MNIST, at the server, at clients, and of some classes only."""
