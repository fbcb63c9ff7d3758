"""What cannot be converted is an error before anything is written."""

from __future__ import annotations

import json
import re
import warnings
import zipfile
from pathlib import Path
from typing import Any

import blosc2
import numpy as np
import pytest

import b2nd_dask
from b2nd_dask import convert, open_b2nd, to_b2nd
from tests.edges.convert.samples import RNG, names
from tests.servers import HttpServer

zarr = pytest.importorskip("zarr", reason="of the extra convert")
h5py = pytest.importorskip("h5py", reason="of the extra convert")
xr = pytest.importorskip("xarray", reason="of the extra convert")


def test_what_frames_cannot_hold_is_an_error_before_anything_is_written(tmp_path: Path) -> None:
    with h5py.File("src.h5", "w") as file:
        file["good"] = np.arange(4)
        file.create_dataset("list", 2, h5py.vlen_dtype("i4"))
        file["link"] = np.array([file["good"].ref], h5py.ref_dtype)
        file["kind"] = np.zeros(3, h5py.enum_dtype({"A": 0, "B": 1}, "i4"))
        file["empty"] = h5py.Empty("f4")
    before = names(tmp_path)
    with pytest.raises(TypeError) as error:
        convert("src.h5", "new.b2d")
    enum = "kind: a frame cannot hold the names of an enum"
    lists = "src.h5/list: elements of sequences"
    for text in (lists, "link: elements of references", enum, "empty"):
        assert text in str(error.value)
    assert "skip=True" in str(error.value)
    assert names(tmp_path) == before
    with pytest.raises(TypeError, match=r"^src\.h5/list: elements of sequences"):
        convert("src.h5::list", "list.b2nd")
    with pytest.warns(UserWarning, match=r"left out.*src\.h5/list"):
        convert("src.h5", "new.b2d", skip=True)
    assert names(tmp_path / "new.b2d") == {"good.b2nd", "dataset.json", "embed.b2e"}


@pytest.mark.parametrize(
    ("target", "values"),
    [
        # the NetCDF library crashes on files with float16
        ("new.nc", np.arange(3, dtype="f2")),
        ("new.h5", np.zeros(3, [("a", "U2"), ("b", "i4")])),
        ("new.zarr", np.zeros(3, [("a", "i4", (3,)), ("b", "f4")])),
    ],
)
def test_what_a_target_cannot_hold_is_left_out(target: str, values: Any) -> None:
    to_b2nd(xr.Dataset({"good": ("y", np.arange(4)), "bad": ("x", values)}), "src.b2d")
    with pytest.raises(TypeError, match=r"^src\.b2d/bad: .* has no type for .*skip=True"):
        convert("src.b2d", target)
    with pytest.warns(UserWarning, match="left out: src.b2d/bad"):
        convert("src.b2d", target, skip=True, check=True)
    file: Any = zarr.open(target) if target.endswith(".zarr") else h5py.File(target)
    assert file["good"][...].tolist() == [0, 1, 2, 3]
    assert "bad" not in file
    to_b2nd(values, "bad.b2nd")
    with pytest.raises(TypeError, match=r"bad\.b2nd: .* has no type for"):
        convert("bad.b2nd", f"single{Path(target).suffix}")


def test_a_classic_netcdf_file_is_opened_by_xarray() -> None:
    Path("old.nc").write_bytes(b"CDF\x01" + bytes(28))
    with pytest.raises(ValueError, match=r"open_dataset\(PATH\)\.b2nd\.to_b2nd\(TARGET\)"):
        convert("old.nc", "new.b2d")


def test_coordinates_that_do_not_fit_into_a_frame_are_refused_first() -> None:
    with h5py.File("src.h5", "w") as file:
        for name in ("v", "x"):
            file[name] = np.zeros(1 << 22)
        file["x"].make_scale()
        file["v"].dims[0].attach_scale(file["x"])
        file["v"].attrs["ref"] = file["x"].ref
    # not after a warning about the lost attribute, which would fail here
    with pytest.raises(ValueError, match="coordinates, of which 'x'"):
        convert("src.h5", "new.b2nd")


def test_arrays_of_npz_that_do_not_fit_are_named() -> None:
    np.savez("src.npz", a=np.zeros(3), none=np.empty(2, "V0"))
    with pytest.raises(TypeError, match=r"^src\.npz/none: elements of"):
        convert("src.npz", "new.b2d")


