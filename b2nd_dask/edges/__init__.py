"""Ways in beside the Python API: the command line and its demo.

They turn arguments into calls and results into text. They may import everything below: `graph`,
`frame`, `storage`, `format` and `errors`; nothing imports them, so that no command is needed by a
library.
"""
