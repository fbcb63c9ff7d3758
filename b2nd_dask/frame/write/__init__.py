"""Writing a frame: encode blocks, stage them, commit. Uses `frame.read`, never the reverse.

`new_frame` and `update` plan the frame, `writer` converts blocks to staged chunks, `records` has
their locations, in memory and in manifests. `transaction` is a whole write, whose tasks may run
twice. `update`, which detects conflicts of concurrent updates, and `parts` have other transactions.
Imports all of `frame` except the modules for whole frames.
"""
