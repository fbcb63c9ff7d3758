"""Frames being written: staged by many processes, joined and published at the end.

`targets` is the way in. Stands on `storage.read`, never the reverse.
"""
