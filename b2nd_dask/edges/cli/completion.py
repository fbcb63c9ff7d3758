"""`completion`: the script by which a shell completes verbs, options and paths."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from b2nd_dask.edges.cli.failures import Verb

_PROGRAM = "b2nd-dask"
_VARIABLE = "_B2ND_DASK_COMPLETE"


@click.command("completion", cls=Verb)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_command(shell: str) -> None:
    """Print the script that completes verbs, options and paths in a SHELL.

    \b
    Examples:
      b2nd-dask completion bash > ~/.local/share/bash-completion/completions/b2nd-dask
      echo 'eval "$(b2nd-dask completion zsh)"' >> ~/.zshrc
      b2nd-dask completion fish > ~/.config/fish/completions/b2nd-dask.fish
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise click.ClickException(f"no completion for {shell}")
    root = click.get_current_context().find_root().command
    click.echo(kind(root, {}, _PROGRAM, _VARIABLE).source())
