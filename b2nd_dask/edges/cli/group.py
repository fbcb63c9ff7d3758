"""The command `b2nd-dask`: the table of its verbs, exit codes, and errors as messages."""

from __future__ import annotations

import importlib
import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import click

from b2nd_dask._version import __version__
from b2nd_dask.lazy import require

#: Exit codes other than 0; click uses 2 for wrong arguments.
FAILED, NO_CHECKSUMS, INTERRUPTED, BROKEN_PIPE = 1, 3, 130, 141

#: Python in the package's messages, and the equivalent on the command line; also `_options`.
_SPELLINGS = (
    (re.compile(r"storage_options=\{'anon': True\}"), "--storage-option anon=true"),
    (re.compile(r"\bstorage_options are\b"), "--storage-option is"),
    (re.compile(r"\bstorage_options\b=?"), "--storage-option"),
    (re.compile(r"\b(?:pass|with) mode=\"w\""), "give --overwrite"),
    (re.compile(r"\bcomponent=KEY reads\b"), "PATH/KEY is"),
    (re.compile(r"\bcomponent=(?=')"), "KEY "),
    (re.compile(r"\bcontiguous=False\b"), "--sparse"),
    (re.compile(r"\bto_b2nd\(from_b2nd\((\w+)\), ([\w.]+)\)"), r"`b2nd-dask copy \1 \2`"),
    (re.compile(r"\b(\w+)=(True)? \((--[\w-]+[^)]*)\)"), r"\3"),
    (re.compile(r"`?\blist_staging\b`?"), "`b2nd-dask staging PATH`"),
    (re.compile(r"`?\bremove_staging\b`?"), "`b2nd-dask staging PATH --remove`"),
    (re.compile(r"`?\bb2nd_dask\.(seal|verify|compact)\b`?"), r"`b2nd-dask \1 PATH`"),
    (re.compile(r"`?\b(?:b2nd_dask\.)?add_stats\b`?"), "`b2nd-dask stats --add PATH`"),
)


def as_commands(text: str, *paths: str | None) -> str:
    """Replace Python in a message by commands and options; the paths stay unchanged."""
    names = "|".join(map(re.escape, filter(None, paths)))
    parts = re.split(rf"(?<!\w)({names})(?!\w)", text) if names else [text]
    for python, shell in (*_SPELLINGS, *_options()):
        # each second part is a path
        parts[::2] = [python.sub(shell, part) for part in parts[::2]]
    return "".join(parts)


def _options() -> Iterator[tuple[re.Pattern[str], str]]:
    """Arguments of functions, and the options of the running command that take their values."""
    context = click.get_current_context(silent=True)
    options = {"cparams": "--codec, --level, --filter"}
    for each in context.command.params if context else ():
        if isinstance(each, click.Option) and each.name and not each.is_flag:
            options[each.name] = each.opts[0]
    for name, option in options.items():
        # a value follows its option after a space
        yield re.compile(rf"\b{name}=(?=[^\s,;)])"), f"{option} "
        yield re.compile(rf"\b{name}="), option


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
    from b2nd_dask.storage import TOGETHER, Location, Secrets, split_store

    text = str(error) or type(error).__name__
    if isinstance(error, OSError) and error.strerror and isinstance(error.filename, str):
        # leaves out the error number
        text = f"{error.filename}: {error.strerror}"
    text = text.replace(TOGETHER, "commands expand no patterns, give each path")
    text = as_commands(text, path, target)
    if "" in (path, target):
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
        # a label starts with that of its store
        named = named or each in text or store.label in text
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

    def __init__(self, storage_options: Mapping[str, Any] | None = None) -> None:
        # messages hide their values
        self._options = storage_options
        self.code = 0
        """Exit code of the command."""

    @contextmanager
    def noted(self, path: str) -> Iterator[None]:
        """Report an error of the block as an error of the path."""
        try:
            with reported({"path": path, "storage_options": self._options}):
                yield
        except click.ClickException as error:
            error.show()
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
        raise click.exceptions.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        # the flush at exit must not write to the broken pipe
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        raise click.exceptions.Exit(BROKEN_PIPE) from None
    except Exception as error:  # noqa: BLE001 - file systems have trees of their own
        named = (parameters.get(name) for name in ("path", "storage_options", "target"))
        raise click.ClickException(message_of(error, *named)) from None


#: Description of each verb, and the module here with its `VERB_command`. Help and completion read
#: only this table: modules that import dask take seconds.
VERBS = {
    "info": ("Describe frames and stores.", "contents"),
    "map": ("Draw the chunks of a frame.", "contents"),
    "stats": ("Show minimum, maximum, mean, from statistics or out of core.", "stats"),
    "verify": ("Verify frames by their checksums.", "upkeep"),
    "seal": ("Add checksums to a frame that has none.", "upkeep"),
    "convert": ("Convert zarr, HDF5 / NetCDF, npy to frames and back.", "copying"),
    "copy": ("Copy a frame or dataset, optionally with other compression.", "copying"),
    "rechunk": ("Copy a frame or dataset with other chunks.", "copying"),
    "compact": ("Free the space of superseded chunks.", "upkeep"),
    "staging": ("List or remove what interrupted writes have left.", "upkeep"),
    "plan": ("Estimate the cost of a read or a rechunk.", "plan"),
    "demo": ("Compute how much of the Earth is land, out of core.", "demo"),
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

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # prints help and version
        with reported({}):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        with reported({}), warnings.catch_warnings():
            # leaves out the source line of the warning
            warnings.showwarning = lambda message, *_, **__: click.echo(
                f"Warning: {safe(str(message))}", err=True
            )
            return super().invoke(ctx)


def _imported(verb: str) -> click.Command:
    require("cli", "rich")
    module = importlib.import_module(f"b2nd_dask.edges.cli.{VERBS[verb][1]}")
    _complete_package()
    command: click.Command = getattr(module, f"{verb}_command")
    return command


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
    commands={verb: click.Command(verb, short_help=what) for verb, (what, _) in VERBS.items()},
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
