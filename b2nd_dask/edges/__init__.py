"""Thin edges over the public functions: the command line and the demo."""
