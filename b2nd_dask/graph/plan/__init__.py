"""What computing a dask collection takes, before it is computed: `plan`.

`plan` has the function and its result, as numbers and text. `walk` finds what tasks read and
write, and adds it up; `memory` says what they hold for it, and `frame.read.read_cost` what reading
takes. Imports `tasks`, `write` and `read`, whose functions the tasks call.
"""
