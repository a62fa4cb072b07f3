"""Encrypted sums: parties encrypt, the server adds up ciphertexts, and only who holds the key can open the sum."""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
