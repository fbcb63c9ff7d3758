"""What tasks of an optimized graph run: blocks that are read, computed, reduced or indexed.

A task carries a reference to the frame, which part of it to read, and the program to run on the
elements. Nothing here knows graphs of layers.
"""
