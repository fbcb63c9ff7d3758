"""Time, memory and requests of a run, by closed formulas.

A run is a chain: the client builds and submits the graph, workers open the frame once each, tasks
go through the slots of the workers while the scheduler, one thread, serves them all; a write ends
with a tree of merges and one commit. The slowest of what runs side by side counts. There is no
chance in it: stragglers, failures and other users of the network come on top.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from b2nd_dask.format.metalayers import MAX_CHUNKS
from b2nd_dask.frame.open.opening import PART_NBYTES
from b2nd_dask.graph.write.write_tasks import FAN_IN
from b2nd_dask.storage.read.connection import requests_at_once
from b2nd_dask.storage.read.prefetch import MAX_MERGED
from b2nd_dask.storage.read.remote import RemoteReader
from b2nd_dask.storage.read.traffic import slots_of
from b2nd_dask.storage.write.object_staging import ObjectStaging
from b2nd_dask.storage.write.object_store import CONCURRENCY as COPIES
from b2nd_dask.storage.write.s3_join import Limits
from benchmarks.scale.costs import Cluster, Costs, Store, Workload

#: Bytes that a task stages at a time.
STAGED = ObjectStaging.batch_nbytes
#: Bytes of a staged object that a store joins by itself.
MIN_PART = Limits().min_part
#: Copies of a block that `x * 2 + 1` holds.
COPIES_OF_BLOCK = 3
#: Of dask: partial results that an aggregation takes.
SPLIT_EVERY = 4
#: Bytes a second between two workers, on a network of 10 Gbit.
NETWORK = 1e9


@dataclass(frozen=True)
class Prediction:
    seconds: float
    steps: Mapping[str, float]
    """Seconds of each step; those that begin with `tasks` run at the same time."""
    tasks: int
    requests: float
    client_nbytes: float
    scheduler_nbytes: float
    worker_nbytes: float
    """Of the worker that needs most; of one that does not commit, `tasks_nbytes`."""
    tasks_nbytes: float
    limits: list[str] = field(default_factory=list)
    """What cannot be done at this size."""


def predict(work: Workload, cluster: Cluster, costs: Costs, store: Store | None) -> Prediction:
    """Predict a run; without a store, files are in the page cache of the machine."""
    tasks = _tasks(work)
    requests = _requests(work, cluster, costs, store) if store else 0.0
    opening = _opening(work, costs, store)
    slot = _slot_seconds(work, cluster, costs, store)
    client_task = costs.write_graph_task if work.writes else costs.client_task
    graph_nbytes = costs.write_graph_nbytes if work.writes else costs.client_task_nbytes
    merge, commit = _ending(work, costs, store) if work.writes else (0.0, 0.0)
    steps = {
        "client: open, graph, submit": opening + tasks * client_task,
        "scheduler: expand and optimize": 0.0 if work.writes else tasks * costs.graph_task,
        "workers: open the frame": opening * min(cluster.slowdown, cluster.workers),
        "tasks: workers": math.ceil(work.blocks / cluster.slots) * slot,
        "tasks: scheduler": tasks * costs.scheduler_task,
        "tasks: rate of requests": requests / store.requests if store else 0.0,
        "merge the records": merge,
        "commit": commit,
    }
    beside = [name for name in steps if name.startswith("tasks:")]
    seconds = sum(steps[name] for name in steps if name not in beside)
    seconds += max(steps[name] for name in beside)
    tasks_nbytes = _worker_nbytes(work, cluster, costs)
    ending_nbytes = work.chunks * costs.commit_nbytes if work.writes else 0.0
    prediction = Prediction(
        seconds,
        steps,
        tasks,
        requests,
        costs.process_nbytes + work.chunks * costs.index_nbytes + tasks * graph_nbytes,
        costs.process_nbytes + tasks * costs.scheduler_task_nbytes,
        max(tasks_nbytes, costs.process_nbytes + ending_nbytes),
        tasks_nbytes,
    )
    prediction.limits.extend(_limits(work, cluster, prediction, store))
    return prediction


def _tasks(work: Workload) -> int:
    """One for each block, and the tree above them."""
    fan_in = FAN_IN if work.writes else SPLIT_EVERY
    tasks, level = work.blocks, work.blocks
    while level > 1:
        level = -(-level // fan_in)
        tasks += level
    return tasks + 2 if work.writes else tasks


def _opening(work: Workload, costs: Costs, store: Store | None) -> float:
    """Header, then index and checksums, in steps of one request each where they are long."""
    seconds = work.chunks * costs.open_chunk
    if store is None:
        return seconds
    nbytes = work.chunks * costs.index_file_nbytes
    return seconds + (2 + nbytes // PART_NBYTES) * store.latency + nbytes / store.connection


def _opening_requests(work: Workload, costs: Costs) -> float:
    return 2 + work.chunks * costs.index_file_nbytes // PART_NBYTES


def _slot_seconds(work: Workload, cluster: Cluster, costs: Costs, store: Store | None) -> float:
    """Of one block's task in its thread."""
    chunks = work.chunks_of_task
    computing = costs.worker_task + work.task_nbytes * costs.decode + chunks * costs.read_chunk
    if work.writes:
        computing += work.task_nbytes * costs.encode + chunks * costs.write_chunk
    computing *= cluster.slowdown
    if store is None:
        return computing
    shared = Store(store.latency, store.connection, store.process / cluster.threads)
    nbytes = work.task_stored_nbytes
    batches = max(1, math.ceil(nbytes / RemoteReader.batch_nbytes))
    most = requests_at_once() / slots_of(MAX_MERGED, requests_at_once())
    at_once = min(most, _reads_of_task(work) / batches)
    waiting = batches * shared.fetch(nbytes / batches, at_once)
    if work.writes:
        objects = _objects_of_task(work)
        # each object: put, then look whether the staging area is still there
        waiting += objects * (shared.fetch(nbytes / objects) + store.latency)
    return computing + waiting


