"""What fails: exit codes, messages that spell options as the command line does, no traceback."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

from b2nd_dask.storage import Location, Secrets, split_store

#: Exit codes, beside 0; click uses 2 for wrong arguments.
FAILED, NO_CHECKSUMS, INTERRUPTED, BROKEN_PIPE = 1, 3, 130, 141

#: Python in messages of the package, and how the command line spells the same.
_SPELLINGS = (
    (re.compile(r"storage_options=\{'anon': True\}"), "--storage-option anon=true"),
    (re.compile(r"\bstorage_options are\b"), "--storage-option is"),
    (re.compile(r"\bstorage_options\b=?"), "--storage-option"),
    (re.compile(r"\bcomponent=KEY reads\b"), "PATH/KEY is"),
    (re.compile(r"\bcomponent=(?=')"), "KEY "),
    (re.compile(r"\b(\w+)=(True)? \((--[\w-]+[^)]*)\)"), r"\3"),
    (re.compile(r"\bsource_format="), "--from "),
    (re.compile(r"\btarget_format="), "--to "),
    (re.compile(r"\bcparams=(?=\{)"), "--codec, --level, --filter "),
    (re.compile(r"\b(max_mem|chunks|dtype)="), lambda found: f"--{found[1].replace('_', '-')} "),
    (re.compile(r"`?\blist_staging\b`?"), "`b2nd-dask staging PATH`"),
    (re.compile(r"`?\bremove_staging\b`?"), "`b2nd-dask staging PATH --remove`"),
    (re.compile(r"`?\bb2nd_dask\.(seal|verify|compact)\b`?"), r"`b2nd-dask \1 PATH`"),
)


def as_commands(text: str, path: str) -> str:
    """Spell Python in a message as commands and options, except in the path."""
    parts = text.split(path) if path else [text]
    for python, shell in _SPELLINGS:
        parts = [python.sub(shell, part) for part in parts]
    return path.join(parts)


def message_of(error: Exception, path: str | None, options: Mapping[str, Any] | None = None) -> str:
    """One message: what failed, in which file, with options as the command line spells them."""
    text = str(error) or type(error).__name__
    text = as_commands(text, path or "")
    if path is None:
        return text
    try:
        location = Location.of(path)
        store = Location.of(split_store(path)[0])
    except ValueError:
        # the error says that it is no path or URL, and does not show it
        return text
    if location.is_url:
        text = Secrets(path, options).hide(text)
    named = any(name in text for name in (path, location.label, store.label))
    return text if named else f"{location.label}: {text}"


class Verb(click.Command):
    """A command that fails with a message, not with a traceback.

    Its parameter `path` is named in messages; values of `storage_options` are left out of them.
    """

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        with reported(ctx.params):
            return super().invoke(ctx)


@contextmanager
def reported(parameters: Mapping[str, Any]) -> Iterator[None]:
    """Turn what a command raises into a message, or into the exit code of what stopped it."""
    try:
        yield
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise
    except KeyboardInterrupt:
        click.echo("Interrupted", err=True)
        failure: Exception = click.exceptions.Exit(INTERRUPTED)
    except Exception as error:  # noqa: BLE001 - file systems have trees of their own
        if isinstance(error, OSError) and error.errno == errno.EPIPE:
            _silence()
            failure = click.exceptions.Exit(BROKEN_PIPE)
        else:
            path, options = parameters.get("path"), parameters.get("storage_options")
            failure = click.ClickException(message_of(error, path, options))
    else:
        return
    # outside of the except clause, so that the original is not shown with it
    raise failure


def _silence() -> None:
    """Let nobody write to a pipe whose reader is gone, also when Python ends and flushes."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
