"""What computing a dask collection takes, before it is computed: `plan`.

`plan` optimizes the graph and adds up; `walk` finds the reads and writes in its tasks, `reads` and
`rechunks` say of which frames; `task_memory` and `memory` say what a task holds; `report` are the
results, as objects, text and HTML. What reads take says `frame.read.read_cost`. Imports `optimize`,
`write` and `read`, to know their tasks.
"""
