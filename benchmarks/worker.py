"""A process for each contender, so that they do not share threads, caches and memory."""

from __future__ import annotations

import multiprocessing
import shutil
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from benchmarks import memory
from benchmarks.cases import CASES
from benchmarks.model import TARGET, Contender, Counted, Run, Scenario
from benchmarks.processes import INTERVAL, ProcessTree, kill_tree


class WorkerError(RuntimeError):
    """A contender failed; the message has its traceback."""

    @property
    def reason(self) -> str:
        """The last line of the traceback."""
        return str(self).strip().splitlines()[-1].strip()


class Sample(NamedTuple):
    """One run."""

    seconds: float
    cpu_seconds: float
    resident_peak: int
    written: int
    counts: Mapping[str, float]


@dataclass(frozen=True)
class Task:
    """The name of a contender for another process: its functions do not pickle."""

    case: str
    scenario: str
    contender: str
    quick: bool
    threads: int
    paths: Mapping[str, Path]
    all_processes: bool = False
    preload: Sequence[str] = ()


class Worker:
    """The process of a contender, as seen by its parent."""

    def __init__(self, task: Task) -> None:
        context = _context(task.preload)
        self.name = task.contender
        self._connection, theirs = context.Pipe()
        # no daemon, which may not start processes
        self._process = context.Process(target=_serve, args=(theirs, task))
        self._process.start()
        theirs.close()
        assert self._process.pid is not None
        self._pid = self._process.pid
        self._tree = ProcessTree(self._pid) if task.all_processes else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._connection.close()
        # the close of a cluster takes seconds
        self._process.join(60)
        if self._process.is_alive():
            kill_tree(self._pid)

    def resident_before(self) -> int:
        """Bytes resident after the imports, before the first run; waits for the process."""
        alone = int(self._receive())
        return self._tree.resident() if self._tree else alone

    def warm_up(self) -> tuple[Sample, Any]:
        """The first run, with the numbers by which its result is compared."""
        return self._measured("observe")

    def run(self) -> Sample:
        sample, _ = self._measured("run")
        return sample

    def _measured(self, what: str) -> tuple[Sample, Any]:
        if self._tree is None:
            return self._ask(what), self._receive()
        self._tree.forget_peak()
        cpu = self._tree.cpu_seconds()
        sample: Sample = self._ask(what)
        # the value of the process itself is exact
        peak = max(sample.resident_peak, self._tree.peak)
        cpu = self._tree.cpu_seconds() - cpu
        return sample._replace(resident_peak=peak, cpu_seconds=cpu), self._receive()

    def _ask(self, what: str) -> Any:
        try:
            self._connection.send(what)
        except ConnectionError:
            raise WorkerError(f"{self.name}: its process ended") from None
        return self._receive()

    def _receive(self) -> Any:
        while self._tree and not self._connection.poll(INTERVAL):
            self._tree.resident()
        try:
            succeeded, answer = self._connection.recv()
        except (EOFError, ConnectionError):
            raise WorkerError(f"{self.name}: its process ended") from None
        if not succeeded:
            raise WorkerError(f"{self.name}:\n{answer}")
        return answer


def _context(preload: Sequence[str]) -> Any:
    """The start method of processes: new ones, or forks of one that has imported some modules.

    A run has one such process, with the modules of its first scenario that preloads any.
    """
    if not preload:
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    return context


def _serve(connection: Connection, task: Task) -> None:
    try:
        scenario, contender = _find(task)
        if contender.memory_limit is not None:
            memory.limit(contender.memory_limit)
        run = contender.prepare(task.paths, task.threads)
        connection.send((True, memory.resident()))
        while True:
            request = connection.recv()
            sample, result = _timed(run)
            sample = sample._replace(written=_size(task.paths.get(TARGET)))
            connection.send((True, sample))
            observed = scenario.observe(result) if request == "observe" else None
            # else the result of this round would count in the memory of the next one
            del result
            _empty(task.paths.get(TARGET))
            connection.send((True, observed))
    except (EOFError, KeyboardInterrupt):
        return
    except Exception:  # noqa: BLE001 - whatever it is, the parent has to say it
        connection.send((False, traceback.format_exc()))


def _find(task: Task) -> tuple[Scenario, Contender]:
    scenarios = {one.name: one for one in CASES[task.case].scenarios(task.quick)}
    scenario = scenarios[task.scenario]
    contenders = {one.name: one for one in scenario.contenders}
    return scenario, contenders[task.contender]


def _timed(run: Run) -> tuple[Sample, Any]:
    memory.forget_peak()
    cpu, wall = time.process_time(), time.perf_counter()
    result = run()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    sample = Sample(wall, cpu, memory.peak_resident(), 0, {})
    if isinstance(result, Counted):
        return sample._replace(counts=result.counts()), result.result
    return sample, result


def _size(folder: Path | None) -> int:
    files = folder.rglob("*") if folder else ()
    return sum(path.stat().st_size for path in files if path.is_file())


def _empty(folder: Path | None) -> None:
    """Remove the files of a run: the system then drops their dirty pages."""
    for path in folder.iterdir() if folder else ():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
