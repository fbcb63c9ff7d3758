"""`demo`: the computation on the global land mask."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from b2nd_dask.edges.cli.failures import Verb
from b2nd_dask.edges.demo import run_demo


@click.command("demo", cls=Verb)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default="demo-output",
    show_default=True,
    help="Folder for the frame and the picture.",
)
@click.option("--force", is_flag=True, help="Make the frame anew if it is there already.")
def demo_command(output: Path, force: bool) -> None:
    """Compute how much of the Earth is land, out of core, from the real global land mask.

    Needs the extra "demo": pip install 'b2nd-dask[demo]'.

    \b
    Example:
      b2nd-dask demo --output /tmp/demo
    """
    run_demo(output.expanduser(), force=force, console=Console(highlight=False))