def test_attributes_that_do_not_fit_are_named() -> None:
    with h5py.File("src.h5", "w") as file:
        file.create_dataset("x", data=np.arange(4), maxshape=(None,))
        file["x"].attrs["ref"] = file["x"].ref
        file["x"].attrs["kept"] = np.float32(0.5)
    with pytest.warns(UserWarning, match=r"'ref' of src\.h5/x.*unlimited|unlimited.*'ref'"):
        convert("src.h5", "x.b2nd")
    kept = xr.open_dataarray("x.b2nd", engine="b2nd").attrs["kept"]
    assert (kept, kept.dtype) == (0.5, np.float32)
    with pytest.warns(UserWarning, match="attributes of .*kept"):
        convert("x.b2nd", "x.npy")


def test_attributes_that_only_hdf5_cannot_hold_are_named() -> None:
    attrs: dict[str, Any] = {"good": 1, "nul": "a\0b", "": 2, "mixed": ["a", 1], "NAME": "own"}
    attrs["large"] = np.zeros(9000)
    to_b2nd(np.arange(3), "src.b2nd", vlmeta={"dims": ["x"], "b2nd.attrs": attrs})
    for name in ("nul", "mixed", "NAME", "large"):
        with pytest.warns(UserWarning, match=f"new.h5 cannot hold: .*'{name}' of src.b2nd"):
            convert("src.b2nd", "new.h5", overwrite=True)
    with h5py.File("new.h5") as file:
        assert {"good", "DIMENSION_LIST"} == set(file["values"].attrs)
    attrs = {"text": b"K", "raw": b"\xb0C", "nul": b"\xb0\0"}
    to_b2nd(np.arange(3), "bytes.b2nd", vlmeta={"dims": ["x"], "b2nd.attrs": attrs})
    with pytest.warns(UserWarning, match=r"bytes in .*'text' of bytes.b2nd.*'nul' of bytes.b2nd"):
        convert("bytes.b2nd", "bytes.h5")
    with h5py.File("bytes.h5") as file:
        found = dict(file["values"].attrs)
        assert (found["text"], bytes(found["raw"])) == ("K", b"\xb0C")
        assert "nul" not in found
    convert("bytes.h5", "back.b2nd")
    back = xr.open_dataarray("back.b2nd", engine="b2nd").attrs
    assert back == {"text": "K", "raw": b"\xb0C"}
    to_b2nd(np.arange(3), "list.b2nd", vlmeta={"dims": ["x"], "b2nd.attrs": {"a": np.array(["b"])}})
    convert("list.b2nd", "list.h5")
    with h5py.File("list.h5") as file:
        assert file["values"].attrs["a"].tolist() == ["b"]


def test_lists_of_bytes_as_attributes_of_hdf5() -> None:
    attrs = {"raw": [b"a", b"\xff\xfe"], "text": [b"K", b"m"], "nul": [b"a\0"], "mixed": [1, b"a"]}
    to_b2nd(np.arange(3), "src.b2nd", vlmeta={"dims": ["x"], "b2nd.attrs": attrs})
    with pytest.warns(UserWarning, match=r"'text' .*'nul' .*'mixed' .* no lists of bytes"):
        convert("src.b2nd", "new.h5")
    with h5py.File("new.h5", "a") as file:
        assert file["values"].attrs["text"].tolist() == ["K", "m"]
        file["values"].attrs["any length"] = np.array([b"\xb0C", b"m"], object)
    convert("new.h5", "back.b2nd")
    back = xr.open_dataarray("back.b2nd", engine="b2nd").attrs
    assert back == {"raw": attrs["raw"], "text": ["K", "m"], "any length": [b"\xb0C", b"m"]}


@pytest.mark.parametrize(
    ("suffix", "dtype", "fill"),
    [("h5", "i2", 70_000), ("h5", "i2", "none"), ("zarr", "i2", 2.5), ("zarr", "?", 2)],
)
def test_a_fill_value_that_does_not_fit_is_named(suffix: str, dtype: str, fill: Any) -> None:
    attrs = {"b2nd.attrs": {"_FillValue": fill}}
    to_b2nd(np.arange(3).astype(dtype), "src.b2nd", vlmeta=attrs)
    with pytest.warns(UserWarning, match=f"new.{suffix} cannot hold: .*'_FillValue' of src.b2nd"):
        convert("src.b2nd", f"new.{suffix}")


