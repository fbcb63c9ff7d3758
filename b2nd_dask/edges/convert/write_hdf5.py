"""A tree as an HDF5 file with dimension scales for dims, as NetCDF-4 and xarray read them."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np

from b2nd_dask.edges.convert.read_hdf5 import BOOKKEEPING, NO_COORDINATE, NO_VARIABLE, plain
from b2nd_dask.edges.convert.shared import Copier, Options, compression_by_name
from b2nd_dask.edges.convert.zarr_store import element_of, pop_fill
from b2nd_dask.edges.datasets.tree import (
    Member,
    Tree,
    holds_bytes,
    keep_attrs,
    name_coordinates,
    refuse_paths,
    sizes_of,
)
from b2nd_dask.lazy import require

_UNITS = {
    "ns": "nanoseconds",
    "us": "microseconds",
    "ms": "milliseconds",
    "s": "seconds",
    "m": "minutes",
    "h": "hours",
    "D": "days",
}


def hdf5_writer(tree: Tree, options: Options, *, netcdf: bool = False) -> Callable[[Path], None]:
    """Convert a tree to types of h5py, and return the function that writes it into a new file.

    NetCDF-4 has fewer types. Raises TypeError if the file cannot hold the elements of a single
    array, ValueError if the compression is unknown, or if a dim of NetCDF has several lengths.
    """
    compression = _compression_of(options.cparams)
    refuse_paths(tree, r"\.?")
    for _, level in tree.levels() if netcdf else ():
        sizes_of(level)
    given = dict(tree.walk())
    tree.convert(_of_netcdf if netcdf else _with_numbers)
    for path, member in tree.walk():
        old, owner = given[path].attrs, path or tree.label
        replaced = [n for n, value in member.attrs.items() if n in old and value is not old[n]]
        tree.lost += [f"attribute {n!r} of {owner} (it describes the elements)" for n in replaced]
        if netcdf and member.array.dtype.kind == "c":
            tree.lost.append(f"complex numbers of {owner} for all readers (some see structs)")
    name_coordinates(tree)
    h5py = require("convert", "h5py")
    with h5py.File("attributes", "w", driver="core", backing_store=False) as trial:
        keep_attrs(tree, partial(_attr, trial.attrs))
    return partial(_write, tree, options, compression, netcdf)


def _of_netcdf(member: Member) -> Member:
    """The array with bytes for booleans, as xarray writes them, and numbers for times."""
    dtype = member.array.dtype
    if dtype.kind == "f" and dtype.itemsize not in (4, 8):
        # the NetCDF library crashes on such files
        raise TypeError(f"NetCDF has no type for {dtype}; convert by .astype('f4'), or write .h5")
    if dtype.kind != "b":
        return _with_numbers(member)
    return replace(member, array=member.array.astype("i1"), attrs={**member.attrs, "dtype": "bool"})


def _compression_of(cparams: Any) -> dict[str, Any]:
    """Arguments of h5py for compression: gzip, which all readers support."""
    codec, clevel, _ = compression_by_name({} if cparams is None else cparams, "zlib", 4)
    if codec not in ("zlib", "gzip"):
        raise ValueError(
            f"cparams={cparams!r}: HDF5 files are compressed by gzip, which every reader supports; "
            'give {"codec": "zlib", "clevel": N} or omit it'
        )
    return {"compression": "gzip", "compression_opts": clevel, "shuffle": True}


def _with_numbers(member: Member) -> Member:
    """The array with numbers for times, and CF's units as attributes.

    Raises TypeError if CF does not have the unit, or HDF5 not the dtype.
    """
    array, dtype, attrs = member.array, member.array.dtype, dict(member.attrs)
    if dtype.kind in "mM":
        unit, step = np.datetime_data(dtype)
        if unit not in _UNITS or step != 1:
            raise TypeError(f"HDF5 has no type for {dtype}; convert by .astype('{dtype.kind}8[s]')")
        native = array.astype(dtype.newbyteorder("="))
        # NaT becomes the smallest integer
        numbers = da.map_blocks(np.ndarray.view, native, "i8", dtype="i8", meta=np.empty(0, "i8"))
        attrs["_FillValue"] = np.iinfo("i8").min
        if dtype.kind == "M":
            attrs |= {
                "units": f"{_UNITS[unit]} since 1970-01-01",
                "calendar": "proleptic_gregorian",
            }
        else:
            # without the dtype xarray reads them as integers
            attrs |= {"units": _UNITS[unit], "dtype": f"timedelta64[{unit}]"}
        return replace(member, array=numbers, attrs=attrs)
    if dtype.kind != "U":
        try:
            require("convert", "h5py").h5t.py_create(dtype, logical=True)
        except TypeError:
            raise TypeError(f"HDF5 has no type for {dtype}") from None
    return member


def _attr(trial: Any, name: str, value: Any, member: Member | None) -> Any:
    """Convert an attribute to a type that h5py can store, as a trial shows."""
    if name in BOOKKEEPING:
        raise TypeError("HDF5 uses this name itself")
    if name == "_FillValue" and member is not None and member.array.dtype.kind in "iufc":
        value = element_of(value, member.array.dtype)
    if holds_bytes(value) and not isinstance(value, np.ndarray):
        # text as text, which CF readers expect; else of a fixed length, which is read as bytes
        leaves = np.array(value, object)
        if not all(isinstance(leaf, bytes) for leaf in leaves.flat):
            raise TypeError("HDF5 has no lists of bytes and other values")
        value = plain(leaves)
        if holds_bytes(value) and not any(leaf.endswith(b"\0") for leaf in leaves.flat):
            value = np.array(value)
    kind = np.asarray(value).dtype.kind
    if kind in "OmMV":
        raise TypeError(f"HDF5 has no type for {type(value).__name__}")
    if kind == "U" and not isinstance(value, str):
        value = np.array(value, object)
    try:
        trial[name] = value
        del trial[name]
    except (OSError, RuntimeError) as error:
        raise TypeError(str(error)) from error
    return value


def _write(
    tree: Tree, options: Options, compression: dict[str, Any], netcdf: bool, ready: Path
) -> None:
    h5py = require("convert", "h5py")
    with SurvivingFile(ready) as disk:
        copier = Copier(tree, options)
        with h5py.File(disk, "w", track_order=True) as file:
            for path, level in tree.as_group().levels():
                group = file.create_group(path, track_order=True) if path else file
                group.attrs.update(level.attrs)
                made = {}
                dims = {dim for member in level.members.values() for dim in member.dims or ()}
                for name, member in level.members.items():
                    how = {"chunks": options.chunks_of(member.array), **compression}
                    # in NetCDF the scale of a dim needs the name of the dim
                    is_namesake = netcdf and name in dims and member.dims != (name,)
                    stored = f"{NO_COORDINATE}{name}" if is_namesake else name
                    made[name] = _created(member, stored, group, how)
                    copier.copy(member, _Target(made[name], disk, name))
                _name_dims(level, group, made)
        disk.check()


def _name_dims(tree: Tree, group: Any, made: dict[str, Any]) -> None:
    scales = {name: made[name] for name, each in tree.members.items() if each.dims == (name,)}
    taken = {*group, *tree.groups, "."}
    for name, scale in scales.items():
        scale.make_scale(name)
    for name, member in tree.members.items():
        for axis, dim in enumerate(member.dims or ()):
            if dim not in scales and (dim in taken or "/" in dim):
                # the name of an array that is no scale, of a group, or a path: no scale can have it
                made[name].dims[axis].label = dim
                continue
            if dim not in scales:
                size = member.array.shape[axis]
                most = None if axis in member.unlimited else size
                scales[dim] = group.create_dataset(dim, (size,), "f4", maxshape=(most,))
                scales[dim].make_scale(f"{NO_VARIABLE}. {size:>10}")
            if member.dims != (name,):
                made[name].dims[axis].attach_scale(scales[dim])


def _created(member: Member, name: str, group: Any, how: dict[str, Any]) -> Any:
    """Create the target dataset."""
    array, attrs = member.array, dict(member.attrs)
    dtype: Any = array.dtype
    if dtype.kind == "U":
        # of any length, as NetCDF has them: xarray takes texts of a fixed length for bytes
        dtype = require("convert", "h5py").string_dtype()
    cut = how if array.size and array.ndim else {}
    fill = attrs.get("_FillValue") if array.dtype.kind in "iufc" else None
    if fill is None:
        fill = pop_fill(attrs, array.dtype)
    if member.unlimited:
        most = (None if axis in member.unlimited else n for axis, n in enumerate(array.shape))
        cut = {**cut, "maxshape": tuple(most)}
    dataset = group.create_dataset(name, array.shape, dtype, fillvalue=fill, **cut)
    dataset.attrs.update(attrs)
    return dataset


class _Target:
    """A dataset as a target: converts text for h5py, and raises the file's write errors."""

    def __init__(self, dataset: Any, disk: SurvivingFile, name: str) -> None:
        self._dataset, self._disk, self._name = dataset, disk, name

    def __setitem__(self, region: Any, elements: Any) -> None:
        if elements.dtype.kind == "U":
            elements = elements.astype(object)
            if any("\0" in text for text in elements.flat):
                raise ValueError(f"{self._name}: HDF5 cannot hold text with NUL characters")
        self._dataset[region] = elements
        self._disk.check()


class SurvivingFile(io.FileIO):
    """A new file for h5py that hides failed writes from HDF5.

    If HDF5 cannot write its last bytes, it cannot close the file, and crashes at the end of the
    process. So after the first error nothing more is written; `check` raises this error.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "x+")
        self._error: OSError | None = None

    def check(self) -> None:
        """Raise the error of the first write that failed."""
        if self._error is not None:
            raise self._error

    def write(self, data: Any) -> int:
        """Write all bytes; do nothing after the first error."""
        rest = memoryview(data).cast("B")
        try:
            while rest and self._error is None:
                rest = rest[super().write(rest) :]
        except OSError as error:
            self._error = error
        return len(data)

    def readinto(self, into: Any) -> int:
        """Fill a buffer from the file, with zeros behind its end."""
        rest = memoryview(into).cast("B")
        while rest and (count := super().readinto(rest)):
            rest = rest[count:]
        rest[:] = bytes(len(rest))
        return len(into)

    def truncate(self, size: int | None = None) -> int:
        """Set the length of the file; do nothing after the first error."""
        try:
            if self._error is None:
                super().truncate(size)
        except OSError as error:
            self._error = error
        return size or 0
