"""`to_b2nd`: a dask array as a new frame, or as a part of an existing one, by jobs that are run."""

from __future__ import annotations

import errno
import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import dask.array as da
from dask.base import compute as compute_together
from dask.base import tokenize
from dask.delayed import Delayed, delayed

from b2nd_dask.errors import level_of_caller
from b2nd_dask.frame.access import frame_at
from b2nd_dask.frame.members.writable import frame_to_change, target_of
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.frame.write.new_frame import FramePlan
from b2nd_dask.frame.write.transaction import Transaction, clean_up, give_up
from b2nd_dask.frame.write.update import open_for_update
from b2nd_dask.graph.read.from_b2nd import array_of, expressions, is_expression
from b2nd_dask.graph.read.sizes import own_or_auto
from b2nd_dask.graph.write.input_arrays import as_dask, as_elements, held_by
from b2nd_dask.graph.write.options import (
    NEW,
    STAGED_LAYOUT,
    WriteOptions,
    check_existing,
    dropped_metadata,
    new_plan,
)
from b2nd_dask.graph.write.regions import checked_axis, part_job, update_job
from b2nd_dask.graph.write.write_tasks import Job, WriteJob, log_reused, write_graphs
from b2nd_dask.lazy import lazy
from b2nd_dask.processes import unseen
from b2nd_dask.storage import Location, only_here

