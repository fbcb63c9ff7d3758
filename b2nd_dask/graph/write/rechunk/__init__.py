"""Rechunking within a stated memory: `rechunk` from frame to frame, and `max_mem` of `to_b2nd`.

`frame.rechunk` plans the passes and does the work of each task; `job` makes the tasks of them,
`budget` says how much memory they share.
"""
