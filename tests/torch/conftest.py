"""Fixtures for the PyTorch room."""

from tests.support.torch_fixtures import fresh_notices, global_generator_untouched

__all__ = ["fresh_notices", "global_generator_untouched"]