#: Elements, the path or URL of their frame, and their `WriteOptions`.
Write = tuple[Any, Any, Mapping[str, Any]]
#: Takes the path, and by their names the options of `to_b2nd` that differ from their defaults.
Writer = Callable[..., Any]
#: How to write an object of a package, which is not imported for it; None of what is not known.
_ADAPTERS: dict[str, Callable[[Any], Writer | None]] = {
    "xarray": lazy("b2nd_dask.edges.xarray.adapter", "of_xarray"),
    "zarr": lazy("b2nd_dask.edges.convert.inputs", "of_zarr"),
    "h5py": lazy("b2nd_dask.edges.convert.inputs", "of_h5py"),
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

    Each task computes, compresses and stages whole frame chunks; only records of a few bytes
    travel. The frame appears under its name when it is complete and on the disk: until then, and if
    anything fails, the old frame stays. The target may be the frame that is being read.

    Parameters
    ----------
    arr : dask.array.Array, dask_array.Array, numpy.ndarray, array-like or scalar
        Anything that `dask.array.asarray` accepts. NumPy arrays are not copied, unless `compute` is
        False; the file of a `numpy.memmap` is read block by block, in the tasks, which must see it.
        Arrays of zarr and datasets of h5py are read in blocks of their chunks, with dims and
        attributes; their groups become a directory (``.b2d``) or a file (``.b2z``) of frames.
        A `xarray.DataArray` keeps its labels and coordinates in its frame; a `xarray.Dataset` or
        `DataTree` becomes a directory or a file of frames, all or nothing.
    urlpath : str or os.PathLike
        Path of the new frame, or an fsspec URL.
    mode : {"w-", "w", "a", "r+", "stage"}
        ``"w-"`` makes a new frame and replaces nothing, ``"w"`` replaces a frame. ``"r+"`` changes
        an existing frame, at `region` or behind its end along `append_axis`. ``"a"`` appends too,
        but makes a new frame where there is none. Options of a new frame may then be given; they
        must match the existing one. Of a dataset ``"a"`` without `append_dim` adds its variables to
        those of a directory, and replaces those of the same names. ``"stage"`` stages a part of a
        frame that `create` has begun, at `region`, which is made of whole chunks; the frame appears
        by `commit`.
    chunks : int or tuple of int, optional
        Elements of a frame chunk along each axis. By default dask's largest block, halved along its
        longest axes until it has no more than 32 MiB; of 100 and more blocks below 1 MiB, as many
        neighbours as have that. Blocks that do not line up with chunks are rechunked, to blocks of
        about dask's ``array.chunk-size`` at most.
    blocks : int or tuple of int, optional
        Elements of a block along each axis; by default of up to 128 KiB, about the same part of a
        chunk along each axis, so that planes and series along any axis decode little.
    cparams : blosc2.CParams or dict, optional
        Codec, level, filters, split mode and dictionary. What a dict leaves out is Zstandard at
        level 1 behind a byte shuffle, else python-blosc2's default; a `CParams` says all of them.
        Codecs and filters also by name, as in ``{"codec": "lz4", "filters": ["bitshuffle"]}``.
    meta, vlmeta : mapping or "keep", optional
        Metadata: entries of `meta` keep their length in the file, those of `vlmeta` may change.
        ``"keep"`` copies those of the frame that `arr` was read from. Where they are left out and
        that frame has some, a warning says that they are dropped; ``{}`` drops them without one.
    contiguous : bool
        One file (True), or a directory with a file for each chunk.
    region : int, slice, Ellipsis, a tuple of these, mapping or "auto", optional
        Index of the array in an existing frame, as in ``frame[region] = arr``: slices of step 1
        inside the frame, and integers. A scalar or a smaller array is broadcast to the region, out
        of core. The other elements, the chunks, the compression and the metadata of the frame stay.
        Numbers that only lose precision in the frame's dtype are cast, such as floats to narrower
        floats. Integers without a dtype, alone or in lists, are cast if the frame's dtype can
        represent them. For objects of xarray also by dims, as in ``{"time": slice(0, 10)}``;
        ``"auto"``, also for single dims, finds labels where they are.
    append_axis : int, optional
        The axis along which the array is appended to an existing frame.
    caterva : bool
        Add the metalayer of Caterva, for readers from before b2nd. They see elements without a
        dtype.
    storage_options : mapping, optional
        For the fsspec filesystem of a URL.
    compute : bool
        False to get a `dask.delayed.Delayed` that writes when it is computed. If that fails, its
        staging area stays; see `list_staging` and `remove_staging`.
    resume : bool
        Keep the staging area when the write fails or is killed, and go on from there when the same
        call is made again: with the same target and arguments, and an array of the same name, by
        which dask tells data apart (arrays of random numbers need a seed, and `from_delayed` and
        `from_map` inputs that do not change under one name). Staged chunks are verified by their
        digests. The logger ``b2nd_dask`` says at level INFO how many are reused. A frame that this
        call has finished before is left as it is. An update is resumed only while the old elements
        of the chunks that it writes are unchanged. Once it has finished and its staging area is
        removed, the same call is another update: an append that is made again appends again. One
        that was killed or failed in between is finished by the same call, and appends once.
    fsync : bool
        Whether to wait until the frame is on the disk. Without that a new frame also appears whole
        or not at all whatever happens to processes; but a power cut within about half a minute may
        leave a damaged frame under the name, and none of what it replaced. A change in place
        (`region`, `append_axis`) may then be lost, but neither the frame nor its other elements: of
        two waits only the second is left out. Object stores wait for themselves.
    max_mem : int or str, optional
        Bytes of memory, or a text such as ``"512MB"``, that a new frame may take in all threads and
        processes together, beyond what they take while they are idle. Rechunks, transposes,
        reshapes and slices of frames then become passes, as `rechunk` has them, instead of a
        shuffle between tasks; functions of single blocks before and behind them keep the blocks
        that dask gave them. An error says where memory cannot be bounded. By default it is not.

    append_dim : str, optional
        For objects of xarray, the name of the dim along which they are appended.
    encoding : mapping, optional
        For objects of xarray, how variables are stored, by their names: ``chunks``, ``blocks``,
        ``cparams`` (``chunks`` and ``blocks`` also by dims, as in ``{"time": 24}``), and CF's
        ``scale_factor``, ``add_offset``, ``_FillValue``, ``dtype``, ``units``, ``calendar``. Text
        becomes bytes by the dtype ``"S1"``, in UTF-8 or as ``_Encoding`` says. Of a `DataTree` also
        by the paths of groups, as in ``{"/model": {"t": {...}}}``.
    stats : bool
        Keep statistics of each chunk in the new frame: least and greatest element, sum, and how
        many are NaN and not zero; see `Frame.stats`. Reductions and comparisons of the frame are
        then answered without reading chunks that the statistics decide. For numbers, bool and
        times. Changes of a frame keep its statistics whatever `stats` says, and `add_stats` adds
        them to a frame.

    Returns
    -------
    dask.array.Array, dask_array.Array or dask.delayed.Delayed
        The new frame, opened by `from_b2nd` as an array of the library of `arr`; or a Delayed that
        computes to its path or URL. With ``mode="stage"``, which makes no frame, the array that was
        staged. For objects of xarray one of the same kind, opened with dask arrays.

    Raises
    ------
    FileExistsError
        The target exists, and `mode` does not allow to replace it.
    ValueError
        Chunks have an unknown size, chunks or blocks do not fit, there are too many metadata
        entries, a block has another shape than the array promises, options contradict the existing
        frame, or `max_mem` is too small or cannot be kept.
    TypeError
        The dtype holds Python objects, or has no statistics and `stats` asks for them, metadata
        cannot be stored, an axis is no number, or a cast (of the array to the frame's dtype, of a
        block to the array's) would lose more than precision.
    OverflowError
        A number is too large for the float type that it is cast to, or a time for the unit.
    FileNotFoundError
        There is no frame to change, or no directory to write to.
    StaleFrameError
        The frame was replaced, or other software changed it, or another update wrote the same
        chunks, while this update was computed. Updates of disjoint chunks do not disturb each
        other: each is published on top of what others have published.
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
    """The options among arguments that differ from their defaults."""
    parameters = inspect.signature(to_b2nd).parameters
    return {
        name: arguments[name]
        for name, parameter in parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and arguments[name] is not parameter.default
    }


def write_array(arr: Any, urlpath: Any, *, compute: bool = True, **given: Any) -> Any:
    """Write elements, as `to_b2nd`; `given` are `WriteOptions`."""
    for name in ("append_dim", "encoding"):
        if name in given:
            raise ValueError(f"{name}= is for objects of xarray, which have names: leave it out")
    options = WriteOptions(**given)
    if options.mode == "stage":
        location = target_of(urlpath, options.storage_options)
        part = part_job(arr, location, options.region, snapshot=not compute)
        staged = part.graph()
        if not compute:
            return staged
        staged.compute()
        return _as_given(arr, part.elements)
    job, location = _job(arr, urlpath, options, snapshot=not compute)
    return _as_given(arr, run_job(job, location, compute=compute))


def _as_given(arr: Any, written: da.Array | Delayed) -> Any:
    """An array of the library that the given one is of."""
    is_array = isinstance(written, da.Array) and is_expression(held_by(arr))
    return expressions().expression_of(written) if is_array else written


def _job(arr: Any, urlpath: Any, options: WriteOptions, *, snapshot: bool) -> tuple[Job, Location]:
    """The job of a write, and the place of its frame; `snapshot` as for `from_numpy`."""
    old = None if options.mode in NEW else _existing_frame(urlpath, options)
    if old is not None:
        array = as_dask(as_elements(arr, old.dtype), named=options.resume, snapshot=snapshot)
        check_existing(old, array, options)
        return update_job(array, old, options), old.location
    location = target_of(urlpath, options.storage_options, contiguous=options.contiguous)
    array = as_dask(arr, named=options.resume, snapshot=snapshot)
    if options.append_axis is not None:
        checked_axis(options.append_axis, array.ndim)
    dropped = dropped_metadata(arr, array, options)
    if options.vlmeta is None and options.labels:
        options = replace(options, vlmeta=options.labels)
    plan = new_plan(array, options)
    new = new_frame(location, plan, array, options)
    whole = WriteJob(transaction=new, elements=array, origin=(0,) * array.ndim)
    job: Job = whole
    if options.max_mem is not None:
        # needs names of dask without which all else is written
        from b2nd_dask.graph.write.bounded import bounded_job

        job = bounded_job(whole, options.max_mem)
    return replace(job, dropped=dropped), location


def _existing_frame(urlpath: Any, options: WriteOptions) -> FrameReference | None:
    try:
        return open_for_update(frame_to_change(urlpath, options.storage_options))
    except FileNotFoundError:
        if options.mode == "r+":
            raise
        return None


def new_frame(
    location: Location, plan: FramePlan, source: object, options: WriteOptions
) -> Transaction:
    """Make the write of a new frame; raise OSError where the target cannot be written.

    `source`, an array by its name or a frame by its version, stands for the elements.
    """
    replaces, key = NEW.get(options.mode, False), None
    if options.resume:
        # what all runs of one write share, and no other write
        call = source, (0,) * plan.grid.ndim, plan, location.label, "w" if replaces else "w-"
        key = tokenize(STAGED_LAYOUT, *call)[:16]
    staging = plan.staging(location, replace=replaces, resume_key=key, fsync=options.fsync)
    return Transaction(plan, staging)


def write_together(writes: Iterable[Write]) -> None:
    """Write several arrays, of which what they share is computed once.

    Where one fails, nothing is left of those that were not published.
    """
    jobs = [_job(arr, to, WriteOptions(**given), snapshot=False)[0] for arr, to, given in writes]
    together = [job for job in jobs if isinstance(job, WriteJob)]
    others = [job.graph() for job in jobs if not isinstance(job, WriteJob)]
    try:
        compute_together(*write_graphs(together), *others)
    except BaseException:
        for job in jobs:
            give_up(job.staging)
        raise


def run_job(job: Job, location: Location, *, compute: bool) -> da.Array | Delayed:
    """Compute a job and open its frame, or return the Delayed that makes it."""
    if job.staging.resumable and job.transaction.is_published():
        # the job was killed when its frame was complete
        clean_up(job.staging)
        log_reused(job.staging, job.plan.grid.nchunks, job.plan.grid.nchunks)
        if not compute:
            done: Delayed = delayed(job.staging.label)
            return done
    else:
        written = job.graph()
        if not compute:
            _warn(job)
            return written
        _compute(job, written)
    frame = _opened(job, location)
    return array_of(frame, own_or_auto(frame.grid.nchunks))


def _warn(job: Job) -> None:
    if job.dropped:
        warnings.warn(job.dropped, UserWarning, stacklevel=level_of_caller())


def _compute(job: Job, written: Delayed) -> None:
    """Compute a job; leave no staging area behind, unless it can be resumed."""
    # raises before anything is computed; a staging area that was never prepared is not cleaned up.
    # A worker that is lost after it published has its tasks run again, on an area that is gone.
    with job.staging.prepared(), job.transaction.once():
        try:
            _warn(job)
            written.compute()
        except BaseException:
            if not job.staging.resumable:
                # an interrupt, too, must not leave the disk full
                give_up(job.staging)
            raise
    hint = only_here(job.staging.label)
    if hint and not job.transaction.is_published():
        clean_up(job.staging)
        raise FileNotFoundError(
            errno.ENOENT, f"another process wrote the frame{hint}", job.staging.label
        )


def _opened(job: Job, location: Location) -> FrameReference:
    """Open the frame that a job has written."""
    try:
        return frame_at(location)
    except FileNotFoundError as error:
        # the client's own staging area, in which nobody has staged anything
        clean_up(job.staging)
        advice = "the tasks have written the frame where this process does not see it"
        raise unseen(error, location.label, advice) from error
