"""Byte ranges of frames, wherever they are. `location` is the way in. Nothing here writes."""
