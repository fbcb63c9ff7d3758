"""Mutated frames: whatever stands in a file, reading it gives values or a documented error.

``python -m tests.fuzz --seconds 600 --seed 1`` looks for new cases.
"""
