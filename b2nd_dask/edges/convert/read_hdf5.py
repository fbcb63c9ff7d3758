"""Datasets and groups of HDF5 files, NetCDF-4 among them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from b2nd_dask.edges.convert.attributes import kept
from b2nd_dask.edges.convert.lazy import Budget, lazy
from b2nd_dask.edges.convert.read_zarr import full_dims
from b2nd_dask.edges.datasets.tree import Member, Tree
from b2nd_dask.edges.extras import require
from b2nd_dask.frame.write.new_frame import check_storable
from b2nd_dask.storage import printable

#: What dimension scales and the NetCDF library keep their books in.
_BOOKKEEPING = frozenset(
    {"CLASS", "NAME", "DIMENSION_LIST", "REFERENCE_LIST", "DIMENSION_LABELS"}
    | {"_Netcdf4Dimid", "_Netcdf4Coordinates", "_NCProperties", "_nc3_strict"}
)
#: The NetCDF library puts this before the name of a variable that is called as a dim of others.
_NO_COORDINATE = "_nc4_non_coord_"
#: The name of a scale that stands for a dim without a coordinate.
_NO_VARIABLE = b"This is a netCDF dimension but not a netCDF variable"


@dataclass(frozen=True)
class StoredDataset:
    """A dataset that is opened by whoever reads it: h5py's own cannot be sent to a process."""

    path: str
    state: tuple[int, ...]
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_text: bool = False
    """Whether the bytes are UTF-8."""

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return (self.path, self.state, self.name)

    def __getitem__(self, index: Any) -> Any:
        h5py = require("convert", "h5py")
        with h5py.File(self.path, "r") as file:
            if file_state(self.path) != self.state:
                raise OSError(f"{self.path}: the file changed after it was opened")
            elements = np.asarray(file[self.name][index])
        return decoded(elements, self.dtype) if self.is_text else elements


def file_state(path: str) -> tuple[int, ...]:
    """What tells whether a file is the same."""
    stat = os.stat(path)  # noqa: PTH116 - only asked for its state
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def decoded(elements: Any, dtype: np.dtype[Any]) -> Any:
    """Text of bytes that are UTF-8."""
    return (
        np.char.decode(elements, "utf-8").astype(dtype) if elements.size else elements.astype(dtype)
    )


def read_hdf5(path: str, budget: Budget, *, other_files: bool = False) -> Tree:
    """Describe a local file.

    Parameters
    ----------
    other_files : bool
        Whether elements may lie in other files, which this one names.

    Raises
    ------
    ValueError
        It is no HDF5 file.
    """
    h5py = require("convert", "h5py")
    if not Path(path).exists():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        with Path(path).open("rb") as raw:
            classic = raw.read(3) == b"CDF"
        advice = (
            "it is a classic NetCDF file: xarray.open_dataset(PATH).b2nd writes it"
            if classic
            else f"it cannot be opened as HDF5: {error}"
        )
        raise ValueError(f"{path}: {advice}") from error
    with file:
        squeeze = "_NCProperties" in file.attrs
        return hdf5_tree(file, path, budget, squeeze=squeeze, other_files=other_files)


def hdf5_tree(
    group: Any,
    label: str,
    budget: Budget,
    *,
    squeeze: bool,
    other_files: bool = False,
    seen: set[int] | None = None,
) -> Tree:
    """Describe an opened group.

    Parameters
    ----------
    squeeze : bool
        Whether attributes of one element are numbers: NetCDF knows no others.
    other_files : bool
        As for `read_hdf5`.
    seen : set of int, optional
        Addresses of the groups so far: one may have several names, also inside of itself.
    """
    h5py = require("convert", "h5py")
    seen = set() if seen is None else seen
    seen.add(h5py.h5o.get_info(group.id).addr)
    tree = Tree(label)
    tree.attrs = _attrs(group, label, tree.lost, squeeze=squeeze)
    for name in group:
        inner = f"{label}/{printable(name)}"
        link = group.get(name, getlink=True)
        if not isinstance(link, h5py.HardLink):
            tree.lost.append(f"{inner}, which is a link to another place")
            continue
        child = group[name]
        if isinstance(child, h5py.Group):
            if h5py.h5o.get_info(child.id).addr in seen:
                tree.lost.append(f"{inner}, which is another name of a group")
                continue
            tree.groups[name] = hdf5_tree(
                child, inner, budget, squeeze=squeeze, other_files=other_files, seen=seen
            )
        elif isinstance(child, h5py.Datatype):
            tree.lost.append(f"{inner}, which is a named type")
        elif not _is_bare_dim(child):
            try:
                if not other_files:
                    _require_own_elements(child)
                member = hdf5_member(child, inner, budget, tree.lost, squeeze=squeeze)
                tree.members[name.removeprefix(_NO_COORDINATE)] = member
            except TypeError as error:
                tree.refused.append(f"{inner}: {error}")
    return tree


