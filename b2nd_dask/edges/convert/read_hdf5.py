"""Datasets and groups of HDF5 files, NetCDF-4 among them."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np

from b2nd_dask.edges.convert.shared import Options, blocks_of, lazy, text_dtype
from b2nd_dask.edges.convert.zarr_store import full_dims
from b2nd_dask.edges.datasets.tree import Member, Tree
from b2nd_dask.frame.write.new_frame import check_storable
from b2nd_dask.graph.write.input_arrays import file_state
from b2nd_dask.lazy import require
from b2nd_dask.storage import printable

#: Most levels of virtual datasets that refer to virtual datasets.
_MOST_NESTED = 4
#: Attributes for the bookkeeping of dimension scales and of the NetCDF library.
BOOKKEEPING = frozenset(
    {"CLASS", "NAME", "DIMENSION_LIST", "REFERENCE_LIST", "DIMENSION_LABELS"}
    | {"_Netcdf4Dimid", "_Netcdf4Coordinates", "_NCProperties", "_nc3_strict"}
)
#: The NetCDF library's prefix for a variable that has the name of a dim but is no coordinate.
NO_COORDINATE = "_nc4_non_coord_"
#: Start of the name of a scale for a dim without a coordinate.
NO_VARIABLE = "This is a netCDF dimension but not a netCDF variable"


@dataclass(frozen=True)
class StoredDataset:
    """A dataset that each read opens: a dataset of h5py cannot be pickled."""

    path: str
    state: tuple[int, ...]
    name: str
    shape: tuple[int, ...]
    is_text: bool
    """Whether the bytes are text, which is decoded."""

    def __getitem__(self, index: Any) -> Any:
        h5py = require("convert", "h5py")
        with h5py.File(self.path, "r") as file:
            if file_state(self.path) != self.state:
                raise OSError(f"{self.path}: the file changed after it was opened")
            dataset = file[self.name].asstr() if self.is_text else file[self.name]
            return dataset[index]


class _File:
    """What all groups of a file share."""

    def __init__(self, file: Any, options: Options) -> None:
        self._file, self.options = file, options
        self.is_netcdf = "_NCProperties" in file.attrs
        self.seen: set[int] = set()
        """Addresses of the groups so far: a group may have several names, even inside itself."""

    @cached_property
    def _datasets(self) -> list[Any]:
        """All arrays of the file but scalars."""
        nodes: list[Any] = []
        self._file.visititems(lambda _name, node: nodes.append(node))
        return [node for node in nodes if getattr(node, "shape", None)]

    @cached_property
    def _scales_by_number(self) -> dict[int, str]:
        """Names of the scales of NetCDF's dims, by the numbers of the dims."""
        scales = [node for node in self._datasets if node.is_scale]
        numbers = ((node.attrs.get("_Netcdf4Dimid"), node.name) for node in scales)
        return {int(n): name for n, name in numbers if isinstance(n, np.integer)}

    @cached_property
    def lengths(self) -> dict[str, int]:
        """Lengths of NetCDF's dims by the names of their scales: those of the longest arrays."""
        found: dict[str, int] = {}
        for node in self._datasets if self.is_netcdf else ():
            for scale, n in zip(self.scales(node), node.shape, strict=True):
                found[scale] = max(found.get(scale, 0), n)
        # arrays without dims have lengths of their own
        found.pop("", None)
        return found

    def scales(self, dataset: Any) -> list[str]:
        """Name of the scale of each axis; empty for an axis without one."""
        if dataset.is_scale and dataset.ndim == 1:
            return [dataset.name]
        if dataset.is_scale and "_Netcdf4Coordinates" in dataset.attrs:
            # a scale has no scales of its own: the NetCDF library stores the numbers of its dims
            numbers = np.ravel(dataset.attrs["_Netcdf4Coordinates"]).tolist()
            if len(numbers) == dataset.ndim:
                return [self._scales_by_number.get(number, "") for number in numbers]
        return [(dim[0].name or "") if len(dim) else "" for dim in dataset.dims]


def read_hdf5(path: str, options: Options) -> Tree:
    """Describe a local file.

    Raises ValueError if it is a classic NetCDF file, and h5py's OSError if it is no HDF5 file.
    """
    with Path(path).open("rb") as raw:
        if raw.read(3) == b"CDF":
            raise ValueError(
                f"{path}: it is a classic NetCDF file; use "
                "xarray.open_dataset(PATH).b2nd.to_b2nd(TARGET)"
            )
    with require("convert", "h5py").File(path, "r") as file:
        return hdf5_tree(file, path, options)


