"""The command line `b2nd-dask`: arguments to calls, results to text.

`group` has the table of verbs, which are imported when they are used; one module has each family of
verbs. `failures` has exit codes and turns errors into messages, `options` what several verbs take,
`terminal` what they print: tables, and progress on stderr.
"""

from b2nd_dask.edges.cli.group import main

__all__ = ["main"]
