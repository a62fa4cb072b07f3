"""Fixtures for the room of learning without full labels."""

from torch_fixtures import fresh_notices, global_generator_untouched

__all__ = ["fresh_notices", "global_generator_untouched"]
