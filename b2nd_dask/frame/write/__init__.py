"""Writing a frame: encode blocks, stage them, commit. Uses `frame.read`, never the reverse.

`new_frame` and `update` plan the frame, `writer` turns blocks into staged chunks, `records` locates
these in memory and in manifests. `transaction` is a whole write, whose tasks may run twice;
`update`, which finds conflicts of concurrent updates, and `parts` define further transactions.
Imports all of `frame` except the modules for whole frames.
"""
