"""Writing a frame: encode blocks, stage them, commit. Stands on `frame.read`, never the reverse.

`new_frame` and `update` plan the frame, `writer` turns blocks into staged chunks, `records` says
where these are, in memory and in manifests. `commit` joins, builds and publishes; `conflicts` says
whether updates meet, `begun` and `parts` make frames in parts, `casts` refuses what a dtype cannot
hold, `idempotent` lets tasks run twice. Imports everything of `frame` but `verify`,
`seal` and `compact`.
"""
