"""Options of a write: their checks, the plan of the new frame, and its metadata."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import dask.array as da
from dask.base import tokenize

from b2nd_dask.errors import B2ndError
from b2nd_dask.frame.array import Frame, reference_of
from b2nd_dask.frame.joined import JoinedReference
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.frame.write.new_frame import FramePlan, pack_entries, plan_frame
from b2nd_dask.graph import _dask_compat
from b2nd_dask.graph.read.blocks import readings
from b2nd_dask.graph.write.chunk_sizes import (
    broadcast_sizes,
    checked_sizes,
    default_shape,
    is_fixed,
    resolved_shape,
)
from b2nd_dask.graph.write.input_arrays import is_labelled

#: Modes of a new frame, and whether each may replace an existing one.
NEW = {"w-": False, "w": True}
_MODES = (*NEW, "a", "r+", "stage")
#: Part of the key of a resumable write. Change it with the contents or layout of the staging area,
#: so that no version resumes what another version has staged.
STAGED_LAYOUT = 4
#: Number of metadata names that a warning lists.
_SHOWN = 5


def check_mode(mode: Any, known: Collection[str] = NEW) -> None:
    """Raise ValueError if a function does not have a mode."""
    if mode not in known:
        raise ValueError(f"mode={mode!r}; known are {', '.join(map(repr, known))}")


@dataclass(frozen=True, eq=False, kw_only=True)
class WriteOptions:
    """Options of the write of one array: those of `to_b2nd`, and `labels` and `entries`."""

    mode: str = "w-"
    chunks: Any = None
    blocks: Any = None
    cparams: Any = None
    meta: Mapping[str, Any] | str | None = None
    vlmeta: Mapping[str, Any] | str | None = None
    contiguous: bool = True
    caterva: bool = False
    stats: bool = False
    region: Any = None
    append_axis: int | None = None
    storage_options: Mapping[str, Any] | None = None
    resume: bool = False
    fsync: bool = True
    max_mem: int | float | str | None = None
    compute: bool = True
    labels: Mapping[str, Any] | None = None
    """Default of `vlmeta` for a new frame."""
    entries: Callable[[FrameReference], Mapping[str, Any]] | None = None
    """Returns the entries of vlmeta that change together with the given frame."""

    def change_key(self, array: da.Array, label: str) -> str:
        """First half of the keys of all runs of a change; independent of the frame's content."""
        return tokenize(STAGED_LAYOUT, array, (self.region, self.append_axis), label)[:8]

    @property
    def given(self) -> list[str]:
        """Names of the given options of a new frame, without the booleans."""
        names = ("chunks", "blocks", "cparams", "meta", "vlmeta")
        return [name for name in names if getattr(self, name) is not None]

    def __post_init__(self) -> None:
        """Check that the options do not contradict each other."""
        check_mode(self.mode, _MODES)
        if self.region is not None and self.append_axis is not None:
            raise ValueError("give region= or append_axis=, not both")
        if self.append_axis is not None:
            try:
                operator.index(self.append_axis)
            except TypeError:
                raise TypeError(
                    f"append_axis={self.append_axis!r}: give the number of an axis"
                ) from None
        if self.mode not in NEW:
            self._check_change()
        elif self.region is not None or self.append_axis is not None:
            raise ValueError(
                f'mode={self.mode!r} makes a new frame; region= goes with mode="r+", '
                'append_axis= with "r+" or "a"'
            )

    def _check_change(self) -> None:
        """Check the options of a change of an existing frame."""
        mode = self.mode
        if mode == "stage" and self.region is None:
            raise ValueError('mode="stage" stages a part of a frame: pass its region=')
        if self.region is None and self.append_axis is None:
            ways = "region= or append_axis=" if mode == "r+" else "append_axis="
            raise ValueError(f"mode={mode!r} changes a frame: pass {ways}")
        if mode == "a" and self.region is not None:
            raise ValueError('region= changes an existing frame: pass mode="r+"')
        if mode != "a" and self.given:
            raise ValueError(
                f"mode={mode!r} does not change chunks, compression and metadata of the frame: "
                f"omit {', '.join(f'{name}=' for name in self.given)}"
            )
        if self.max_mem is not None and mode != "a":
            raise ValueError(f"max_mem= is for new frames, not for mode={mode!r}: omit it")
        part = 'a part (mode="stage")'
        if mode == "stage" and self.resume:
            raise ValueError(f"resume=True: {part} is staged again as a whole; omit resume=")
        if mode == "stage" and self.stats:
            raise ValueError("stats=True: omit it here, and pass it to create(..., stats=True)")
        if mode == "stage" and not self.fsync:
            raise ValueError(
                f"fsync=False: {part} must last until its frame is committed; omit fsync="
            )


def new_plan(array: da.Array, options: WriteOptions) -> FramePlan:
    """Plan the new frame of an array; errors as for `plan_frame`."""
    given, blocks = options.chunks, options.blocks
    chunks = default_shape(array) if given is None else resolved_shape(array, given)
    return plan_frame(
        array.shape,
        array.dtype,
        chunks=chunks,
        blocks=None if blocks is None else checked_sizes("blocks", blocks, chunks),
        cparams=options.cparams,
        meta=packed_metadata(array, "meta", options.meta),
        vlmeta=packed_metadata(array, "vlmeta", options.vlmeta),
        sparse=not options.contiguous,
        caterva=options.caterva,
        stats=options.stats,
    )


