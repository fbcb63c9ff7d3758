"""`to_b2nd`: write a dask array to a new frame, or to a region of an existing one."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from typing import Any

import dask.array as da
from dask.base import compute as compute_together
from dask.base import tokenize
from dask.delayed import Delayed, delayed

from b2nd_dask.errors import level_of_caller
from b2nd_dask.frame.access import frame_at
from b2nd_dask.frame.members.writable import frame_to_change, target_of
from b2nd_dask.frame.write.new_frame import FramePlan
from b2nd_dask.frame.write.transaction import Transaction
from b2nd_dask.frame.write.update import open_for_update
from b2nd_dask.graph.read.from_b2nd import array_of, expressions, is_expression
from b2nd_dask.graph.read.sizes import own_or_auto
from b2nd_dask.graph.write.input_arrays import as_dask, without_labels
from b2nd_dask.graph.write.options import (
    NEW,
    STAGED_LAYOUT,
    WriteOptions,
    dropped_metadata,
    new_plan,
)
from b2nd_dask.graph.write.parts import part_job
from b2nd_dask.graph.write.regions import checked_axis, update_job
from b2nd_dask.graph.write.write_tasks import Job, WriteJob, log_reused, opening, write_graphs
from b2nd_dask.lazy import lazy
from b2nd_dask.storage import Location, log_other_staging

#: Elements, the path or URL of their frame, and the options of `to_b2nd`.
Write = tuple[Any, Any, Mapping[str, Any]]
#: Takes the path and, as keywords, the options of `to_b2nd` that differ from their defaults.
Writer = Callable[..., Any]
#: Functions that return the writer of an object, None if unknown, by its package (not imported).
_ADAPTERS: dict[str, Callable[[Any], Writer | None]] = {
    "xarray": lazy("b2nd_dask.edges.xarray.adapter", "of_xarray"),
    "zarr": lazy("b2nd_dask.edges.convert.convert", "of_zarr"),
    "h5py": lazy("b2nd_dask.edges.convert.convert", "of_h5py"),
}


def to_b2nd(
    arr: Any,
    urlpath: Any,
    *,
    mode: str = "w-",
    chunks: Any = None,
    blocks: Any = None,
    cparams: Any = None,
    meta: Mapping[str, Any] | str | None = None,
    vlmeta: Mapping[str, Any] | str | None = None,
    contiguous: bool = True,
    region: Any = None,
    append_axis: int | None = None,
    caterva: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    compute: bool = True,
    resume: bool = False,
    fsync: bool = True,
    max_mem: int | float | str | None = None,
    append_dim: str | None = None,
    encoding: Mapping[Any, Mapping[str, Any]] | None = None,
    stats: bool = False,
) -> Any:
    """Write an array to a frame, in parallel and out of core; all or nothing.

    Each task computes, compresses and stages whole frame chunks; only records of a few bytes are
    sent. The frame appears when it is complete and on the disk. Until then, and after any failure,
    the old frame stays. The target may be the source frame itself.

    Parameters
    ----------
    arr : dask.array.Array, dask_array.Array, numpy.ndarray, array-like or scalar
        Anything that `dask.array.asarray` accepts. NumPy arrays are not copied, unless `compute` is
        False. The tasks read the file of a `numpy.memmap` block by block, and must have access.
        Arrays of zarr and datasets of h5py are read in blocks of their chunks, with dims and
        attributes; their groups become a directory (``.b2d``) or a file (``.b2z``) of frames.
        A `xarray.DataArray` keeps its labels and coordinates in its frame; a `xarray.Dataset` or
        `DataTree` becomes a directory or a file of frames, all or nothing.
    urlpath : str or os.PathLike
        Path of the new frame, or an fsspec URL.
    mode : {"w-", "w", "a", "r+", "stage"}
        ``"w-"`` makes a new frame and replaces nothing, ``"w"`` replaces a frame. ``"r+"`` changes
        an existing frame, at `region` or behind its end along `append_axis`. ``"a"`` appends, or
        makes a new frame if there is none; the options of a new frame are then allowed, but must
        match an existing frame. For a dataset, ``"a"`` without `append_dim` adds its variables to
        a directory, and replaces variables of the same names. ``"stage"`` stages a part of a frame
        started by `create`: `region`, made of whole chunks. The frame appears by
        `commit`.
    chunks : int, text, tuple or mapping by axis, optional
        Elements of a frame chunk along each axis; -1 is the whole axis. The default is dask's
        largest block, halved along its longest axes to at most 32 MiB. 100 or more blocks below
        1 MiB are grouped to chunks of about 1 MiB. Blocks that do not align with chunks are
        rechunked, to blocks of at most about dask's ``array.chunk-size``.
    blocks : int or tuple of int, optional
        Elements of a block along each axis; -1 is the whole chunk's. The default is at most
        128 KiB, about the same fraction of a chunk along each axis, so that planes and series along
        any axis decode little.
    cparams : blosc2.CParams or dict, optional
        Codec, level, filters, split mode and dictionary. The defaults of a dict are Zstandard at
        level 1 after a byte shuffle, else python-blosc2's; a `CParams` has no defaults. Codecs and
        filters also by name, as in ``{"codec": "lz4", "filters": ["bitshuffle"]}``.
    meta, vlmeta : mapping or "keep", optional
        Metadata: entries of `meta` keep their length in the file, those of `vlmeta` may change it.
        ``"keep"`` copies the metadata of the frame that `arr` reads. Without a value they are
        dropped, with a warning if that frame has some; ``{}`` drops them without a warning.
    contiguous : bool
        One file (True), or a directory with a file for each chunk.
    region : int, slice, Ellipsis, a tuple of these, mapping or "auto", optional
        Index of the array in an existing frame, as in ``frame[region] = arr``: slices of step 1
        inside the frame, and integers. A scalar or a smaller array is broadcast to the region, out
        of core. Other elements, chunks, compression and metadata of the frame stay unchanged.
        Numbers that only lose precision in the frame's dtype are cast, such as floats to narrower
        floats. Integers without a dtype, alone or in lists, are cast if the frame's dtype can
        represent them. For objects of xarray also a mapping by dims, as in
        ``{"time": slice(0, 10)}``; ``"auto"``, also for single dims, finds the region by labels.
    append_axis : int, optional
        The axis along which the array is appended to an existing frame.
    caterva : bool
        Add the metalayer of Caterva, for readers older than b2nd. They see elements without a
        dtype.
    storage_options : mapping, optional
        For the fsspec filesystem of a URL.
    compute : bool
        False returns a `dask.delayed.Delayed` that writes when it is computed. If it fails, its
        staging area stays; see `list_staging` and `remove_staging`.
    resume : bool
        Keep the staging area when the write fails or is killed, and continue from it when the call
        is repeated: with the same target, arguments and dask name of the array. Dask's names
        identify data, so random arrays need a seed, and inputs of `from_delayed` and `from_map`
        must not change under one name. Staged chunks are verified by their digests. The logger
        ``b2nd_dask`` reports at level INFO how many are reused. A frame that the same call has
        finished stays as it is, with its later changes. An update is resumed only while the old
        elements in its chunks are unchanged. A finished update, whose staging area is removed, is
        not resumed: a repeated append appends again. The same call completes an append that was
        killed or failed after its publication; it appends once.
    fsync : bool
        Whether to wait until the frame is on the disk. Without the wait a new frame still appears
        complete or not at all if processes die. But a power cut within about half a minute may
        leave a damaged frame, and the frame that it replaced is lost. A change in place (`region`,
        `append_axis`) may be lost, but neither the frame nor its other elements: only the second of
        two waits is omitted. Object stores and appends to a dataset always wait.
    max_mem : int or str, optional
        Bytes of memory, or a text such as ``"512MB"``, for a new frame in all threads and
        processes, beyond their memory while idle. An append has no limit. Rechunks, transposes,
        reshapes and slices of frames then become passes, as in `rechunk`, instead of a shuffle
        between tasks. Functions of single blocks before and after them keep dask's blocks. An error
        names a step whose memory cannot be bounded. The default is no limit.

    append_dim : str, optional
        For objects of xarray: the name of the dim along which they are appended.
    encoding : mapping, optional
        For objects of xarray: the storage of variables, by their names: ``chunks``, ``blocks``,
        ``cparams`` (``chunks`` and ``blocks`` also by dims, as in ``{"time": 24}``), and CF's
        ``scale_factor``, ``add_offset``, ``_FillValue``, ``dtype``, ``units``, ``calendar``. The
        dtype ``"S1"`` stores text as bytes, in UTF-8 or in ``_Encoding``. For a `DataTree` also by
        the paths of groups, as in ``{"/model": {"t": {...}}}``.
    stats : bool
        Keep statistics of each chunk in the new frame: minimum, maximum, sum, and the numbers of
        NaN and of nonzero elements; see `Frame.stats`. Reductions and comparisons of the frame then
        skip chunks that the statistics decide. For numbers, bool and times. A change of a frame
        keeps its statistics; `add_stats` adds statistics to a frame without them.

    Returns
    -------
    dask.array.Array, dask_array.Array or dask.delayed.Delayed
        The new frame, opened by `from_b2nd` as an array of the library of `arr`; or a Delayed that
        computes to its path or URL. With ``mode="stage"``, which makes no frame, the staged array.
        For objects of xarray an object of the same kind, opened with dask arrays.

    Raises
    ------
    FileExistsError
        The target exists, and `mode` does not replace it.
    ValueError
        Chunks have an unknown size, chunks or blocks do not fit, there are too many metadata
        entries, a block has another shape than the array says, options contradict the existing
        frame, or `max_mem` is too small or cannot be kept.
    TypeError
        The dtype holds Python objects, or `stats` is set for a dtype without statistics, metadata
        cannot be stored, an axis is no number, or a cast (of the array to the frame's dtype, of a
        block to the array's) would lose more than precision.
    OverflowError
        A number is too large for the target's float type, or a time for its unit.
    FileNotFoundError
        There is no frame to change, or no directory to write to.
    StaleFrameError
        During the computation of this update the frame was replaced, other software changed it, or
        another update wrote the same chunks. Updates of disjoint chunks do not conflict: each
        builds on the published updates.
    UnsupportedFrameError
        A codec or filter needs the array's shape, or an old frame cannot be changed in place.
    OSError
        The store failed, for instance because it is full.

    Examples
    --------
    >>> import tempfile, pathlib, dask.array as da
    >>> path = pathlib.Path(tempfile.mkdtemp(), "ones.b2nd")
    >>> x = to_b2nd(da.ones((100, 100), chunks=(50, 50)) * 2, path)
    >>> x.sum().compute()
    np.float64(20000.0)

    As ``frame[10:20] = 0``; returns the changed frame:

    >>> to_b2nd(0, path, mode="r+", region=slice(10, 20)).sum().compute()
    np.float64(18000.0)
    """
    given = _given(locals())
    adapter = _ADAPTERS.get(type(arr).__module__.partition(".")[0])
    write = None if adapter is None else adapter(arr)
    return write_array(arr, urlpath, **given) if write is None else write(urlpath, **given)


def _given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The options among the arguments that differ from their defaults."""
    parameters = inspect.signature(to_b2nd).parameters
    return {
        name: arguments[name]
        for name, parameter in parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and arguments[name] is not parameter.default
    }


def write_array(arr: Any, urlpath: Any, **given: Any) -> Any:
    """Write elements as `to_b2nd` does; `given` are fields of `WriteOptions`."""
    for name in ("append_dim", "encoding"):
        if name in given:
            raise ValueError(f"{name}= is for objects of xarray, which have names: omit it")
    options = WriteOptions(**given)
    if options.mode == "stage":
        location = target_of(urlpath, options.storage_options)
        part = part_job(arr, location, options)
        staged = part.graph()
        if not options.compute:
            return staged
        staged.compute()
        return _in_library_of(arr, part.elements)
    return _in_library_of(arr, run_job(*_job(arr, urlpath, options), compute=options.compute))


def _in_library_of(arr: Any, written: da.Array | Delayed) -> Any:
    """Convert the written array to the array library of the argument."""
    is_array = isinstance(written, da.Array) and is_expression(without_labels(arr))
    return expressions().expression_of(written) if is_array else written


def _job(arr: Any, urlpath: Any, options: WriteOptions) -> tuple[Job, Location]:
    """The job of a write, and the location of its frame."""
    old = None
    if options.mode not in NEW:
        try:
            old = open_for_update(frame_to_change(urlpath, options.storage_options))
        except FileNotFoundError:
            if options.mode == "r+":
                raise
    if old is not None:
        return update_job(arr, old, options), old.location
    location = target_of(urlpath, options.storage_options, contiguous=options.contiguous)
    array = as_dask(arr, named=options.resume, snapshot=not options.compute)
    if options.append_axis is not None:
        checked_axis(options.append_axis, array.ndim)
    dropped = dropped_metadata(arr, array, options)
    if options.vlmeta is None and options.labels:
        options = replace(options, vlmeta=options.labels)
    plan = new_plan(array, options)
    new = new_frame(location, plan, array, options)
    groups = options.max_mem is None
    whole = WriteJob(new, opening(new), array, (0,) * array.ndim, groups=groups)
    job: Job = whole
    if options.max_mem is not None:
        # imported here: it needs names of dask that other writes do not need
        from b2nd_dask.graph.write.bounded import bounded_job

        job = bounded_job(whole, options.max_mem)
    return replace(job, dropped=dropped), location


def new_frame(
    location: Location, plan: FramePlan, source: object, options: WriteOptions
) -> Transaction:
    """Make the write of a new frame; raise OSError if the target cannot be written.

    `source` identifies the elements: an array by its name, or a frame by its version.
    """
    replaces, key = NEW.get(options.mode, False), None
    if options.resume:
        # shared by all runs of one write, and by no other write
        call = source, (0,) * plan.grid.ndim, plan, location.label, "w" if replaces else "w-"
        key = tokenize(STAGED_LAYOUT, *call)[:16]
        if isinstance(source, da.Array) and options.append_axis is not None:
            # if this run is killed after its publication, the next one appends the same array
            key = options.change_key(source, location.label) + key[:8]
    staging = plan.staging(location, replace=replaces, resume_key=key, fsync=options.fsync)
    if options.compute and not location.is_url:
        # changes of one frame by several processes are usual
        log_other_staging(location, staging.key)
    return Transaction(plan, staging, is_delayed=not options.compute)


def write_together(writes: Iterable[Write]) -> None:
    """Write several arrays; compute what they share once.

    If one fails, the staging areas of all frames that are not published are removed.
    """
    jobs = [_job(arr, to, WriteOptions(**given))[0] for arr, to, given in writes]
    together = [job for job in jobs if isinstance(job, WriteJob)]
    others = [job.graph() for job in jobs if not isinstance(job, WriteJob)]
    with ExitStack() as areas:
        for job in jobs:
            areas.enter_context(job.transaction.staging.prepared())
        compute_together(*write_graphs(together), *others)


def run_job(job: Job, location: Location, *, compute: bool) -> da.Array | Delayed:
    """Compute a job and open its frame, or return its Delayed."""
    transaction, staging = job.transaction, job.transaction.staging
    if staging.resumable and transaction.is_published():
        # an earlier run was killed after it published the frame
        staging.clean_up()
        log_reused(staging, transaction.plan.grid.nchunks, transaction.plan.grid.nchunks)
        if not compute:
            done: Delayed = delayed(staging.label)
            return done
    else:
        written = job.graph()
        # if a worker is lost after the commit, dask repeats its tasks, without a staging area
        with transaction.once(), staging.prepared() if compute else nullcontext():
            if job.dropped:
                warnings.warn(job.dropped, UserWarning, stacklevel=level_of_caller())
            if not compute:
                return written
            written.compute()
    frame = frame_at(location)
    return array_of(frame, own_or_auto(frame.grid.nchunks))