def hdf5_tree(node: Any, label: str, options: Options) -> Tree:
    """Describe an opened group or dataset."""
    tree, file = Tree(label, is_array=hasattr(node, "shape")), _File(node.file, options)
    if tree.is_array:
        # the user's dataset ends where h5py says, not where its unlimited dims end
        file.lengths = {}
        described = partial(_member, node, label, tree.lost, file)
        tree.add((node.name or "").rpartition("/")[2], described)
    else:
        _fill(tree, node, file)
    return tree


def _fill(tree: Tree, group: Any, file: _File) -> None:
    """Add the contents of a group to its tree."""
    h5py, label = require("convert", "h5py"), tree.label
    file.seen.add(h5py.h5o.get_info(group.id).addr)
    tree.attrs = _attrs(group, label, tree.lost, file)
    for name in group:
        inner = f"{label}/{printable(name)}"
        child = _child(group, name)
        if child is None:
            tree.lost.append(f"{inner}, which is a soft or external link, or has a / in its name")
        elif isinstance(child, h5py.Group):
            if h5py.h5o.get_info(child.id).addr in file.seen:
                tree.lost.append(f"{inner}, which is another name of a group")
            elif (inside := tree.inside(name)) is not None:
                _fill(inside, child, file)
        elif isinstance(child, h5py.Datatype):
            tree.lost.append(f"{inner}, which is a named type")
        elif not _is_bare_dim(child):
            described = partial(_member, child, inner, tree.lost, file)
            tree.add(_own_name(name, group), described)


def _child(group: Any, name: str) -> Any:
    """The object of a hard link; None for other links and paths, which may lead to other files."""
    is_name = "/" not in name and hasattr(group, "get")
    link = group.get(name, getlink=True) if is_name else None
    return group[name] if isinstance(link, require("convert", "h5py").HardLink) else None


def _member(dataset: Any, label: str, lost: list[str], file: _File) -> Member:
    """Describe an opened dataset.

    Raises TypeError for references, enumerations, objects, empty datasets and, if `other_files` is
    false, for elements in other files.
    """
    if not file.options.other_files and not _has_own_elements(dataset):
        raise TypeError(
            "its elements lie in other files, or behind links; copy them into this file, "
            "or give convert other_files=True (--other-files) if you trust its author"
        )
    dtype, is_text = _element_dtype(dataset, label, file.options.block_nbytes)
    attrs = _attrs(dataset, label, lost, file)
    # the NetCDF library gives all arrays a fill value; it is valid only with the attribute
    own_fill = not file.is_netcdf and "_FillValue" not in attrs
    if own_fill and dataset.dtype.kind in "biufc" and dataset.fillvalue:
        attrs["fill_value"] = dataset.fillvalue
    source: Any = dataset
    if dataset.file.mode == "r" and dataset.file.driver in ("sec2", "stdio"):
        path = os.path.abspath(dataset.file.filename)  # noqa: PTH100 - tasks run elsewhere
        source = StoredDataset(path, file_state(path), dataset.name, dataset.shape, is_text)
    elif is_text:
        raise TypeError("strings need a file that is open for reading only; open it with mode 'r'")
    # chunks of strings hold pointers: as text of a fixed length they would be many times larger
    unit = None if dataset.dtype.kind == "O" else dataset.chunks
    array = lazy(source, unit, file.options.block_nbytes, label, dtype)
    scales = file.scales(dataset)
    array = _lengthened(array, dataset, scales, file)
    # the name of the attached scale, or the label
    axes = zip(scales, dataset.dims, strict=True)
    names = [scale.rpartition("/")[2] or dim.label for scale, dim in axes]
    dims = full_dims(names, dataset.ndim, label, lost)
    unlimited = tuple(axis for axis, n in enumerate(dataset.maxshape) if n is None)
    return Member(array, dims, attrs, unlimited=unlimited)


def _lengthened(array: da.Array, dataset: Any, scales: list[str], file: _File) -> da.Array:
    """Add the fill values that the NetCDF library reads behind the end of an array."""
    fill = dataset.fillvalue if array.dtype.kind in "biufc" else np.zeros((), array.dtype)
    axes = zip(scales, dataset.shape, dataset.maxshape, strict=True)
    for axis, (scale, n, most) in enumerate(axes):
        if most is None and (more := file.lengths.get(scale, n) - n):
            shape = (*array.shape[:axis], more, *array.shape[axis + 1 :])
            sizes = blocks_of(shape, None, array.dtype.itemsize, file.options.block_nbytes)
            filled = da.full(shape, fill, dtype=array.dtype, chunks=sizes)
            array = da.concatenate([array, filled], axis)
    return array


