"""The command line `b2nd-dask`: arguments to calls, results to text.

`group` has the table of commands and imports a command at its first use. Related commands share a
module. `failures` has the exit codes and turns errors into messages. `options` has the shared
options, `terminal` prints tables and the progress on stderr.
"""

from b2nd_dask.edges.cli.group import main

__all__ = ["main"]
