"""Writing a frame: encode blocks, stage them, commit. Stands on `frame.read`, never the reverse.

`new_frame` and `update` plan the frame, `writer` turns blocks into staged chunks, `records` says
where these are, in memory and in manifests. `conflicts` says whether updates meet. `transaction` is
a write as a whole, whose tasks may run twice; `update` and `parts` are others.
Imports everything of `frame` but what acts on whole frames.
"""
