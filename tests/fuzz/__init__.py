"""Mutated frames: a read of any bytes returns values or raises a documented error.

``python -m tests.fuzz --seconds 600 --seed 1`` looks for new cases.
"""
