"""What computing a dask collection takes, before it is computed: `plan`.

`plan` optimizes the graph and adds up; `walk` finds the reads and writes in its tasks, `memory`
says what a task holds beside its block; `report` are the results, as objects, text and HTML. What
reads take says `frame.read.read_cost`. Imports `optimize`, `write` and `read`, to know their tasks.
"""
