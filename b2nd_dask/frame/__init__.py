"""An opened frame: its parsed state, the per-process cache, and reads of regions."""