@pytest.mark.parametrize(
    ("suffix", "dtype", "name"),
    [
        ("h5", "M8[s]", "units"),
        ("nc", "M8[s]", "calendar"),
        ("h5", "m8[s]", "_FillValue"),
        ("nc", "?", "dtype"),
    ],
)
def test_attributes_that_describe_the_elements_are_named(
    suffix: str, dtype: str, name: str
) -> None:
    attrs = {"b2nd.attrs": {name: "mine", "other": "kept"}}
    to_b2nd(np.arange(3).astype(dtype), "src.b2nd", vlmeta=attrs)
    with pytest.warns(UserWarning, match=f"cannot hold: attribute '{name}' of src.b2nd"):
        convert("src.b2nd", f"new.{suffix}")


def test_complex_numbers_in_netcdf_are_named() -> None:
    np.save("src.npy", np.array([1 + 2j, 3]))
    with pytest.warns(UserWarning, match=r"new.nc cannot hold: complex numbers of src.npy for all"):
        convert("src.npy", "new.nc", check=True)


@pytest.mark.parametrize("suffix", ["zarr", "h5"])
@pytest.mark.parametrize(
    ("dtype", "fill"),
    [
        ("f8", "none"),
        ("f8", [1, 2]),
        ("i2", float("nan")),
        ("?", "none"),
        ("U3", "none"),
        ("i2", 0),
    ],
)
def test_a_fill_value_that_is_none_is_an_attribute(suffix: str, dtype: str, fill: Any) -> None:
    attrs = {"fill_value": fill, "_FillValue": "n"}
    to_b2nd(np.zeros(3, dtype), "src.b2nd", vlmeta={"dims": ["x"], "attrs": json.dumps(attrs)})
    with warnings.catch_warnings():
        # of a _FillValue that is no number
        warnings.simplefilter("ignore")
        convert("src.b2nd", f"new.{suffix}", check=True)
        convert(f"new.{suffix}", "back.b2nd")
    found = json.loads(open_b2nd("back.b2nd").vlmeta["attrs"])
    np.testing.assert_equal(found["fill_value"], fill)


@pytest.mark.parametrize("suffix", ["zarr", "zarr.zip", "h5"])
def test_arrays_without_a_path_of_their_own_are_refused(suffix: str) -> None:
    bad = ["a", "", ".", "x/", "g//y"] + ([] if suffix == "h5" else ["zarr.json", "g/zarr.json"])
    np.savez("src.npz", good=np.arange(2), **dict.fromkeys([*bad, "a/b"], np.arange(3)))
    before = names(Path())
    with pytest.raises(TypeError, match=r"src\.npz/a: a group has this path.*skip=True"):
        convert("src.npz", f"new.{suffix}")
    assert names(Path()) == before
    with pytest.warns(UserWarning, match="left out") as warned:
        convert("src.npz", f"new.{suffix}", skip=True, check=True)
    assert str(warned[0].message).count("src.npz/") == len(bad)
    convert(f"new.{suffix}", "back.npz")
    assert set(np.load("back.npz")) == {"good", "a/b"}


@pytest.mark.parametrize("suffix", ["zarr", "zarr.zip"])
def test_names_in_which_zarr_takes_backslashes_for_slashes_are_refused(suffix: str) -> None:
    with h5py.File("src.h5", "w") as file:
        for name in ("a\\b", "g\\h/x", "good"):
            file[name] = np.arange(3)
    with pytest.raises(TypeError, match=r"^src\.h5/g\\h: .* a reserved .*; src\.h5/a\\b: "):
        convert("src.h5", f"new.{suffix}")
    with pytest.warns(UserWarning, match="left out"):
        convert("src.h5", f"new.{suffix}", skip=True, check=True)
    convert(f"new.{suffix}", "back.npz")
    assert set(np.load("back.npz")) == {"good"}


@pytest.mark.parametrize("suffix", ["zarr", "zarr.zip", "h5"])
def test_an_array_and_a_group_of_one_name(suffix: str) -> None:
    Path("src.b2d/a").mkdir(parents=True)
    to_b2nd(np.arange(3), "src.b2d/a.b2nd")
    to_b2nd(np.arange(4), "src.b2d/a/b.b2nd")
    with pytest.raises(TypeError, match=r"^src\.b2d/a: a group has this path"):
        convert("src.b2d", f"new.{suffix}")
    with pytest.warns(UserWarning, match=r"left out: src\.b2d/a: a group"):
        convert("src.b2d", f"new.{suffix}", skip=True, check=True)
    with pytest.raises(ValueError, match=r"^src\.b2d: 'a' is an array and a group"):
        convert("src.b2d", "new.b2z")


