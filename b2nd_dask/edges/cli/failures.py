"""Errors of commands: exit codes, and messages with command-line options, without a traceback."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import click

#: Exit codes other than 0; click uses 2 for wrong arguments.
FAILED, NO_CHECKSUMS, INTERRUPTED, BROKEN_PIPE = 1, 3, 130, 141

#: Python in the package's messages, and the equivalent on the command line.
_SPELLINGS = (
    (re.compile(r"storage_options=\{'anon': True\}"), "--storage-option anon=true"),
    (re.compile(r"\bstorage_options are\b"), "--storage-option is"),
    (re.compile(r"\bstorage_options\b=?"), "--storage-option"),
    (re.compile(r"\b(?:pass|with) mode=\"w\""), "give --overwrite"),
    (re.compile(r"\bcomponent=KEY reads\b"), "PATH/KEY is"),
    (re.compile(r"\bcomponent=(?=')"), "KEY "),
    (re.compile(r"\b(\w+)=(True)? \((--[\w-]+[^)]*)\)"), r"\3"),
    (re.compile(r"\bsource_format="), "--from "),
    (re.compile(r"\btarget_format="), "--to "),
    (re.compile(r"\bcparams=(?=[\s{])"), "--codec, --level, --filter="),
    (re.compile(r"\bmax_mem="), "--max-mem="),
    (re.compile(r"\b(?=(?:chunks|blocks|dtype)=)"), "--"),
    # a value follows its option after a space
    (re.compile(r"(--(?:filter|max-mem|chunks|blocks|dtype))=(?=\S)"), r"\1 "),
    (re.compile(r"(--(?:filter|max-mem|chunks|blocks|dtype))="), r"\1"),
    (re.compile(r"`?\blist_staging\b`?"), "`b2nd-dask staging PATH`"),
    (re.compile(r"`?\bremove_staging\b`?"), "`b2nd-dask staging PATH --remove`"),
    (re.compile(r"`?\bb2nd_dask\.(seal|verify|compact)\b`?"), r"`b2nd-dask \1 PATH`"),
    (re.compile(r"`?\bb2nd_dask\.add_stats\b`?"), "`b2nd-dask stats --add PATH`"),
)


def as_commands(text: str, *paths: str | None) -> str:
    """Replace Python in a message by commands and options; the paths stay unchanged."""
    names = "|".join(map(re.escape, filter(None, paths)))
    parts = re.split(rf"(?<!\w)({names})(?!\w)", text) if names else [text]
    for python, shell in _SPELLINGS:
        # each second part is a path
        parts[::2] = [python.sub(shell, part) for part in parts[::2]]
    return "".join(parts)


def message_of(
    error: Exception,
    path: str | None,
    options: Mapping[str, Any] | None = None,
    target: str | None = None,
) -> str:
    """The message of an error: the problem, the file, and options of the command line.

    `path` and `target` are those of the command.
    """
    # imported here: help and completion do not need it
    from b2nd_dask.storage import Location, Secrets, split_store

    text = str(error) or type(error).__name__
    if isinstance(error, OSError) and error.strerror and isinstance(error.filename, str):
        # leaves out the error number
        text = f"{error.filename}: {error.strerror}"
    text = as_commands(text, path, target)
    if path == "":
        return safe(f"the path is empty: {text}")
    named = False
    for each in filter(None, (target, path)):
        try:
            location = Location.of(each)
            store = Location.of(split_store(each)[0])
        except ValueError:
            # not a valid path or URL; the error says so without showing it
            return safe(text)
        if location.is_url:
            text = Secrets(each, options).hide(text)
        named = named or any(name in text for name in (each, location.label, store.label))
        label = location.label
    return safe(text if named or path is None else f"{label}: {text}")


def safe(text: str) -> str:
    r"""Escape control characters for a terminal; line ends stay.

    Examples
    --------
    >>> print(safe("\x1b[31mred"))
    \x1b[31mred
    """
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


class Verb(click.Command):
    """A command whose function returns its exit code, and whose errors are messages.

    Messages name its parameter `path` and hide the values of `storage_options`.
    """

    def invoke(self, ctx: click.Context) -> NoReturn:
        """Run the command."""
        with reported(ctx.params):
            code = super().invoke(ctx)
        ctx.exit(code or 0)


class Failures:
    """Errors of single paths: each is a message on stderr, and the other paths continue."""

    def __init__(self) -> None:
        self.code = 0
        """Exit code of the command."""

    @contextmanager
    def noted(self, path: str, options: Mapping[str, Any] | None = None) -> Iterator[None]:
        """Report an error of the block as an error of the path."""
        try:
            yield
        except BrokenPipeError:
            raise
        except Exception as error:  # noqa: BLE001 - file systems have trees of their own
            click.echo(f"Error: {message_of(error, path, options)}", err=True)
            self.code = FAILED


@contextmanager
def reported(parameters: Mapping[str, Any]) -> Iterator[None]:
    """Turn an error of a command into a message, and an interrupt into an exit code."""
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
            named = (parameters.get(name) for name in ("path", "storage_options", "target"))
            failure = click.ClickException(message_of(error, *named))
    else:
        return
    # raised outside of the except clause, without the original error as its context
    raise failure


def _silence() -> None:
    """Redirect stdout to the null device: the flush at exit must not write to the broken pipe."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
