"""Variables of xarray from frames and their labels."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import numpy as np
import xarray as xr
from xarray.core import indexing

from b2nd_dask.edges.datasets.places import OpenOptions, Place, manifest_of
from b2nd_dask.edges.xarray.backend_array import FrameArray, GeogridArray
from b2nd_dask.errors import B2ndError, FrameFormatError, locating
from b2nd_dask.format.labels.labels import COORDS, SCALING, UnpackedLabels, unpack_labels
from b2nd_dask.format.labels.manifest import COORD, Manifest
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

#: The stem of a frame's file, the frame and its labels.
_Read = tuple[str, Frame, UnpackedLabels]


@dataclass
class Contents:
    """Variables and attributes of a dataset before decoding."""

    label: str
    variables: dict[str, xr.Variable] = field(default_factory=dict)
    coords: set[str] = field(default_factory=set)
    without_dims: set[str] = field(default_factory=set)
    """Variables of frames without names of dims."""
    attrs: dict[str, Any] = field(default_factory=dict)

    def add(
        self, name: str, variable: xr.Variable, *, is_coord: bool, has_dims: bool = True
    ) -> None:
        """Add a variable; its name must be new."""
        if name in self.variables:
            other = self.variables[name].encoding["source"]
            raise FrameFormatError(
                f"two variables are called {name!r}: the other one is in {other}",
                path=variable.encoding["source"],
            )
        self.variables[name] = variable
        if is_coord:
            self.coords.add(name)
        if not has_dims:
            self.without_dims.add(name)

    def update(self, other: Contents) -> None:
        """Add the variables of other contents; their attributes only if there are none yet."""
        for name, variable in other.variables.items():
            known = self.variables.get(name)
            same = known is not None and known.identical(variable)  # type: ignore[no-untyped-call]
            if name in other.coords and same:
                continue
            self.add(name, variable, is_coord=name in other.coords)
        if not self.attrs:
            self.attrs = dict(other.attrs)

    def require_fit(self) -> None:
        """Check that the lengths of dims agree between variables."""
        found: dict[Any, tuple[int, str]] = {}
        for name, variable in self.variables.items():
            for dim, size in variable.sizes.items():
                known, other = found.setdefault(dim, (size, name))
                if known != size:
                    source = self.variables[other].encoding["source"]
                    raise FrameFormatError(
                        f"dim {dim!r} of {name!r} has the length {size}, but {known} in {other!r} "
                        f"({source}); drop_variables=[{name!r}] omits it",
                        path=variable.encoding["source"],
                    )


def contents_of_frame(frame: Frame, stem: str | None) -> Contents:
    """The contents of a single frame: its array, called `stem` by default, and its coordinates."""
    contents = Contents(frame.path)
    unpacked = _unpacked(frame)
    labels = unpacked.labels
    name = labels.name if unpacked.is_named else stem
    name = NAMELESS if name is None else name
    variable = _variable(frame, unpacked, frame.shape)
    contents.add(name, variable, is_coord=labels.is_coord, has_dims=unpacked.has_dims)
    for coord, raw in labels.coords.items():
        try:
            inner = OpenOptions().open(Location.of(raw))
            own = _unpacked(inner)
            found = _variable(inner, own, inner.shape)
        except B2ndError as error:
            error.problem = f"in the metadata entry {COORDS!r}, {coord!r}: {error.problem}"
            error.path = frame.path
            raise
        found.encoding["source"] = frame.path
        contents.add(coord, found, is_coord=True)
    contents.require_fit()
    return contents


def contents_of_place(place: Place, options: OpenOptions, group: str = "") -> Contents:
    """The contents of a directory or of a level of a store: a group in a tree.

    If lengths of unnamed dims differ, each array without names gets dims of its own.
    """
    manifest, dropped = manifest_of(place), options.dropped
    stems = _stems(place, manifest, dropped)
    # sidecars have data about other frames, and are no variables
    shown = [stem for stem in stems if stem.startswith(COORD) or not stem.startswith("_")]
    frames = _open(place, shown, options)
    contents = Contents(place.label, attrs=dict(manifest.attrs))
    read = [(stem, frame, _unpacked(frame)) for stem, frame in zip(shown, frames, strict=True)]
    read = _with_own_dims(read, group if options.own_labels else None)
    committed = _committed(place, stems, options)
    sizes = _committed_sizes(read, manifest, committed)
    for stem, frame, unpacked in read:
        name, is_coord = _name_in_place(stem, unpacked, manifest)
        if name in dropped:
            continue
        variable = _variable(frame, unpacked, _trimmed(frame, unpacked, sizes), name, manifest)
        contents.add(name, variable, is_coord=is_coord, has_dims=unpacked.has_dims)
    _require_all(contents, manifest, dropped)
    if committed is not None:
        contents.attrs["committed_extent"] = committed
    _order(contents, manifest)
    contents.require_fit()
    return contents


def _stems(place: Place, manifest: Manifest, dropped: Collection[str]) -> list[str]:
    """Names of the frames of a place, without dropped ones."""
    stems = place.arrays()
    if stems is None:
        if not manifest.names:
            raise FileNotFoundError(
                f"{place.label}: a web server does not list its files, and there is no "
                "dataset.json with a list; pass a list of the URLs of frames"
            )
        stems = [*manifest.data_vars, *(COORD + name for name in manifest.coords)]
    return [stem for stem in stems if stem.removeprefix(COORD) not in dropped]


def _open(place: Place, stems: Sequence[str], options: OpenOptions) -> list[Frame]:
    if not stems:
        return []

    def opened(stem: str) -> Any:
        try:
            how = options.of_coordinates if stem.startswith(COORD) else options
            return reference_of(how.open(place.locate(stem)))
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{error}; the dataset {place.label} lists it") from error

    return [Frame(reference) for reference in open_all(stems, opened)]


def _unpacked(frame: Frame) -> UnpackedLabels:
    with locating(path=frame.path):
        return unpack_labels(frame.vlmeta, frame.shape)


def _with_own_dims(read: list[_Read], group: str | None) -> list[_Read]:
    """If lengths of unnamed dims differ, give each array without names dims of its own.

    With a `group` do so always; names of dims start with its path, since groups inherit dims.
    """
    unnamed = [(frame, unpacked) for _, frame, unpacked in read if not unpacked.has_dims]
    sizes = {
        item for frame, own in unnamed for item in zip(own.labels.dims, frame.shape, strict=True)
    }
    if group is None and len(sizes) == len({dim for dim, _ in sizes}):
        return read
    parts = [part for part in (group or "").split("/") if part]
    return [
        (stem, frame, own if own.has_dims else _prefixed(own, ".".join([*parts, stem])))
        for stem, frame, own in read
    ]


def _prefixed(unpacked: UnpackedLabels, name: str) -> UnpackedLabels:
    dims = tuple(f"{name}_{dim}" for dim in unpacked.labels.dims)
    return replace(unpacked, labels=replace(unpacked.labels, dims=dims))


def _name_in_place(stem: str, unpacked: UnpackedLabels, manifest: Manifest) -> tuple[str, bool]:
    """Name of a variable, and whether it is a coordinate."""
    name = unpacked.labels.name or stem.removeprefix(COORD)
    is_coord = unpacked.labels.is_coord or stem.startswith(COORD)
    return name, is_coord or (name in manifest.coords and name not in manifest.data_vars)


def _require_all(contents: Contents, manifest: Manifest, dropped: Collection[str]) -> None:
    missing = [n for n in manifest.names if n not in contents.variables and n not in dropped]
    if missing:
        names = some_of(list(map(repr, missing)))
        raise FrameFormatError(
            f"dataset.json names {names}, but there are no such frames here; "
            f"drop_variables=[{names}] omits them",
            path=contents.label,
        )


def _order(contents: Contents, manifest: Manifest) -> None:
    """Sort variables into the order of the manifest."""
    rank = {name: number for number, name in enumerate(manifest.names)}
    in_order = sorted(contents.variables.items(), key=lambda item: rank.get(item[0], len(rank)))
    contents.variables = dict(in_order)


def _committed(place: Place, stems: Iterable[str], options: OpenOptions) -> int | None:
    """The committed length of `time` in xarray-blosc2's sidecar; None without a sidecar."""
    if _COMMIT not in stems:
        return None
    frame = options.open(place.locate(_COMMIT))
    if frame.size != 1 or frame.dtype.kind not in "iu":
        raise FrameFormatError("the committed length of time must be one integer", path=frame.path)
    return int(np.asarray(frame).ravel()[0])


