"""Rounds in which clients work on models of several versions: the working clients, arrivals, and the round's row."""
