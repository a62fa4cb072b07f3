"""Reproductions of papers' tables for ``atoll reproduce``: data, printed numbers, trainings and the rules that judge them.

``pyproject.toml`` names each entry under its command's name. Trainings that were kept, and configurations that were saved, name the parts of this
package by the addresses that they had inside Atoll, such as ``some_digits`` in a module ``fedavg_mnist`` of ``atoll.reproduce``. These are
declared names: they never change, and the entry points of the group ``atoll.addresses`` say where each module is today.
"""