def _committed_sizes(
    read: Sequence[_Read], manifest: Manifest, committed: int | None
) -> dict[str, int]:
    """Committed lengths of dims; frames may be longer."""
    sizes = dict(manifest.sizes) if manifest.commits else {}
    if committed is not None and committed >= 0:
        sizes["time"] = min(committed, sizes.get("time", committed))
    for _, frame, unpacked in read:
        for dim, n in zip(unpacked.labels.dims, frame.shape, strict=False):
            if manifest.commits and n < sizes.get(dim, 0) and dim in manifest.sizes:
                raise FrameFormatError(
                    f"dim {dim!r} has the length {n}, but {manifest.sizes[dim]} in dataset.json",
                    path=frame.path,
                )
    return sizes


def _trimmed(frame: Frame, unpacked: UnpackedLabels, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The committed shape of a frame."""
    if unpacked.is_scalar:
        return frame.shape
    dims = unpacked.labels.dims
    shape = tuple(min(n, sizes.get(dim, n)) for dim, n in zip(dims, frame.shape, strict=True))
    if shape != frame.shape:
        logger.info("%s: %s of %s is committed", frame.path, shape, frame.shape)
    return shape


def _variable(
    frame: Frame,
    unpacked: UnpackedLabels,
    shape: tuple[int, ...],
    name: str = "",
    manifest: Manifest = Manifest(),  # noqa: B008 - frozen
) -> xr.Variable:
    """A lazy variable; indexing reads the frame."""
    labels = unpacked.labels
    attrs = {**labels.attrs}
    if not manifest.commits:
        # In this package's datasets all attributes come from frames: a replaced variable has its
        # new ones before the manifest. So do attributes whose type JSON would lose.
        given = manifest.variable_attrs.get(name, {})
        attrs |= {key: value for key, value in given.items() if key not in unpacked.typed}
    if unpacked.strings is not None:
        text = np.array(unpacked.strings[: shape[0]] or [""])[: shape[0]]
        elements: Any = text[0] if unpacked.is_scalar else text
        return xr.Variable(labels.dims, elements, attrs, {"source": frame.path})
    array: Any = FrameArray(frame, () if unpacked.is_scalar else shape)
    packing = manifest.geogrid.get(name)
    if packing is not None:
        array = GeogridArray(array, packing)
        attrs = {
            key: value
            for key, value in attrs.items()
            if key not in (*SCALING, "_OriginalType") and not key.startswith("_geogrid")
        }
    return xr.Variable(
        labels.dims, indexing.LazilyIndexedArray(array), attrs, _encoding(frame, labels.dims, shape)
    )


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
