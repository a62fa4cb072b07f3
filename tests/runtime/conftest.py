"""Lets the tests of this folder's rooms import what they share: ``certificates``, ``forging``, ``front_toys``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