def _reads_of_task(work: Workload) -> int:
    """Requests of a task: one for neighbouring whole chunks."""
    together = max(1, MAX_MERGED * work.ratio // work.chunk_nbytes)
    return math.ceil(work.chunks_of_task / together)


def _objects_of_task(work: Workload) -> int:
    return max(1, math.ceil(work.task_stored_nbytes / STAGED))


def _requests(work: Workload, cluster: Cluster, costs: Costs, store: Store) -> float:
    opening = (1 + cluster.workers) * _opening_requests(work, costs)
    reading = work.blocks * _reads_of_task(work)
    if not work.writes:
        return opening + reading
    objects = work.blocks * _objects_of_task(work)
    copies, _ = _join(objects, work.task_stored_nbytes / _objects_of_task(work), store)
    # each object is put, its area looked for, copied or fetched, removed
    return opening + reading + 3 * objects + max(objects, copies)


def _join(objects: int, nbytes: float, store: Store) -> tuple[int, float]:
    """Copies inside the store, and objects that are too small and pass through the client."""
    if nbytes < MIN_PART:
        return 0, objects
    if objects <= store.max_parts:
        return objects, 0
    group = min(store.max_parts, int(store.max_part // nbytes))
    return objects + math.ceil(objects / group), 0


def _ending(work: Workload, costs: Costs, store: Store | None) -> tuple[float, float]:
    """Seconds of the merges and of the commit."""
    nbytes = work.chunks * costs.record_nbytes
    merge, level = 0.0, work.blocks
    while level > 1:
        level = -(-level // FAN_IN)
        # tables of one level are merged side by side, each by one worker that fetches them
        rows = work.chunks / level
        merge += rows * costs.merge_chunk + nbytes / level / NETWORK
    commit = work.chunks * costs.commit_chunk
    if store is None:
        return merge, commit
    objects = work.blocks * _objects_of_task(work)
    size = work.task_stored_nbytes / _objects_of_task(work)
    copies, collected = _join(objects, size, store)
    one = store.latency + size / store.copy
    commit += copies / COPIES * one
    commit += 2 * collected * size / store.connection
    commit += objects / COPIES * store.latency
    commit += work.chunks * costs.index_file_nbytes / store.connection
    return merge, commit


def _worker_nbytes(work: Workload, cluster: Cluster, costs: Costs) -> float:
    block = work.chunk_nbytes + min(work.task_stored_nbytes, 2 * STAGED)
    if work.writes:
        block = COPIES_OF_BLOCK * work.task_nbytes + 2 * min(work.task_stored_nbytes, STAGED)
    return costs.process_nbytes + work.chunks * costs.index_nbytes + cluster.threads * block


def _limits(
    work: Workload, cluster: Cluster, prediction: Prediction, store: Store | None
) -> list[str]:
    found = []
    if work.chunks > MAX_CHUNKS:
        found.append(f"an index holds {MAX_CHUNKS:,} chunks")
    if prediction.tasks_nbytes > cluster.memory:
        found.append("the opened frame and a task need more than a worker has")
    elif prediction.worker_nbytes > cluster.memory:
        found.append("the commit needs more memory than a worker has")
    if store and work.writes:
        objects = work.blocks * _objects_of_task(work)
        size = work.task_stored_nbytes / _objects_of_task(work)
        if work.stored_nbytes > store.max_object:
            found.append(f"the store holds objects of {store.max_object >> 40} TiB")
        if size < MIN_PART:
            found.append("staged objects are too small to be joined by the store")
        elif math.ceil(objects / max(1, store.max_part // size)) > store.max_parts:
            found.append("more parts than the store joins")
    return found
