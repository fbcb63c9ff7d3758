"""The optimizer of graphs that read frames; neither `from_b2nd` nor `to_b2nd` needs it."""
