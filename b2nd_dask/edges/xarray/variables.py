"""Variables and datasets of xarray from frames and their labels."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import numpy as np
import xarray as xr
from xarray.core import indexing

from b2nd_dask.edges.datasets.places import Place, manifest_of
from b2nd_dask.edges.xarray.backend_array import FrameArray, GeogridArray
from b2nd_dask.errors import B2ndError, FrameFormatError, locating
from b2nd_dask.format.labels import COORDS, SCALING, Labels, unpack_labels
from b2nd_dask.format.manifest import COORD, Manifest
from b2nd_dask.frame.access import frame_at
from b2nd_dask.frame.array import Frame, reference_of
from b2nd_dask.frame.info import choice_name
from b2nd_dask.frame.joined import open_all
from b2nd_dask.frame.members.store import some_of
from b2nd_dask.storage import Location

#: xarray's own name for an array without a name.
NAMELESS = "__xarray_dataarray_variable__"
#: Sidecar of xarray-blosc2 with the committed length of `time`.
_COMMIT = "_commit"

logger = logging.getLogger("b2nd_dask")

#: A frame with its labels, behind the stem of its file, or the name of its variable if known.
_Labelled = tuple[str, Frame, Labels]


@dataclass(frozen=True)
class OpenOptions:
    """Options to open a dataset and its frames."""

    storage_options: Mapping[str, Any] | None = None
    group: str | None = None
    """Path of the group to open."""
    uninit: Any = None
    """As for `open_b2nd`, like `verify`."""
    verify: Any = "auto"
    dropped: frozenset[str] = frozenset()
    """Names of variables to leave out."""
    own_labels: bool = False
    """Whether an array without a name gets none from its file, and arrays without names of dims
    never share dims, even if their lengths agree."""
    dtype: Any = None
    """Dtype of the elements of a Caterva frame, which does not store it."""
    decoders: Mapping[str, Any] = field(default_factory=dict)
    """Options of xarray's decoding."""

    def open(self, location: Location) -> Frame:
        """Open the frame at a location."""
        return Frame(frame_at(location, self.dtype, self.uninit, self.verify))


@dataclass
class Contents:
    """Variables and attributes of a dataset before decoding."""

    label: str
    attrs: dict[str, Any] = field(default_factory=dict)
    variables: dict[str, xr.Variable] = field(default_factory=dict)
    labels: dict[str, Labels] = field(default_factory=dict)
    """Labels of the variables, by the same names."""
    _sizes: dict[Any, tuple[int, str]] = field(default_factory=dict)
    """Lengths of dims, each with the first variable that has it."""

    def add(self, name: str, variable: xr.Variable, labels: Labels) -> None:
        """Add a variable: its name must be new, and its lengths those of the other variables."""
        source = variable.encoding["source"]
        if name in self.variables:
            other = self.variables[name].encoding["source"]
            raise FrameFormatError(
                f"two variables are called {name!r}: the other one is in {other}", path=source
            )
        self.variables[name], self.labels[name] = variable, labels
        for dim, size in variable.sizes.items():
            known, other = self._sizes.setdefault(dim, (size, name))
            if known != size:
                raise FrameFormatError(
                    f"dim {dim!r} of {name!r} has the length {size}, but {known} in {other!r} "
                    f"({self.variables[other].encoding['source']}); drop_variables=[{name!r}] "
                    "omits it",
                    path=source,
                )

    def update(self, other: Contents) -> None:
        """Add the variables of other contents; their attributes only if there are none yet."""
        for name, variable in other.variables.items():
            known = self.variables.get(name)
            same = known is not None and known.identical(variable)  # type: ignore[no-untyped-call]
            if not (same and other.labels[name].is_coord):
                self.add(name, variable, other.labels[name])
        if not self.attrs:
            self.attrs = dict(other.attrs)


def contents_of_frame(frame: Frame, stem: str | None) -> Contents:
    """The contents of a single frame: its array, called `stem` by default, and its coordinates."""
    contents, labels, manifest = Contents(frame.path), _labels(frame), Manifest()
    name = labels.name if labels.is_named else stem
    name = NAMELESS if name is None else name
    contents.add(name, _variable(frame, labels, name, manifest), labels)
    for coord, raw in labels.coords.items():
        try:
            inner = OpenOptions().open(Location.of(raw))
            own = replace(_labels(inner), is_coord=True)
            found = _variable(inner, own, coord, manifest)
        except B2ndError as error:
            error.problem = f"in the metadata entry {COORDS!r}, {coord!r}: {error.problem}"
            error.path = frame.path
            raise
        found.encoding["source"] = frame.path
        contents.add(coord, found, own)
    return contents


