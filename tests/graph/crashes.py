"""Writes that are killed, or get errors, at each of their system calls in turn.

Run this in its own process: it forks, and its children die.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import shutil
import signal
import traceback
from collections import Counter
from typing import TYPE_CHECKING, Any

import blosc2
import dask
import dask.array as da
import numpy as np
import xarray as xr

from b2nd_dask import compact, list_staging, open_b2nd, rechunk, remove_staging, to_b2nd
from b2nd_dask.frame.write.records import read_manifests, row_dtype, staged_records
from b2nd_dask.storage import Location, staging_for
from b2nd_dask.storage.write import local_names

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from b2nd_dask.storage import StagingInfo

OLD = np.random.default_rng(1).normal(size=(40, 30))
NEW = np.random.default_rng(2).normal(size=(40, 30))
OLD[:20, 15:] = 0
#: Calls that change something on the disk.
CHANGES = ["open", "pwrite", "ftruncate", "fsync", "link", "rename", "replace", "mkdir"]
CHANGES += ["unlink", "rmdir", "copy_file_range", "chmod"]
#: Bytes that a disk writes whole or not at all: memory pages and sectors are no smaller.
SECTOR = 512
WRITES = ("pwrite",)
RENAMES = ("link", "rename", "replace", "renameat2")


class Messages(logging.Handler):
    """Collects log messages."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


class Scenario:
    """One kind of write to one path."""

    def __init__(self, kind: str, contiguous: bool, folder: Path) -> None:
        self.kind, self.contiguous = kind, contiguous
        self.path, self.saved = folder / "frame.b2nd", folder / "saved"
        # "resume" alone is a new frame; other kinds of which it is a part are changes
        self.resume = kind.startswith("resume")
        self.old: np.ndarray | None = None if kind in ("new", "resume") else OLD
        self.new = OLD if kind == "compact" else NEW
        if "append" in kind:
            self.new = np.concatenate([OLD, NEW])
        if "region" in kind:
            self.new = OLD.copy()
            self.new[5:35, 10:] = NEW[5:35, 10:]
        if self.old is not None:
            # a resumed write cuts chunks, whose other elements stay
            chunks = (16, 15) if self.resume else (20, 15)
            to_b2nd(OLD, self.path, chunks=chunks, contiguous=contiguous)
            if self.resume and "unsealed" in kind:
                blosc2.open(str(self.path), mode="a")[0, 0] = OLD[0, 0]
            if kind == "compact":
                part = (slice(5, 25), slice(0, 30))
                to_b2nd(OLD[part], self.path, mode="r+", region=part)
            self.path.rename(self.saved)

    def is_named(self, error: OSError) -> bool:
        return str(self.path) in str(error)

    def reset(self) -> None:
        local_names.remove_path(self.path)
        remove_staging(self.path)
        if self.saved.is_dir():
            shutil.copytree(self.saved, self.path)
        elif self.saved.exists():
            shutil.copy2(self.saved, self.path)

    def write(self) -> None:
        x = da.from_array(NEW, chunks=(20, 30))
        how: dict[str, Any] = {"resume": self.resume, "fsync": "unsynced" not in self.kind}
        new: dict[str, Any] = {"chunks": (20, 15), "contiguous": self.contiguous}
        if self.kind == "compact":
            compact(self.path)
        elif "append" in self.kind:
            to_b2nd(x, self.path, mode="r+", append_axis=0, **how)
        elif "region" in self.kind:
            region = (slice(5, 35), slice(10, 30))
            to_b2nd(x[region], self.path, mode="r+", region=region, **how)
        else:
            mode = "w" if "overwrite" in self.kind else "w-"
            to_b2nd(x, self.path, mode=mode, **how, **new)

    def write_again(self) -> str:
        """Resume a killed write; return how much of it was reused."""
        areas = list_staging(self.path)
        nchunks = sum(map(self.staged, areas))
        said = Messages()
        logger = logging.getLogger("b2nd_dask")
        logger.addHandler(said)
        logger.setLevel(logging.INFO)
        try:
            self.write()
        finally:
            logger.removeHandler(said)
        assert not list_staging(self.path), "what was resumed left staging behind"
        reused, total = map(int, re.findall(r"(\d+) of (\d+) chunks are reused", said.texts[0])[0])
        if reused == total:
            return "resumed whole"
        # blocks of which all chunks were staged are not computed again; others are, whole
        assert reused >= nchunks - 2, (reused, nchunks)
        return "resumed"

    def staged(self, area: StagingInfo) -> int:
        """Count the chunks in a staging area."""
        where: dict[str, Any] = {"sparse": not self.contiguous, "replace": True, "header_len": 0}
        staging = staging_for(Location.of(self.path), **where, resume_key=area.key)
        manifests = read_manifests(staging).values()
        return len(staged_records(manifests, staging, row_dtype(), 1000).rows)

    def state(self) -> str:
        """Which frame is there; an error where it is neither."""
        if not self.path.exists() and self.old is not None:
            # without renameat2 it may be set aside; to give the write up puts it back
            assert any(info.path.endswith(".old") for info in list_staging(self.path))
            remove_staging(self.path)
        if not self.path.exists():
            assert self.old is None, "the old frame is gone"
            return "old"
        values = open_b2nd(self.path)[...]
        assert np.array_equal(values, blosc2.open(str(self.path))[...])
        if self.old is not None and np.array_equal(values, self.old):
            return "old"
        assert np.array_equal(values, self.new), "neither the old frame nor the new one"
        return "new"


