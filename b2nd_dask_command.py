"""The script `b2nd-dask`, which starts without dask.

``import b2nd_dask`` imports dask.array, which takes seconds; help, completion and the verbs that
look at frames need none of it. So the package stands in `sys.modules` before its `__init__` has
run; the command line runs that when a verb has imported dask.
"""

import sys
from importlib.util import find_spec, module_from_spec


def main() -> None:
    """Run the command line."""
    spec = find_spec("b2nd_dask")
    if spec is None:
        sys.exit("b2nd_dask is not installed")
    sys.modules.setdefault("b2nd_dask", module_from_spec(spec))
    from b2nd_dask.edges.cli import main as command

    command(prog_name="b2nd-dask")
