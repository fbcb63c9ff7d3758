"""Cost estimate of a dask collection before it is computed: `plan`.

`plan` has the function and its result, as numbers and text. `walk` adds up the reads and writes of
tasks; `memory` estimates their memory, `frame.read.read_cost` the cost of a read. Imports `tasks`,
`write` and `read`, whose functions the tasks call.
"""
