"""Damaged files and files that are no arrays: a clear error, never a crash, never wrong values."""

from __future__ import annotations

import json
import signal
import struct
import sys
from typing import TYPE_CHECKING, Any

import blosc2
import numpy as np
import pytest

from b2nd_dask import open_b2nd
from tests.forked import run_forked, run_to_end
from tests.frame.probe import run_graph, run_vectors
from tests.vectors import rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.vectors import Row

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="memory is limited, and its use found out, as on Linux"
)

DAMAGED = [row for row in rows("read") if row.file.startswith("hostile/")]
BAD = [*rows("error", "undetectable", "chunk"), *DAMAGED]

Found = dict[str, Any]


def run(names: list[str]) -> tuple[dict[str, Found], str | None, str]:
    """Probe files in one process: what was found, the file that ended the process, and how."""
    ended = run_to_end(run_vectors, names)
    lines = [json.loads(line) for line in ended.stdout.splitlines()]
    done = {line["done"]: line["found"] for line in lines if "done" in line}
    begun = [line["begun"] for line in lines if "begun" in line]
    if ended.code == 0:
        return done, None, ""
    assert begun, ended.stderr
    how = signal.Signals(-ended.code).name if ended.code < 0 else f"exit code {ended.code}"
    return done, begun[-1], f"{how} {ended.stderr[-500:]}"


@pytest.fixture(scope="module")
def found() -> dict[str, Found]:
    """Probe all files, going on behind each one that ends its process."""
    names = [row.file for row in BAD]
    everything: dict[str, Found] = {}
    while names:
        done, fatal, how = run(names)
        everything |= done
        if fatal is None:
            break
        everything[fatal] = {"crash": how}
        names = names[names.index(fatal) + 1 :]
    return everything


def outcomes(found: Found) -> Iterator[tuple[str, dict[str, Any]]]:
    for way, outcome in found.items():
        for single in outcome if isinstance(outcome, list) else [outcome]:
            yield way, single


def parametrized(chosen: list[Row]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("row", chosen, ids=[row.file for row in chosen])


@parametrized(BAD)
def test_no_crash_and_no_foreign_error(row: Row, found: dict[str, Found]) -> None:
    assert "crash" not in found[row.file], found[row.file]["crash"]
    foreign = [pair for pair in outcomes(found[row.file]) if pair[1]["outcome"] == "foreign"]
    assert not foreign


@parametrized(BAD)
def test_errors_name_the_file(row: Row, found: dict[str, Found]) -> None:
    errors = [
        outcome
        for way, outcome in outcomes(found[row.file])
        if way != "bytes" and outcome.get("outcome") == "error"
    ]
    assert [error for error in errors if str(row.path) not in error["message"]] == []


@parametrized([row for row in BAD if row.expect in ("error", "chunk") and row.scope is None])
def test_damage_is_an_error(row: Row, found: dict[str, Found]) -> None:
    allowed = {"error", "right"} if "read" in row.also_ok else {"error"}
    for way in ("frame", "dask", "bytes"):
        if way in found[row.file]:
            assert found[row.file][way]["outcome"] in allowed, way


@parametrized([row for row in BAD if row.expect != "undetectable"])
def test_no_wrong_values(row: Row, found: dict[str, Found]) -> None:
    assert [pair for pair in outcomes(found[row.file]) if pair[1]["outcome"] == "wrong"] == []


@parametrized(DAMAGED)
def test_harmless_damage_is_read(row: Row, found: dict[str, Found]) -> None:
    allowed = {"right", "error"} if "error" in row.also_ok else {"right"}
    for way in ("frame", "dask", "bytes"):
        if way in found[row.file]:
            assert found[row.file][way]["outcome"] in allowed, way


@parametrized([row for row in rows("error") if "vlmeta_msgpack" in row.file])
def test_a_bad_entry_spoils_itself_alone(row: Row, found: dict[str, Found]) -> None:
    assert found[row.file]["frame"]["outcome"] == "right"
    kinds = [entry["outcome"] for entry in found[row.file]["metadata"]]
    assert kinds.count("error") == 1
    assert len(kinds) > 1


@parametrized([row for row in BAD if row.scope == "vlmeta" and "read" not in row.also_ok])
def test_bad_vlmeta_is_an_error(row: Row, found: dict[str, Found]) -> None:
    assert "error" in [entry["outcome"] for entry in found[row.file]["metadata"]]


MISSING = ("missing", "id_9999", ".b2d")


@parametrized([row for row in BAD if not any(word in row.file for word in MISSING)])
def test_nothing_is_said_to_be_missing(row: Row, found: dict[str, Found]) -> None:
    types = [outcome.get("type") for _, outcome in outcomes(found[row.file])]
    assert "FileNotFoundError" not in types


def test_an_empty_array_may_be_long_otherwise(fresh_path: Callable[[], Path]) -> None:
    # Where one axis is 0 there are no chunks, and nothing in the file bounds the other axes.
    path = fresh_path()
    blosc2.asarray(np.empty((0, 5)), urlpath=str(path), chunks=(2, 3), blocks=(1, 2))
    content = path.read_bytes()
    length = struct.pack(">Bq", 0xD3, 5)
    assert content.count(length) == 1
    path.write_bytes(content.replace(length, struct.pack(">Bq", 0xD3, 2**56)))
    assert run_forked(run_graph, path)["outcome"] in ("right", "error")


def test_a_small_file_of_many_chunks(fresh_path: Callable[[], Path]) -> None:
    # 200 bytes say that there are 2**27 chunks of zeros, more than a graph can have tasks.
    path = fresh_path()
    blosc2.zeros((2**27,), dtype="u1", urlpath=str(path), chunks=(1,), blocks=(1,))
    assert open_b2nd(path)[2**26 :: 2**25].tolist() == [0, 0]
    assert run_forked(run_graph, path)["outcome"] in ("right", "error")