def _has_own_elements(dataset: Any) -> bool:
    """Whether no elements lie in other files: the author may refer to any file of the user."""
    nodes = [dataset]
    # virtual datasets may refer to each other in a cycle, which ends the process
    for _ in range(_MOST_NESTED):
        if any(not hasattr(node, "shape") or node.external for node in nodes):
            return False
        virtual = (node for node in nodes if node.shape is not None and node.is_virtual)
        sources = {(s.file_name, s.dset_name) for node in virtual for s in node.virtual_sources()}
        # "." is the file itself, even if it was given by its name; HDF5 expands %b and %%
        if any(file != "." or "%" in name for file, name in sources):
            return False
        if not sources:
            return True
        nodes = [_node_at(dataset.file, name) for _, name in sources]
    return False


def _node_at(file: Any, path: str) -> Any:
    """The object at a path of hard links; None if there is none."""
    with suppress(KeyError, RuntimeError, ValueError):
        return reduce(_child, path.strip("/").split("/"), file)
    return None


def _element_dtype(dataset: Any, label: str, block_nbytes: int) -> tuple[np.dtype[Any], bool]:
    """Dtype of the elements in NumPy, and whether they are text to be decoded."""
    h5py = require("convert", "h5py")
    if dataset.shape is None:
        raise TypeError("it is empty: it has a type but no shape")
    dtype = dataset.dtype
    text = h5py.check_string_dtype(dtype)
    if text is not None:
        if text.length is None:
            return text_dtype(dataset.asstr(), dataset.chunks, block_nbytes, label), True
        is_text = text.encoding == "utf-8"
        return np.dtype(f"{'U' if is_text else 'S'}{text.length}"), is_text
    fields = [dtype] if dtype.names is None else [dtype[name] for name in dtype.names]
    if any(h5py.check_enum_dtype(each) is not None for each in fields):
        raise TypeError("a frame cannot hold the names of an enumeration; write integers")
    if dtype.hasobject:
        known = {
            "references": h5py.check_ref_dtype,
            "sequences of any length": h5py.check_vlen_dtype,
        }
        kind = next((kind for kind, check in known.items() if check(dtype) is not None), "objects")
        raise TypeError(f"elements of {kind} have no fixed size")
    check_storable(dtype)
    return dtype, False


def _attrs(node: Any, label: str, lost: list[str], file: _File) -> dict[str, Any]:
    """Attributes that a frame can hold; the others are added to `lost`."""
    found = {}
    for name in node.attrs:
        if name in BOOKKEEPING:
            continue
        try:
            value = plain(node.attrs[name])
        except (OSError, TypeError, ValueError) as reason:
            lost.append(f"attribute {name!r} of {label} ({reason})")
            continue
        # NetCDF stores a number as a list of one
        is_number = np.shape(value) == (1,) and (file.is_netcdf or name == "_FillValue")
        found[name] = value[0] if is_number else value
    return found


def plain(value: Any) -> Any:
    """Decode the texts in an attribute of h5py; bytes that are no text stay bytes.

    Raises TypeError for references, empty values, records and sequences without a fixed length.
    """
    if isinstance(value, str | bytes):
        # text of h5py that is not UTF-8 has surrogates
        raw = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else bytes(value)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return raw
    if isinstance(value, list):
        found = [plain(each) for each in value]
        if {bytes, str} <= set(map(type, found)):
            # a list with bytes that are no text stays a list of bytes
            return [each.encode() if isinstance(each, str) else each for each in found]
        return found
    kind = value.dtype.kind if isinstance(value, np.ndarray | np.generic) else "O"
    are_texts = kind == "O" and all(isinstance(each, str | bytes) for each in np.ravel(value))
    if are_texts or (kind == "S" and value.ndim == 1):
        return plain(value.tolist())
    if kind in "OV":
        raise TypeError(f"a value of type {type(value).__name__}")
    return value


def _own_name(name: str, group: Any) -> str:
    """Name of a variable without NetCDF's prefix, unless another one in the group has it."""
    own = name.removeprefix(NO_COORDINATE)
    if own == name:
        return name
    other = _child(group, own)
    return own if other is None or _is_bare_dim(other) else name


def _is_bare_dim(node: Any) -> bool:
    name = node.attrs.get("NAME", b"")
    is_scale = getattr(node, "is_scale", False)
    return is_scale and isinstance(name, bytes) and name.startswith(NO_VARIABLE.encode())