class Rechunk(Scenario):
    """Through an intermediate frame, inside the staging area of the target."""

    def __init__(self, folder: Path) -> None:
        self.path, self.source = folder / "frame.b2nd", folder / "source.b2nd"
        values = np.random.default_rng(3).normal(size=(240, 100, 100))
        to_b2nd(values, self.source, chunks=(4, 100, 100), stats=False)

    def write(self) -> None:
        rechunk(self.source, self.path, chunks=(240, 10, 10), mode="w", max_mem="18MB")

    def is_named(self, error: OSError) -> bool:
        return super().is_named(error) or str(self.source) in str(error)


class Labelled(Scenario):
    """A dataset: a directory of frames, or one file of them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self) -> None:
        variables = {"a": ("x", np.arange(40.0)), "b": (("x", "y"), NEW)}
        to_b2nd(xr.Dataset(variables, {"x": np.arange(40)}), self.path, mode="w")


class Faults:
    """Counts system calls, and does something at one of them."""

    def __init__(self, moment: int, fault: str, *, exchange: bool) -> None:
        self.count, self.moment, self.fault, self.exchange = 0, moment, fault, exchange

    def install(self) -> None:
        for name in CHANGES:
            setattr(os, name, self.wrap(name, getattr(os, name)))
        # locks of network file systems may fail
        fcntl.flock = self.wrap("flock", fcntl.flock)
        if self.exchange:
            local_names.renameat2 = self.wrap("renameat2", local_names.renameat2)
        else:
            local_names.renameat2 = lambda *_: False

    def applies(self, name: str) -> bool:
        return {
            "kill": True,
            "ENOSPC": name in (*WRITES, "mkdir", "copy_file_range", "flock"),
            "EIO": True,
            # the call succeeds but raises an error: a lost response, or Ctrl-C at that moment
            "late": True,
            "interrupt": True,
            "short": name in WRITES,
            "fsync": name == "fsync",
            "rename": name in RENAMES,
        }[self.fault]

    def wrap(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **keywords: Any) -> Any:
            if not self.applies(name):
                return call(*arguments, **keywords)
            self.count += 1
            if self.count != self.moment:
                return call(*arguments, **keywords)
            if self.fault in ("late", "interrupt"):
                call(*arguments, **keywords)
                if self.fault == "interrupt":
                    raise KeyboardInterrupt
                raise self.error(errno.EIO, arguments)
            # cut short, as the system does where a disk gets full or a process is killed
            cut = name in WRITES and self.fault in ("kill", "short", "ENOSPC")
            done = call(*self.part(arguments), **keywords) if cut else None
            if self.fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.fault == "short":
                return done
            raise self.error({"ENOSPC": errno.ENOSPC}.get(self.fault, errno.EIO), arguments)

        return wrapped

    @staticmethod
    def error(code: int, arguments: tuple[Any, ...]) -> OSError:
        """As the system's, which name the paths that they were given, and no descriptors."""
        paths = [os.fspath(a) for a in arguments[:2] if isinstance(a, str | os.PathLike)]
        return OSError(code, os.strerror(code), *paths[:1])

    @staticmethod
    def part(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        fd, data, *rest = arguments
        return fd, data[: len(data) // 2 // SECTOR * SECTOR], *rest


def attempt(scenario: Scenario, faults: Faults) -> str:
    """Write in a child; gives how it ended."""
    child = os.fork()
    if child == 0:
        faults.install()
        code = 4
        try:
            scenario.write()
            code = 0 if faults.count >= faults.moment else 9
        except OSError as error:
            code = 3 if scenario.is_named(error) else 5
            if code == 5:
                traceback.print_exc()
        except KeyboardInterrupt:
            code = 3
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    ended = {-signal.SIGKILL: "killed", 0: "done", 3: "error", 4: "other error", 9: "over"}
    ended[5] = "other error, which does not say where"
    return ended[os.waitstatus_to_exitcode(status)]


def crash(kind: str, contiguous: bool, fault: str, folder: Path, exchange: bool) -> Counter[str]:
    """Inject a fault at each call in turn; count how the writes ended, and the states they left."""
    dask.config.set(scheduler="sync")
    outcomes: Counter[str] = Counter()
    scenario = Scenario(kind, contiguous, folder)
    moment = 0
    while True:
        moment += 1
        scenario.reset()
        ended = attempt(scenario, Faults(moment, fault, exchange=exchange))
        if ended == "over":
            return outcomes
        state = scenario.state()
        assert ended != "done" or state == "new" or kind == "compact", (moment, ended)
        # an error during the clean-up may leave files
        if ended == "error" and fault not in ("EIO", "late", "interrupt") and not scenario.resume:
            assert not list_staging(scenario.path), "a failure left staging behind"
        outcomes[f"{ended}, {state}"] += 1
        if scenario.resume and list_staging(scenario.path):
            outcomes[f"{scenario.write_again()}, {state}"] += 1
        elif state == "old":
            scenario.write()
        assert scenario.state() == ("old" if kind == "compact" else "new"), (moment, "again")
        remove_staging(scenario.path)
        left = {path.name for path in folder.iterdir()} - {"frame.b2nd", "saved"}
        assert not left, (moment, left)


def errors(scenario: Scenario, fault: str, every: int) -> Counter[str]:
    """Inject an error at one call in every `every`; count how the writes ended."""
    dask.config.set(scheduler="sync", num_workers=2)
    outcomes: Counter[str] = Counter()
    scenario.write()  # imports modules, so that no child has to
    moment = 1
    # any other outcome ends the loop: it may be that no call is left for a fault
    while (ended := attempt(scenario, Faults(moment, fault, exchange=True))) in ("error", "done"):
        outcomes[ended] += 1
        moment += every
    return outcomes + Counter({ended: 1})
