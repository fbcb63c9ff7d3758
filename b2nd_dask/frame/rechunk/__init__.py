"""Rechunking: read one frame in regions of whole chunks of another, in bounded memory.

`one_pass` chooses the region of a pass; `passes` plans several passes with intermediate frames, and
the passes of a copy and of a reshape. Both read nothing. `work` has the tasks, and the sources of
the regions that they read.
"""
