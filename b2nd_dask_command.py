"""The script `b2nd-dask` and the verb `b2nd` of `dask`, which start without what they do not need.

``import b2nd_dask`` imports dask.array, which takes seconds; help, completion and the verbs that
look at frames need none of it. So the package stands in `sys.modules` before its `__init__` has
run; the command line runs that when a verb has imported dask. `dask` loads the verbs of all
packages, also for `dask scheduler`: this module is what it loads.
"""

import sys
from importlib.util import find_spec, module_from_spec

import click


def main() -> None:
    """Run the command line."""
    spec = find_spec("b2nd_dask")
    if spec is None:
        sys.exit("b2nd_dask is not installed")
    sys.modules.setdefault("b2nd_dask", module_from_spec(spec))
    from b2nd_dask.edges.cli import main as command

    command(prog_name="b2nd-dask")


@click.command(
    "b2nd",
    short_help="Blosc2 array frames.",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def of_dask(arguments: tuple[str, ...]) -> None:
    """Look at Blosc2 array frames, check, copy and convert them."""
    from b2nd_dask.edges.cli import main as command

    command(list(arguments), prog_name="dask b2nd")
