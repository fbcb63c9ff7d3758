"""The command `b2nd-dask` and the table of its verbs; each is imported at its first use."""

from __future__ import annotations

import importlib
import sys
import warnings
from typing import Any, NamedTuple

import click

from b2nd_dask._version import __version__
from b2nd_dask.edges.cli.failures import reported, safe
from b2nd_dask.edges.extras import require


class _Row(NamedTuple):
    """Module and description of a verb."""

    module: str
    """Module in `b2nd_dask.edges.cli`; its `VERB_command` is the command."""
    what: str


#: Help and completion read only this table: modules that import dask take seconds.
VERBS = {
    "info": _Row("info", "Describe frames and stores."),
    "map": _Row("map", "Draw the chunks of a frame."),
    "stats": _Row("stats", "Show minimum, maximum, mean, from statistics or out of core."),
    "verify": _Row("upkeep", "Verify frames by their checksums."),
    "seal": _Row("upkeep", "Add checksums to a frame that has none."),
    "convert": _Row("copying", "Convert zarr, HDF5 / NetCDF, npy to frames and back."),
    "copy": _Row("copying", "Copy a frame, optionally with other compression."),
    "rechunk": _Row("copying", "Copy a frame with other chunks."),
    "compact": _Row("upkeep", "Free the space of superseded chunks."),
    "staging": _Row("upkeep", "List or remove what interrupted writes have left."),
    "plan": _Row("plan", "Estimate the cost of a read or a rechunk."),
    "demo": _Row("demo", "Compute how much of the Earth is land, out of core."),
}


class _Verbs(click.Group):
    """A group that imports a verb at its first use and reports all errors as messages."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        verb, described, rest = super().resolve_command(ctx, args)
        return verb, described and _imported(args[0]), rest

    def invoke(self, ctx: click.Context) -> Any:
        with reported({}), warnings.catch_warnings():
            # leaves out the source line of the warning
            warnings.showwarning = _show_warning
            return super().invoke(ctx)


def _imported(verb: str) -> click.Command:
    try:
        require("cli", "rich")
        module = importlib.import_module(f"b2nd_dask.edges.cli.{VERBS[verb].module}")
    except ImportError as error:
        raise click.ClickException(str(error)) from None
    _complete_package()
    command: click.Command = getattr(module, f"{verb}_command")
    return command


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    click.echo(f"Warning: {safe(str(message))}", err=True)


def _complete_package() -> None:
    """Run the package's `__init__` if a verb has imported dask and the script has not run it.

    It installs the package's hooks in dask for reads and writes.
    """
    package = sys.modules["b2nd_dask"]
    if "dask.array" in sys.modules and not hasattr(package, "__version__"):
        spec = package.__spec__
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module(package)


@click.group(
    cls=_Verbs,
    name="b2nd",
    # stand-ins for help and completion
    commands={verb: click.Command(verb, short_help=row.what) for verb, row in VERBS.items()},
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="b2nd-dask")
def main() -> None:
    """Blosc2 array frames: show, verify, copy, convert and compute, out of core.

    PATH is a file (.b2nd), a directory or a URL; PATH.b2z/KEY is a member of a store. Each command
    has a --help with examples.

    Exit codes: 0 done, 1 failed or damaged, 2 wrong arguments, 3 no checksums to verify by, 130
    interrupted.
    """
