"""The command line `b2nd-dask`: arguments to calls, results to text.

`group` has the table of commands, imports a command at its first use, has the exit codes and turns
errors into messages. Related commands share a module. `shared` has the options of several commands,
finds the frames at a path, and prints tables and the progress on stderr.
"""

from b2nd_dask.edges.cli.group import main

__all__ = ["main"]
