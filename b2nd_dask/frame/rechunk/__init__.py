"""Rechunking: one frame read in regions that become whole chunks of another, in bounded memory.

`one_pass` chooses the region of a pass by what it touches, `passes` the passes, with intermediate
frames between them, and that of a reshape; nothing of this reads or knows dask. `source` is what a
region is read from, `work` what the task of a region does.
"""