def contents_of(found: Contents | Place, options: OpenOptions, group: str = "") -> Contents:
    """The contents of a directory or of a level of a store: a group in a tree.

    `Contents` are returned unchanged. Dims without names are those of `_labelled`.
    """
    if isinstance(found, Contents):
        return found
    manifest, dropped = manifest_of(found), options.dropped
    stems = [stem for stem in found.arrays() if stem.removeprefix(COORD) not in dropped]
    # sidecars have data about other frames, and are no variables
    shown = [stem for stem in stems if stem.startswith(COORD) or not stem.startswith("_")]
    named: list[_Labelled] = []
    for stem, frame, labels in _labelled(found, shown, options, group):
        name = labels.name or stem.removeprefix(COORD)
        is_coord = labels.is_coord or stem.startswith(COORD)
        is_coord |= name in manifest.coords and name not in manifest.data_vars
        named.append((name, frame, replace(labels, is_coord=is_coord)))
    _require_all({name for name, _, _ in named}, found, manifest, dropped)
    rank = {name: number for number, name in enumerate(manifest.names)}
    named.sort(key=lambda each: rank.get(each[0], len(rank)))
    contents = Contents(found.label, dict(manifest.attrs))
    sizes = dict(manifest.sizes) if manifest.commits else {}
    committed = _committed(found, stems, options)
    if committed is not None:
        contents.attrs["committed_extent"] = committed
        if committed >= 0:
            sizes["time"] = min(committed, sizes.get("time", committed))
    # from here on only the lengths that count
    manifest = replace(manifest, sizes=sizes)
    for name, frame, labels in named:
        if name not in dropped:
            contents.add(name, _variable(frame, labels, name, manifest), labels)
    return contents


def decoded(found: Contents | Place, options: OpenOptions, group: str = "") -> xr.Dataset:
    """The contents of frames, or of a place, decoded by CF, as xarray decodes any store."""
    contents, decoders = contents_of(found, options, group), options.decoders
    if not decoders.get("concat_characters"):
        # decode text that is stored as bytes; keep arrays of single characters
        encoded = {
            name: "_Encoding" in each.attrs and each.dtype.kind == "S" and each.dtype != "S1"
            for name, each in contents.variables.items()
        }
        decoders = {**decoders, "concat_characters": encoded}
    try:
        variables, attrs, coords = xr.conventions.decode_cf_variables(
            contents.variables, contents.attrs, drop_variables=options.dropped, **decoders
        )
    except Exception as error:
        error.add_note(
            f"{contents.label}: xarray cannot decode it; mask_and_scale=False, decode_times=False "
            "or decode_coords=False opens it as it is stored"
        )
        raise
    coords |= {name for name, labels in contents.labels.items() if labels.is_coord}
    coords.update(*(each.dims for each in variables.values()))
    data = {name: each for name, each in variables.items() if name not in coords}
    beside = {name: each for name, each in variables.items() if name in coords}
    ds = xr.Dataset(data, xr.Coordinates(beside, indexes={}), attrs)
    ds.encoding["source"] = contents.label
    return ds


def _labelled(
    place: Place, stems: Sequence[str], options: OpenOptions, group: str
) -> list[_Labelled]:
    """The frames of a place with their labels.

    If lengths of unnamed dims differ, each array without names of dims has dims of its own. With
    `own_labels` it always has; their names start with the path of the group, since groups inherit
    dims.
    """
    # without an `uninit` value: dtypes of coordinates may not hold it
    of_coords = options if isinstance(options.uninit, str) else replace(options, uninit=None)

    def opened(stem: str) -> Any:
        try:
            how = of_coords if stem.startswith(COORD) else options
            return reference_of(how.open(place.locate(stem)))
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{error}; the dataset {place.label} lists it") from error

    frames = map(Frame, open_all(stems, opened) if stems else ())
    read = [(stem, frame, _labels(frame)) for stem, frame in zip(stems, frames, strict=True)]
    sizes = {
        item
        for _, frame, labels in read
        if not labels.has_dims
        for item in zip(labels.dims, frame.shape, strict=True)
    }
    above = "".join(f"{part}." for part in group.split("/") if part and options.own_labels)
    if options.own_labels or len(sizes) > len(dict(sizes)):
        for at, (stem, frame, labels) in enumerate(read):
            if not labels.has_dims:
                dims = tuple(f"{above}{stem}_{dim}" for dim in labels.dims)
                read[at] = stem, frame, replace(labels, dims=dims)
    return read