def hdf5_member(
    dataset: Any, label: str, budget: Budget, lost: list[str], *, squeeze: bool = False
) -> Member:
    """Describe an opened dataset.

    Raises
    ------
    TypeError
        Strings of any length, references, enumerations, an empty dataset.
    """
    dtype, is_text = _element_dtype(dataset)
    unlimited = [axis for axis, n in enumerate(dataset.maxshape) if n is None]
    if unlimited:
        lost.append(f"that axes {unlimited} of {label} are unlimited (append_axis= appends anyway)")
    attrs = _attrs(dataset, label, lost, squeeze=squeeze)
    # the NetCDF library gives all arrays a fill value, and says by an attribute where it counts
    own_fill = not squeeze and "_FillValue" not in attrs
    if own_fill and dataset.dtype.kind in "iufc" and dataset.fillvalue:
        attrs["fill_value"] = dataset.fillvalue
    source: Any = dataset
    if dataset.file.mode == "r" and dataset.file.driver in ("sec2", "stdio"):
        path = os.path.abspath(dataset.file.filename)  # noqa: PTH100 - tasks run elsewhere
        source = StoredDataset(path, file_state(path), dataset.name, dataset.shape, dtype, is_text)
    elif is_text:
        raise TypeError("text of a file that is open for writing: open it to read")
    array = lazy(source, dataset.chunks, budget, label)
    return Member(array, _dims(dataset, label, lost), attrs, is_coord=False)


def _require_own_elements(dataset: Any) -> None:
    """Refuse what lies in other files: whoever made this one may name any of the user's."""
    is_virtual = dataset.shape is not None and dataset.is_virtual
    # "." is the file itself, also where it was named as such
    sources = [source.file_name for source in dataset.virtual_sources()] if is_virtual else []
    if dataset.external or any(name != "." for name in sources):
        raise TypeError(
            "its elements lie in other files, which the file names: copy them into it, or give "
            "convert other_files=True (--other-files) if you trust whoever made it"
        )


def _element_dtype(dataset: Any) -> tuple[np.dtype[Any], bool]:
    """Dtype of the elements as NumPy has it, and whether they are UTF-8."""
    h5py = require("convert", "h5py")
    if dataset.shape is None:
        raise TypeError("it is empty: it has a type, and no shape")
    dtype = dataset.dtype
    if h5py.check_string_dtype(dtype) is not None:
        text = h5py.check_string_dtype(dtype)
        if text.length is None:
            raise TypeError(
                "strings of any length have no fixed size: write them with a dtype such as "
                'h5py.string_dtype("utf-8", 20) first'
            )
        if text.encoding == "utf-8":
            return np.dtype(f"U{text.length}"), True
        return np.dtype(f"S{text.length}"), False
    fields = [dtype] if dtype.names is None else [dtype[name] for name in dtype.names]
    for field in fields:
        if h5py.check_enum_dtype(field) is not None:
            raise TypeError("an enumeration: its names have no place in a frame; write integers")
    if dtype.kind == "O" or dtype.hasobject:
        raise TypeError(f"elements of {_object_kind(dtype)} have no fixed size")
    check_storable(dtype)
    return dtype, False


def _object_kind(dtype: Any) -> str:
    h5py = require("convert", "h5py")
    if h5py.check_ref_dtype(dtype) is not None:
        return "references"
    return "sequences of any length" if h5py.check_vlen_dtype(dtype) is not None else "objects"


def _attrs(node: Any, label: str, lost: list[str], *, squeeze: bool) -> dict[str, Any]:
    found = {}
    for name in node.attrs:
        if name in _BOOKKEEPING:
            continue
        try:
            found[name] = node.attrs[name]
        except (OSError, TypeError, ValueError) as error:
            lost.append(f"attribute {name!r} of {label} (it cannot be read: {error})")
    values = kept(found, label, lost)
    for name, value in values.items():
        single = np.shape(value) == (1,) and not isinstance(value, str)
        if single and (squeeze or name == "_FillValue"):
            values[name] = value[0]
    return values


def _is_bare_dim(dataset: Any) -> bool:
    name = dataset.attrs.get("NAME", b"")
    return isinstance(name, bytes) and name.startswith(_NO_VARIABLE)


def _dims(dataset: Any, label: str, lost: list[str]) -> tuple[str, ...] | None:
    """Names of the axes: of the scale that is attached to each."""
    if dataset.is_scale and dataset.ndim == 1:
        return (dataset.name.rpartition("/")[2],)
    names = [
        dim[0].name.rpartition("/")[2] if len(dim) else dim.label or None for dim in dataset.dims
    ]
    dims = full_dims(names, dataset.ndim)
    if dims is None and any(names):
        lost.append(f"names of dims of {label}, two of which are the same: {names}")
    return dims