def test_a_group_with_the_name_of_a_file_of_zarr() -> None:
    with h5py.File("src.h5", "w") as file:
        file["g/zarr.json/x"], file["g/y"] = np.arange(3), np.arange(4)
        file["c"], file["g/.zarray"] = np.arange(5), np.arange(6)
    with pytest.raises(TypeError, match=r"^src\.h5/g/zarr\.json: it has a reserved name"):
        convert("src.h5", "new.zarr")
    with pytest.warns(UserWarning, match=r"left out: src\.h5/g/zarr\.json: it has a reserved name"):
        convert("src.h5", "new.zarr", skip=True, check=True)
    assert {name for name, _ in zarr.open_group("new.zarr")["g"].members()} == {"y", ".zarray"}


def test_names_that_no_file_can_have() -> None:
    with h5py.File("src.h5", "w") as file:
        file[".hidden"] = np.arange(4)
    with pytest.raises(ValueError, match=r"'\.hidden' cannot be the name of a file"):
        convert("src.h5", "new.b2d")
    zarr.create_array("a.zarr", data=np.arange(3))
    for bad, text in (
        (("a.zarr", "new.tiff"), "target_format="),
        (("a.zarr", "s3://bucket/new.b2nd"), "must be a local path"),
        (("https://host/a.h5", "new.b2nd"), "download"),
        (("a.zarr", "new.b2e"), "only read"),
        (("a.zarr", "new.caterva"), "only read"),
        (("none.h5", "new.b2nd"), "No such file or directory: 'none.h5'"),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=text):
            convert(*bad)


@pytest.mark.parametrize("target", ["inner/new.b2d", "inner/new.b2z"])
def test_the_name_of_an_array_leads_to_no_other_folder(tmp_path: Path, target: str) -> None:
    to_b2nd(np.arange(4), "src.b2nd", vlmeta={"dims": ["x"], "var": "../../../out"})
    (tmp_path / "inner").mkdir()
    with pytest.raises(ValueError, match=r"'\.\./.*' cannot be the name of a file"):
        convert("src.b2nd", target)
    assert names(tmp_path) == {"src.b2nd", "inner"}
    assert not names(tmp_path / "inner")


def test_a_target_is_replaced_only_when_asked() -> None:
    np.save("x.npy", np.arange(5))
    convert("x.npy", "x.b2nd")
    np.save("x.npy", np.arange(7))
    with pytest.raises(FileExistsError, match="overwrite"):
        convert("x.npy", "x.b2nd")
    assert open_b2nd("x.b2nd").shape == (5,)
    convert("x.npy", "x.b2nd", overwrite=True)
    assert open_b2nd("x.b2nd").shape == (7,)
    convert("x.npy", "x.zarr")
    convert("x.npy", "x.zarr", overwrite=True, chunks=3)
    assert zarr.open("x.zarr").chunks == (3,)
    assert not [name for name in names(Path()) if name.startswith(".")]