#: Properties of an existing frame that contradict an option, if it has no attribute of that name.
_REASONS = {
    "contiguous": "it is one file",
    "caterva": "it has no metalayer of Caterva",
    "stats": "it has no statistics; b2nd_dask.add_stats adds them",
}


def check_existing(frame: FrameReference, array: da.Array, options: WriteOptions) -> None:
    """Check that the options match the existing frame; defaults always match."""
    header, given = frame.parsed.header, options.given
    differs = {
        "contiguous": not options.contiguous and not header.sparse,
        "caterva": options.caterva and "caterva" not in header.metalayers,
        "stats": options.stats and frame.parsed.statistics is None,
    }
    if given:
        sizes, own = broadcast_sizes("chunks", options.chunks, array.ndim), frame.chunks
        if len(sizes) == len(own):
            # sizes that depend on the array, such as "auto", are those of the frame
            axes = zip(sizes, own, strict=True)
            sizes = tuple(n if is_fixed(n) else max(1, size) for n, size in axes)
            options = replace(options, chunks=sizes)
        asked = new_plan(array, options)
        differs |= {
            "chunks": "chunks" in given and asked.grid.chunks != own,
            "blocks": "blocks" in given and asked.grid.blocks != frame.grid.blocks,
            "cparams": "cparams" in given and asked.compression != header.compression,
            "meta": "meta" in given and asked.meta != frame.meta.stored,
            "vlmeta": "vlmeta" in given and asked.vlmeta != frame.vlmeta.stored,
        }
    other = [name for name, is_other in differs.items() if is_other]
    if other:
        known = _REASONS | {name: f"{name}={getattr(frame, name)}" for name in ("chunks", "blocks")}
        reasons = "; ".join(known[name] for name in other if name in known)
        raise ValueError(
            f"{' and '.join(other)}: the existing frame has other values"
            f"{reasons and f' ({reasons})'}, and a change of its elements does not change them; "
            'omit these options, or write a new frame with mode="w"'
        )


def dropped_metadata(given: Any, array: da.Array, options: WriteOptions) -> str:
    """A warning about metadata that a new frame loses without the user's choice; may be empty.

    `given` is the argument of the user, `array` its elements.
    """
    chosen = {"vlmeta": options.vlmeta, "meta": options.meta}
    frames = source_frames(array) if None in chosen.values() else []
    where = "the frame that is read" if len(frames) == 1 else "the frames that are read"
    lost, advice = [], []
    for name, what in (("vlmeta", "attributes"), ("meta", "metalayers")):
        if chosen[name] is not None:
            continue
        labels = _labels(given) if name == "vlmeta" else []
        stored = sorted({key for frame in frames for key in _stored(frame, name)})
        if labels or stored:
            keep = f'"keep" for {where}, ' if stored and len(frames) == 1 else ""
            advice.append(f"{name}= (a mapping; {keep}{{}} for none)")
        lost += labels + ([f"{what} {_listed(stored)} of {where}"] if stored else [])
    if not lost:
        return ""
    return (
        f"only the elements are written, and these are dropped: {'; '.join(lost)}. To choose what "
        f"is written with the elements, pass {' and '.join(advice)}"
    )


def packed_metadata(
    array: da.Array, name: str, entries: Mapping[str, Any] | str | None
) -> Mapping[str, bytes]:
    """Pack the ``meta`` or ``vlmeta`` of a new frame: the user's, or with "keep" the source's."""
    if not isinstance(entries, str):
        return pack_entries(entries, compressed=name == "vlmeta")
    if entries != "keep":
        raise ValueError(f'{name}={entries!r}: give a mapping, "keep" or None')
    frames = source_frames(array)
    if len(frames) != 1:
        raise ValueError(
            f'{name}="keep" needs a graph that reads one frame, and this one reads {len(frames)}; '
            "give a mapping instead: meta=frame.meta and vlmeta=frame.vlmeta of a frame, or "
            "vlmeta=x.attrs of an xarray array"
        )
    stored: Mapping[str, bytes] = getattr(frames[0], name).stored
    return stored


def source_frames(array: da.Array) -> list[FrameReference]:
    """List the distinct frames that the graph of an array reads, without opening a file."""
    values: Iterable[Any]
    if _dask_compat.has_layers():
        values = (reading.source for reading in readings(array.dask))
    else:
        # without layers `from_b2nd` leaves the graph to dask, and the frame is the value of a task
        tasks = dict(array.__dask_graph__()).values()
        values = (getattr(task, "value", task) for task in tasks)
    sources = [reference_of(value) if isinstance(value, Frame) else value for value in values]
    read = [source for source in sources if isinstance(source, FrameReference | JoinedReference)]
    return list({frame.version: frame for source in read for frame in source.frames}.values())


def _stored(frame: FrameReference, name: str) -> Iterable[str]:
    """Names of a frame's user metadata; none if the frame cannot be read."""
    try:
        return list(getattr(frame, name))
    except (B2ndError, OSError):
        # the graph may come from another process, with files that are not here: not an error
        return ()


def _labels(given: Any) -> list[str]:
    """Descriptions of the labels of a `xarray.Variable`; all other objects of xarray keep them."""
    if not is_labelled(given):
        return []
    parts = {"attributes": list(given.attrs), "dimensions": list(given.dims)}
    kind = type(given).__name__
    return [f"{what} {_listed(names)} of the {kind}" for what, names in parts.items() if names]


def _listed(names: list[Any]) -> str:
    shown = ", ".join(map(repr, names[:_SHOWN]))
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
