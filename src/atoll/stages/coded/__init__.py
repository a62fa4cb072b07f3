"""Stages whose encodings are words or indices: whole numbers that add up under masks, shares and counts. And the rotation that makes words of few bits enough."""
