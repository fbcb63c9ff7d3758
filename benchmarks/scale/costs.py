"""What single steps cost: measured on a machine, and assumed of a store and a cluster."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

#: Those that were measured for NOTE.md.
MEASURED = Path(__file__).parent / "costs.json"


@dataclass(frozen=True)
class Costs:
    """Measured; seconds are CPU seconds of one core unless said otherwise, sizes are bytes."""

    client_task: float
    """Seconds of the client for each task: dask sends layers, which the scheduler expands."""
    write_graph_task: float
    """Seconds of the client for each task of a write, whose graph the client expands."""
    write_graph_nbytes: float
    """Of that graph for each task, as it is sent."""
    graph_task: float
    """Seconds of the scheduler for each task before the first one starts: to expand and to
    optimize the graph."""
    scheduler_task: float
    """Seconds of the scheduler for each task while they run."""
    worker_task: float
    """Seconds of a worker process for each task, beside what the task does."""
    client_task_nbytes: float
    scheduler_task_nbytes: float
    process_nbytes: float
    """Of a worker that has imported everything and done nothing."""
    decode: float
    """Seconds for each byte of elements, decoded and reduced."""
    encode: float
    """Seconds for each byte of elements, computed by `x * 2 + 1` and compressed."""
    read_chunk: float
    """Seconds for each chunk that is read, beside its bytes."""
    write_chunk: float
    """Seconds for each chunk that is written, beside its bytes."""
    index_file_nbytes: float
    """Of index and checksums in the file, for each stored chunk."""
    index_nbytes: float
    """Of an opened frame in memory, for each chunk."""
    open_chunk: float
    """Seconds for each chunk to open a frame."""
    record_nbytes: float
    """Of a chunk's record that travels from the write to the commit."""
    merge_chunk: float
    """Seconds for each record and level of the merge tree, with its transfer."""
    commit_chunk: float
    """Seconds of the commit for each chunk, without the join of the data."""
    commit_nbytes: float
    """Memory of the commit for each chunk."""

    @classmethod
    def load(cls, path: Path = MEASURED) -> Self:
        return cls(**json.loads(path.read_text()))

    def save(self, path: Path = MEASURED) -> None:
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")


@dataclass(frozen=True)
class Store:
    """An object store, as its users measure it: S3 in the same region by default."""

    latency: float = 0.03
    """Seconds until the first byte of a response."""
    connection: float = 80e6
    """Bytes a second of one connection."""
    process: float = 600e6
    """Bytes a second of all connections of a process."""
    copy: float = 250e6
    """Bytes a second of one copy inside the store."""
    requests: float = 5500
    """Reads a second of one prefix, from all clients; more are answered with errors."""
    max_parts: int = 10_000
    max_part: int = 5 << 30
    max_object: int = 5 << 40

    def fetch(self, nbytes: float, at_once: float = 1) -> float:
        """Seconds to fetch or put so many bytes by requests that run at the same time."""
        bandwidth = min(at_once * self.connection, self.process)
        return self.latency + nbytes / bandwidth


@dataclass(frozen=True)
class Cluster:
    workers: int
    threads: int = 1
    """Of each worker process."""
    cores: int | None = None
    """Of all machines together, where processes share them; one for each thread otherwise."""
    memory: int = 8 << 30
    """Bytes of a worker process."""

    @property
    def slots(self) -> int:
        return self.workers * self.threads

    @property
    def slowdown(self) -> float:
        """How much longer computing takes where threads outnumber the cores."""
        return max(1.0, self.slots / (self.cores or self.slots))


@dataclass(frozen=True)
class Workload:
    """A frame, and how it is read in blocks of whole chunks."""

    chunks: int
    chunk_nbytes: float
    """Of elements."""
    ratio: float
    """How many times smaller a chunk is stored."""
    chunks_of_task: int
    writes: bool = False
    """Whether `x * 2 + 1` is written to a new frame; a sum otherwise."""

    @property
    def nbytes(self) -> float:
        return self.chunks * self.chunk_nbytes

    @property
    def stored_nbytes(self) -> float:
        return self.nbytes / self.ratio

    @property
    def blocks(self) -> int:
        return -(-self.chunks // self.chunks_of_task)

    @property
    def task_nbytes(self) -> float:
        return self.chunks_of_task * self.chunk_nbytes

    @property
    def task_stored_nbytes(self) -> float:
        return self.task_nbytes / self.ratio