@pytest.mark.parametrize("kind", ["npy", "h5", "zarr", "npz", "zarr.json", "b2nd"])
def test_damaged_sources(kind: str, tmp_path: Path) -> None:
    values = RNG.random((50, 40))
    source = tmp_path / f"src.{kind}"
    if kind == "npy":
        np.save(source, values)
    elif kind == "npz":
        np.savez(source, x=values)
    elif kind == "b2nd":
        to_b2nd(values, source)
    elif kind == "h5":
        with h5py.File(source, "w") as file:
            file["x"] = values
    else:
        source = tmp_path / "src.zarr"
        group = zarr.open_group(source, mode="w")
        group.create_array("x", data=values, chunks=(50, 40))
        name = "c/0/0" if kind == "zarr" else "zarr.json"
        raw = (source / "x" / name).read_bytes()
        (source / "x" / name).write_bytes(raw[: len(raw) // 2])
    if source.is_file():
        raw = source.read_bytes()
        source.write_bytes(raw[: len(raw) // 2])
    before = names(tmp_path)
    with pytest.raises((ValueError, OSError), match=rf"{re.escape(source.name)}\b"):
        convert(source, "new.b2d")
    assert names(tmp_path) == before


def test_a_text_is_not_an_array_of_numpy(tmp_path: Path) -> None:
    Path("notes.npy").write_text("elements in km")
    with pytest.raises(
        ValueError, match=r"^notes\.npy: it is not a \.npy file, or.*damaged"
    ) as error:
        convert("notes.npy", "new.b2d")
    assert "pickle" not in str(error.value)


@pytest.mark.parametrize("kind", ["npy", "npz", "h5", "zarr"])
def test_errors_of_damaged_files_name_these(kind: str, tmp_path: Path) -> None:
    source = tmp_path / f"src.{kind}"
    values = RNG.integers(0, 9, (40, 30))
    if kind == "npy":
        np.save(source, values)
    elif kind == "npz":
        np.savez_compressed(source, x=values)
    elif kind == "h5":
        with h5py.File(source, "w") as file:
            file.create_dataset("g/x", data=values, chunks=(10, 30), compression="gzip")
    else:
        zarr.open_group(source, mode="w").create_array("g/x", data=values, chunks=(10, 30))
    files = [path for path in [source, *sorted(source.rglob("*"))] if path.is_file()]
    for number in range(150):
        damaged = files[number % len(files)]
        before = damaged.read_bytes()
        raw = bytearray(before)
        at = RNG.integers(0, len(raw))
        raw[at : at + RNG.integers(1, 20)] = b""
        damaged.write_bytes(raw)
        try:
            convert(source, tmp_path / "new.b2d", overwrite=True)
        except (ValueError, TypeError, OSError) as error:
            assert source.name in str(error)  # noqa: PT017 - most damage is found, not all
        damaged.write_bytes(before)


def test_elements_without_bytes(tmp_path: Path) -> None:
    header = {"descr": "|V0", "fortran_order": False, "shape": (10**12,)}
    with Path("x.npy").open("wb") as file:
        np.lib.format.write_array_header_2_0(file, header)
    with pytest.raises(TypeError, match=r"x\.npy: elements of \|V0 are 0 bytes long"):
        convert("x.npy", "x.b2nd")


def test_hostile_files_of_hdf5(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(16))
    with h5py.File("src.h5", "w") as file:
        file["g/x"] = np.arange(4)
        file["g/again"] = file["g"]
        file["red\x1b[31m"] = np.arange(3)
        file["red\x1b[31m"].attrs["a\x1b"] = file["g"].ref
        file.create_dataset("out", (4,), "i4", external=[("secret", 0, 16)])
        file["soft"] = h5py.SoftLink("/g/x")
    with pytest.raises(ValueError, match=r"red.* cannot be the name of a file") as error:
        convert("src.h5", "new.b2d")
    assert "\x1b" not in str(error.value)
    with pytest.raises(TypeError, match=r"src\.h5/out: its elements lie in other files"):
        convert("src.h5", "new.zarr")
    with pytest.warns(UserWarning, match="cannot hold") as warned:
        convert("src.h5", "new.zarr", skip=True)
    (text,) = (str(each.message) for each in warned if "cannot hold" in str(each.message))
    assert "g/again, which is another name of a group" in text
    assert "src.h5/soft, which is a soft or external link" in text
    assert "\x1b" not in text
    assert list(zarr.open_group("new.zarr")["g"]) == ["x"]


def test_elements_in_other_files_are_read_only_when_asked(tmp_path: Path) -> None:
    with h5py.File("secret.h5", "w") as file:
        file["x"] = np.arange(4)
    layout = h5py.VirtualLayout((4,), "i8")
    layout[:] = h5py.VirtualSource("secret.h5", "x", shape=(4,))
    with h5py.File("src.h5", "w") as file:
        file.create_virtual_dataset("x", layout)
    zarr.create_array("secret.zarr", data=np.arange(4), chunks=(4,), compressors=None)
    zarr.create_array("src.zarr", data=np.zeros(4, "i8"), chunks=(4,), compressors=None)
    chunk = tmp_path / "src.zarr" / "c" / "0"
    chunk.parent.mkdir()  # zarr has written no chunk of zeros
    chunk.symlink_to(tmp_path / "secret.zarr" / "c" / "0")
    Path("whole.zarr").symlink_to("secret.zarr")
    for source in ("src.h5", "src.zarr"):
        with pytest.raises((TypeError, ValueError), match=rf"{source}.*other_files=True"):
            convert(source, "new.b2d" if source == "src.h5" else "new.b2nd")
    with h5py.File("src.h5") as file, pytest.raises(TypeError, match="other_files"):
        to_b2nd(file, "new.b2d")
    for source in ("src.h5::x", "src.zarr", "whole.zarr"):
        convert(source, "new.b2nd", other_files=source != "whole.zarr", overwrite=True)
        np.testing.assert_array_equal(open_b2nd("new.b2nd"), np.arange(4))


def _tree(path: Path) -> None:
    inner = xr.Dataset({"b": ("t", np.arange(4.0))})
    to_b2nd(xr.DataTree.from_dict({"/": xr.Dataset({"a": ("t", np.ones(4))}), "/g": inner}), path)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("tree.b2d::/g", "tree.b2d"),
        ("tree.b2d", "tree.b2d"),
        ("tree.b2d", "./tree.b2d/../tree.b2d/"),
        ("tree.b2d", "link.b2d"),
        ("link.b2d", "tree.b2d"),
        ("tree.b2d/a.b2nd", "tree.b2d"),
        ("tree.b2d/g/b.b2nd", "link.b2d"),
        ("tree.b2d::/g", "tree.b2d/new.b2d"),
        ("tree.b2d", "tree.b2d/g/new.h5"),
        ("x.npy", "x.npy"),
    ],
)
def test_source_and_target_are_apart(tmp_path: Path, source: str, target: str) -> None:
    np.save("x.npy", np.arange(5))
    _tree(tmp_path / "tree.b2d")
    Path("link.b2d").symlink_to("tree.b2d")
    before = {each: each.is_file() and each.read_bytes() for each in tmp_path.rglob("*")}
    for start in ("", f"file://{tmp_path}/", f"local://{tmp_path}/"):
        if start and "npy" in source:
            continue
        with pytest.raises(ValueError, match=r"the same|inside the other"):
            convert(start + source, target, overwrite=True)
        after = {each: each.is_file() and each.read_bytes() for each in tmp_path.rglob("*")}
        assert after == before


def test_neighbours_are_apart(tmp_path: Path) -> None:
    _tree(tmp_path / "tree.b2d")
    convert("tree.b2d/a.b2nd", "tree.b2d.h5")
    with h5py.File("tree.b2d.h5") as file:
        np.testing.assert_array_equal(file["a"], np.ones(4))
    convert("tree.b2d", "tree.b2d2", target_format="b2d", check=True)


@pytest.mark.parametrize("kind", ["h5", "zarr"])
def test_names_of_dims_that_are_the_same_are_a_named_loss(kind: str) -> None:
    if kind == "h5":
        with h5py.File("src.h5", "w") as file:
            file["x"] = np.ones((2, 2))
            for dim in file["x"].dims:
                dim.label = "same"
    else:
        zarr.create_array("src.zarr/x", data=np.ones((2, 2)), dimension_names=("same", "same"))
        zarr.open_group("src.zarr", mode="a")
    loss = rf"cannot hold: names of dims of src\.{kind}/x, since .* \['same', 'same'\]"
    with pytest.warns(UserWarning, match=loss):
        convert(f"src.{kind}", "new.b2d")


def test_a_dim_of_several_lengths_is_refused_in_netcdf() -> None:
    """The NetCDF library would add elements to the shorter array."""
    for name, length in (("a", 4), ("b", 2)):
        zarr.create_array(f"src.zarr/{name}", data=np.ones(length), dimension_names=("x",))
    zarr.open_group("src.zarr", mode="a")
    with pytest.raises(ValueError, match=r"the dim 'x' has the length 4 in 'a' and 2 in 'b'"):
        convert("src.zarr", "new.nc")
    convert("src.zarr", "new.h5", check=True)


def test_a_part_of_a_file_does_not_replace_the_others() -> None:
    np.save("x.npy", np.arange(5))
    with h5py.File("o.h5", "w") as file:
        file["a"], file["b"] = np.arange(3), np.arange(4)
    for overwrite in (False, True):
        with pytest.raises(FileExistsError, match=r"file, not only /c; .*another file.*o\.h5"):
            convert("x.npy", "o.h5::/c", overwrite=overwrite)
    with h5py.File("o.h5") as file:
        assert list(file) == ["a", "b"]
    convert("x.npy", "new.h5::/c", overwrite=True)
    with h5py.File("new.h5") as file:
        assert list(file) == ["c"]


def test_virtual_datasets_of_the_file_itself(tmp_path: Path) -> None:
    layout = h5py.VirtualLayout((2, 4), "f8")
    with h5py.File("own.h5", "w") as file:
        file["a"] = np.arange(4.0)
        layout[0] = h5py.VirtualSource(file["a"])
        layout[1] = h5py.VirtualSource(".", "a", (4,))
        file.create_virtual_dataset("both", layout)
        # also of virtual datasets
        layout = h5py.VirtualLayout((4,), "f8")
        layout[:] = h5py.VirtualSource(file["both"])[1]
        file.create_virtual_dataset("g/nested", layout)
    convert("own.h5", "own.b2d")
    assert open_b2nd("own.b2d/both.b2nd")[...].tolist() == [[0, 1, 2, 3]] * 2
    assert open_b2nd("own.b2d/g/nested.b2nd")[...].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "source",
    # HDF5 expands % in names, and ends the process at a cycle
    ["external", "link/x", "soft", "nested", "none", "a%%", "x", "//a", ".", ""],
)
def test_virtual_datasets_reach_no_other_file_by_datasets_of_their_own(source: str) -> None:
    Path("secret").write_bytes(bytes(16))
    with h5py.File("secret.h5", "w") as file:
        file["x"] = np.arange(4, dtype="i4")
    with h5py.File("src.h5", "w") as file:
        file.create_dataset("external", (4,), "i4", external=[("secret", 0, 16)])
        file["link"] = h5py.ExternalLink("secret.h5", "/")
        file["soft"] = h5py.SoftLink("/link/x")
        file["a%%"] = np.zeros(4, "i4")
        file["a%"] = h5py.ExternalLink("secret.h5", "/x")
        for name, its_source in (("nested", "external"), ("x", source)):
            layout = h5py.VirtualLayout((4,), "i4")
            layout[:] = h5py.VirtualSource(".", its_source, (4,), "i4")
            file.create_virtual_dataset(name, layout, fillvalue=-1)
    with pytest.raises(TypeError, match=r"^src\.h5/x: its elements lie in other files"):
        convert("src.h5::x", "new.npy")


def test_a_name_with_a_slash_leads_through_no_link() -> None:
    with h5py.File("secret.h5", "w") as file:
        file["d"] = np.arange(4)
    # the old format, which has no checksums
    with h5py.File("src.h5", "w", libver="earliest") as file:
        file["x"] = h5py.ExternalLink("secret.h5", "/")
        file["own"] = file["x_d"] = np.zeros(4)
    path = Path("src.h5")
    path.write_bytes(path.read_bytes().replace(b"x_d", b"x/d"))
    with pytest.warns(UserWarning, match=r"src\.h5/x/d, which is .* or has a / in its name"):
        convert(path, "new.npz")
    assert np.load("new.npz").files == ["own"]
    with pytest.raises(FileNotFoundError):
        convert("src.h5::x/d", "new.npy")


def test_pickled_elements_of_zarr_are_not_read() -> None:
    codecs = [{"id": "vlen-utf8"}, {"id": "pickle", "protocol": 4}]
    array = {"zarr_format": 2, "shape": [4], "chunks": [4], "dtype": "|O", "compressor": None}
    Path("src.zarr").mkdir()
    array |= {"fill_value": None, "order": "C", "filters": codecs}
    Path("src.zarr", ".zarray").write_text(json.dumps(array))
    Path("src.zarr", "0").write_bytes(b"cos\nsystem\n(S'touch ran'\ntR.")
    with pytest.raises(TypeError, match="run code of their author"):
        convert("src.zarr", "new.b2nd")


@pytest.mark.parametrize("prefix", ["", "./", "file://{}/", "local://{}/"])
def test_links_in_zarr_by_any_name(tmp_path: Path, prefix: str) -> None:
    zarr.create_array("other.zarr", data=np.arange(3))
    zarr.create_group("link.zarr")
    Path("link.zarr/x").symlink_to(Path("other.zarr").resolve())
    path = prefix.format(Path.cwd()) + "link.zarr"
    with pytest.raises(ValueError, match=rf"^{re.escape(path)}: the link .*out of it") as error:
        convert(path, "new.b2d")
    assert "damaged" not in str(error.value)


@pytest.mark.parametrize("name", ["./no.zarr", "no.zarr", "./no.npy", "./no.h5"])
def test_what_is_not_there(tmp_path: Path, name: str) -> None:
    with pytest.raises(FileNotFoundError, match=re.escape(name)) as error:
        convert(name, "new.b2d")
    assert str(error.value).count("Errno") <= 1


def test_a_short_name_is_not_taken_for_a_part_of_the_text(tmp_path: Path) -> None:
    zarr.create_array("e", data=np.arange(3))
    Path("e/zarr.json").write_text("{")
    with pytest.raises(ValueError, match=r"^e: it cannot be read"):
        convert("e", "new.b2nd", source_format="zarr")


def test_no_secret_of_a_url_is_shown(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp", reason="of the extra http")
    for url in ("http://127.0.0.1:9/a.zarr?token=hush", "http://me:hush@127.0.0.1:9/a.zarr"):
        with pytest.raises(Exception, match=r"127\.0\.0\.1:9/a\.zarr") as error:
            convert(url, "new.b2d")
        assert "hush" not in str(error.value)


@pytest.mark.parametrize(
    ("source", "options"),
    [
        ("refused.b2nd", {"target_format": "npy"}),
        ("refused.b2nd", {"target_format": "b2d", "max_mem": 1}),
        ("refused.b2nd", {"target_format": "b2d", "chunks": (1, 1)}),
        ("refused.b2nd", {"target_format": "b2d", "member": "other"}),
        ("refused.b2nd::one", {"target_format": "b2d", "member": "other"}),
        ("a.unknown", {"target_format": "b2d"}),
        ("a.zarr", {"target_format": "b2d"}),
    ],
)
def test_what_is_wrong_with_a_url_is_said_without_its_secrets(
    http_server: HttpServer, source: str, options: dict[str, Any]
) -> None:
    to_b2nd(np.arange(4), http_server.folder / "refused.b2nd", mode="w", vlmeta={"kept": 1})
    name, mark, inner = source.partition("::")
    url = f"{http_server.url}/{name}?token=hush{mark}{inner}"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises((ValueError, OSError, UserWarning)) as error:
            convert(url, "new", **options)
    assert f"{http_server.url}/{name}" in str(error.value)
    assert "hush" not in str(error.value)


@pytest.mark.parametrize("shape", [(1 << 60, 1), (1 << 60, 0)])
@pytest.mark.parametrize("name", ["large.h5", "large.zarr"])
def test_small_files_of_very_large_arrays(name: str, shape: tuple[int, ...]) -> None:
    how = {"shape": shape, "dtype": "u1", "chunks": (1 << 20, 1)}
    if name == "large.h5":
        with h5py.File(name, "w") as file:
            file["small"] = np.arange(3)
            file.create_dataset("large", maxshape=(1 << 60, None), **how)
    else:
        zarr.create_array(name, name="small", data=np.arange(3))
        zarr.create_array(name, name="large", **how)
    with pytest.raises(TypeError, match=rf"^{name}/large: it has \d+ blocks"):
        convert(name, "new.b2d")
    with pytest.warns(UserWarning, match="left out"):
        convert(name, "new.b2d", skip=True)
    np.testing.assert_array_equal(open_b2nd("new.b2d/small.b2nd"), np.arange(3))


@pytest.mark.parametrize("name", ["deep.h5", "deep.zarr", "deep.b2z"])
def test_groups_in_very_many_others(name: str) -> None:
    def write(levels: int) -> None:
        key = "g/" * levels + "x"
        if name == "deep.h5":
            with h5py.File(name, "w") as file:
                file[key] = np.arange(3)
        elif name == "deep.zarr":
            zarr.create_array(name, name=key, data=np.arange(3), overwrite=True)
        else:
            with zipfile.ZipFile(name, "w") as archive:
                archive.writestr(f"{key}.b2nd", blosc2.asarray(np.arange(3)).to_cframe())

    write(32)
    convert(name, "new.b2d")
    inner = "/".join(["new.b2d", *"g" * 32, "x.b2nd"])
    np.testing.assert_array_equal(open_b2nd(inner), np.arange(3))
    write(33)
    with pytest.raises((TypeError, b2nd_dask.B2ndError), match=rf"{name}.*more than 32 others"):
        convert(name, "new.b2d", overwrite=True)
    assert names(Path("new.b2d")) >= {"g"}


def test_a_group_in_very_many_others_can_be_left_out() -> None:
    with h5py.File("deep.h5", "w") as file:
        file["g/" * 33 + "x"] = file["near"] = np.arange(3)
    with pytest.warns(UserWarning, match="the group lies in more than 32 others"):
        convert("deep.h5", "new.b2d", skip=True)
    np.testing.assert_array_equal(open_b2nd("new.b2d/near.b2nd"), np.arange(3))
    convert("deep.h5", "near.npy", member="near")
    np.testing.assert_array_equal(np.load("near.npy"), np.arange(3))


def test_a_home_in_the_path_of_source_and_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(Path.cwd()))
    xr.Dataset({name: ("n", [1, 2]) for name in "vw"}).b2nd.to_b2nd("d.b2d")
    with pytest.raises(ValueError, match="lies inside the other"):
        convert("~/d.b2d/v.b2nd", "~/d.b2d", overwrite=True)
    with pytest.raises(ValueError, match="source and target are the same"):
        convert("~/d.b2d", "~/d.b2d", overwrite=True)
    assert names(Path("d.b2d")) >= {"v.b2nd", "w.b2nd"}
    np.save("a.npy", np.arange(3))
    convert("a.npy", "~nobody-of-this-name.b2nd")
    assert Path("~nobody-of-this-name.b2nd").is_file()
    for source, target in (("a.npy", "b.h5"), ("b.h5", "c.npz"), ("c.npz", "e.b2d")):
        convert(f"~/{source}", f"~/{target}")
        assert Path(target).exists()
