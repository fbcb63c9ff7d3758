"""Metadata of what is written: copied by ``"keep"``, or dropped with a warning."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import dask.array as da

from b2nd_dask.errors import B2ndError, level_of_caller
from b2nd_dask.frame.array import Frame, reference_of
from b2nd_dask.frame.joined import JoinedReference
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.frame.write.new_frame import pack_entries, users_names
from b2nd_dask.graph import _dask_compat
from b2nd_dask.graph.read.blocks import readings

#: Names that a warning lists.
_SHOWN = 5


def warn_of_dropped(given: Any, array: da.Array, *, meta: Any, vlmeta: Any) -> None:
    """Warn of metadata that `to_b2nd` drops; `to_b2nd` must call this itself.

    Parameters
    ----------
    given : object
        What the user wants to write; a `xarray.DataArray` has attributes.
    array : dask.array.Array
        The same as a dask array.
    meta, vlmeta
        As for `to_b2nd`. An argument that is not None is a choice, of which nothing is said.
    """
    frames = source_frames(array) if meta is None or vlmeta is None else []
    where = "the frame that is read" if len(frames) == 1 else "the frames that are read"
    lost, advice = [], []
    for name, what, chosen in (("vlmeta", "attributes", vlmeta), ("meta", "metalayers", meta)):
        if chosen is not None:
            continue
        labels = _labels(given) if name == "vlmeta" else []
        stored = sorted({key for frame in frames for key in _stored(frame, name)})
        of_frames = [f"{what} {_listed(stored)} of {where}"] if stored else []
        if not labels and not of_frames:
            continue
        lost += labels + of_frames
        keep = f'"keep" for {where}, ' if of_frames and len(frames) == 1 else ""
        advice.append(f"{name}= (a mapping; {keep}{{}} for none)")
    if lost:
        warnings.warn(
            f"only the elements are written, and these are dropped: {'; '.join(lost)}. Say by "
            f"{' and '.join(advice)} what is written with the elements",
            UserWarning,
            stacklevel=level_of_caller(),
        )


def packed_metadata(
    array: da.Array, name: str, entries: Mapping[str, Any] | str | None
) -> Mapping[str, bytes]:
    """Pack the metadata of a new frame: the user's entries, or those of the frame that is read.

    Parameters
    ----------
    name : {"meta", "vlmeta"}
    entries : mapping, "keep" or None
        As for `to_b2nd`.
    """
    if not isinstance(entries, str):
        return pack_entries(entries, compressed=name == "vlmeta")
    if entries != "keep":
        raise ValueError(f'{name}={entries!r}: give a mapping, "keep" or None')
    frames = source_frames(array)
    if len(frames) != 1:
        raise ValueError(
            f'{name}="keep" needs one frame that the graph of the array reads, and finds '
            f"{len(frames)}; give a mapping instead, as meta=frame.meta and vlmeta=frame.vlmeta of "
            "a frame, or vlmeta=x.attrs of an array of xarray"
        )
    return frames[0].vlmeta.stored if name == "vlmeta" else frames[0].meta.stored


def source_frames(array: da.Array) -> list[FrameReference]:
    """List the frames that the graph of an array reads, each once, without opening a file."""
    return list({frame.version: frame for frame in _frames_of(array)}.values())


def _frames_of(array: da.Array) -> list[FrameReference]:
    if _dask_compat.is_planned():
        return _frames_among(_dask_compat.planned_nodes(array))
    if not _dask_compat.has_layers():
        # then `from_b2nd` leaves the graph to dask, where the frame is a value by itself
        single = [layer for layer in array.dask.layers.values() if len(layer) == 1]
        return _frames_among([getattr(v, "value", v) for layer in single for v in layer.values()])
    return [frame for reading in readings(array.dask) for frame in reading.frames]


def _frames_among(values: list[Any]) -> list[FrameReference]:
    """The frames that are read by values of a graph."""
    joined = [frame for v in values if isinstance(v, JoinedReference) for frame in v.frames]
    return [reference_of(value) for value in values if isinstance(value, Frame)] + joined


def _stored(frame: FrameReference, name: str) -> Iterable[str]:
    """Names of the user's metadata."""
    try:
        entries = frame.vlmeta if name == "vlmeta" else frame.meta
    except (B2ndError, OSError):
        # a graph from another process, of a file that is not here: writing does not need it
        return ()
    return users_names(entries.stored)


def is_labelled(given: Any) -> bool:
    """Whether something is an object of xarray, which is not imported for it."""
    return any(base.__module__.split(".")[0] == "xarray" for base in type(given).__mro__)


def _labels(given: Any) -> list[str]:
    """What a labelled array of xarray has beside its elements."""
    if not is_labelled(given):
        return []
    kind = type(given).__name__
    dims = list(getattr(given, "dims", ()))
    parts = {
        "attributes": list(getattr(given, "attrs", ())),
        "dimensions": [] if dims == [f"dim_{i}" for i in range(len(dims))] else dims,
        "coordinates": list(getattr(given, "coords", ())),
    }
    return [f"{what} {_listed(names)} of the {kind}" for what, names in parts.items() if names]


def _listed(names: list[Any]) -> str:
    shown = ", ".join(map(repr, names[:_SHOWN]))
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