def _labels(frame: Frame) -> Labels:
    with locating(path=frame.path):
        return unpack_labels(frame.vlmeta, frame.shape)


def _require_all(
    found: Collection[str], place: Place, manifest: Manifest, dropped: Collection[str]
) -> None:
    missing = [name for name in manifest.names if name not in found and name not in dropped]
    if missing:
        names = some_of(list(map(repr, missing)))
        raise FrameFormatError(
            f"dataset.json names {names}, but there are no such frames here; "
            f"drop_variables=[{names}] omits them",
            path=place.label,
        )


def _committed(place: Place, stems: Iterable[str], options: OpenOptions) -> int | None:
    """The committed length of `time` in xarray-blosc2's sidecar; None without a sidecar."""
    if _COMMIT not in stems:
        return None
    frame = options.open(place.locate(_COMMIT))
    if frame.size != 1 or frame.dtype.kind not in "iu":
        raise FrameFormatError("the committed length of time must be one integer", path=frame.path)
    return int(np.asarray(frame).ravel()[0])


def _variable(frame: Frame, labels: Labels, name: str, manifest: Manifest) -> xr.Variable:
    """A lazy variable, of the committed elements; indexing reads the frame."""
    shape = _committed_shape(frame, labels, manifest)
    attrs = {**labels.attrs}
    if not manifest.commits:
        # In this package's datasets all attributes come from frames: a replaced variable has its
        # new ones before the manifest. So do attributes whose type JSON would lose.
        given = manifest.variable_attrs.get(name, {})
        attrs |= {key: value for key, value in given.items() if key not in labels.typed}
    if labels.strings is not None:
        text = np.array(labels.strings or [""])
        elements: Any = text[: shape[0]] if shape else text[0]
        return xr.Variable(labels.dims, elements, attrs, {"source": frame.path})
    packing = manifest.geogrid.get(name)
    array = FrameArray(frame) if packing is None else GeogridArray(frame, packing)
    if packing is not None:
        attrs = {
            key: value
            for key, value in attrs.items()
            if key not in (*SCALING, "_OriginalType") and not key.startswith("_geogrid")
        }
    key = None
    if shape != frame.shape:
        # a scalar may be stored as an array of one element
        key = indexing.BasicIndexer(tuple(map(slice, shape)) or (0,))
    lazy = indexing.LazilyIndexedArray(array, key)
    return xr.Variable(labels.dims, lazy, attrs, _encoding(frame, labels.dims, shape))


def _committed_shape(frame: Frame, labels: Labels, manifest: Manifest) -> tuple[int, ...]:
    """The shape of a variable: its frame may be longer, or hold a scalar as one element."""
    sizes, shape = manifest.sizes, dict(zip(labels.dims, frame.shape, strict=False))
    for dim, n in shape.items():
        if manifest.commits and n < sizes.get(dim, 0):
            raise FrameFormatError(
                f"dim {dim!r} has the length {n}, but {sizes[dim]} in dataset.json",
                path=frame.path,
            )
    committed = tuple(min(n, sizes.get(dim, n)) for dim, n in shape.items())
    if committed != tuple(shape.values()):
        logger.info("%s: %s of %s is committed", frame.path, committed, frame.shape)
    return committed


def _encoding(frame: Frame, dims: Sequence[str], shape: Sequence[int]) -> dict[str, Any]:
    """The storage options of a frame as xarray's encoding."""
    encoding: dict[str, Any] = {"source": frame.path, "blocks": frame.blocks}
    codec = frame.cparams.codec
    # a number if python-blosc2 has no name for it
    encoding["codec"] = choice_name(codec) if isinstance(codec, Enum) else codec
    if dims and all(frame.chunks):
        chunks = tuple(min(c, max(n, 1)) for c, n in zip(frame.chunks, shape, strict=False))
        encoding |= {"chunks": chunks, "preferred_chunks": dict(zip(dims, chunks, strict=True))}
    return encoding
