"""Reading an opened frame: a region, points, reduced, or chunk by chunk."""
