"""The benchmarks run, their contenders agree, and reports are written. No time is asserted."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("zarr", reason="the benchmarks need the extra 'bench'")

import numpy as np
import psutil
import zarr
from blosc2 import compress2
from click.testing import CliRunner
from numpy.typing import NDArray
from tornado.iostream import IOStream

from b2nd_dask.graph.optimize.optimizer import RULE_NAMES
from benchmarks import ablation as ablations
from benchmarks import (
    clusters,
    datasets,
    disk,
    grids,
    growth,
    harness,
    memory,
    observing,
    plots,
    processes,
    report,
    summary,
    targets,
    writers,
)
from benchmarks.__main__ import main
from benchmarks.cases import CASES, ablation, rechunk
from benchmarks.cases.growth import DASK_ALONE
from benchmarks.compression import ZSTD
from benchmarks.model import Contender, Dataset, Figures, Scenario, ScenarioResult
from benchmarks.rawfile import RawFile
from tests.forked import run_forked

ROOT = Path(__file__).parent.parent


def run_benchmarks(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=2400, check=False
    )


#: A case that reads and one that also writes, with all peers. All cases take half an hour.
OFTEN_RUN = {"points", "rechunk"}


# up to fifty processes that import all modules
@pytest.mark.timeout(2700)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in OFTEN_RUN else pytest.mark.long)
        for name in CASES
    ],
)
def test_a_case_writes_its_reports(name: str, tmp_path: Path) -> None:
    output = tmp_path / "out"
    done = run_benchmarks(
        name, "--quick", "--repeat", "1", "--data", str(tmp_path / "data"), "--output", str(output)
    )
    assert done.returncode == 0, done.stderr
    text = (output / "results.md").read_text()
    assert done.stdout.strip() == text.strip()
    document = json.loads((output / "results.json").read_text())
    assert (document["repeat"], document["page_cache"]) == (1, "warm")
    assert document["machine"]["cpu"]
    expected = {one.name: one for one in CASES[name].scenarios(True)}
    assert [one["scenario"] for one in document["scenarios"]] == list(expected)
    for result in document["scenarios"]:
        scenario = expected[result["scenario"]]
        contenders = [one.name for one in scenario.contenders]
        assert [one["contender"] for one in result["figures"]] == contenders
        assert result["left_out"] == []
        assert next(one["ratio"] for one in result["figures"] if one["is_ours"]) == 1
        assert all(one["resident_peak"] > 0 for one in result["figures"] if not one["failure"])
        assert all(f"| {contender} |" in text for contender in contenders)
        able = sorted(one["contender"] for one in result["figures"] if not one["failure"])
        assert [sorted(names) for names in result["order"]] == [able]
        assert (result["dirty_bytes"] is not None) == scenario.writes
        assert len(result["verdicts"]) >= len(scenario.targets)
        assert (result["figures"][0]["written"] > 0) == scenario.writes
    assert (output / "plots" / f"{name}.png").stat().st_size > 1000
    assert not list((tmp_path / "data").glob("written-*"))


def test_the_list_names_every_case() -> None:
    done = CliRunner().invoke(main, ["--list"])
    assert done.exit_code == 0, done.output
    assert all(name in done.output for name in CASES)


def test_cases_of_many_minutes_and_of_the_optimizer_have_to_be_named() -> None:
    assert [case.name for case in CASES.values() if not case.by_default] == [
        "transform_big",
        "cluster_million",
        "rechunk_big",
        "many_frames",
        "ablation",
        "growth_chunks",
        "growth_stored",
        "growth_layers",
        "growth_reductions",
        "growth_frames",
        "growth_element",
    ]


def test_the_ablation_leaves_out_every_rule() -> None:
    assert ablation.RULES == RULE_NAMES


def grown(count: int, **powers: float) -> ScenarioResult:
    figures = [
        Figures(name, True, [1e-6 * count**power], [], 0, 10**5 * count)
        for name, power in powers.items()
    ]
    return ScenarioResult("growth_layers", str(count), "", figures, [], (), "layers", count)


def test_what_grows_faster_than_the_graph_is_named(tmp_path: Path) -> None:
    counts = (1, 10, 100, 1000, 10_000)
    results = [grown(n, linear=1, square=2, **{f"{DASK_ALONE}square": 1.5}) for n in counts]
    # constant costs of small graphs may hide their growth
    results[:2] = grown(1, linear=3), grown(10, linear=2)
    text = growth.markdown(results)
    assert "| linear | 10,000 | 0.01 (1.00) | 1e+03 (1.00) |" in text
    above = text[text.index("## Above linear") :].splitlines()[2:]
    slopes = "2.00 up to 10,000, dask alone 1.50 up to 10,000"
    assert above == [f"- `growth_layers`, square: time (median), s {slopes}"]
    (path,) = plots.write(tmp_path, results)
    assert path.name == "growth_layers.png"
    assert path.stat().st_size > 1000


def figures_without(rule: str, milliseconds: float, graph: int) -> Figures:
    seconds = [milliseconds / 1e3] * 3
    counts = {"tasks": 4, ablation.GRAPH: graph}
    return Figures(f"without {rule}", False, seconds, seconds, 0, 10**8, counts=counts)


def test_a_rule_pays_where_it_changes_tasks_and_saves_time() -> None:
    every = replace(figures_without("", 10, 1), contender="all rules", is_ours=True)
    without = [figures_without("one", 12, 2), figures_without("other", 15, 1)]
    slower = [figures_without("one", 8, 2), figures_without("other", 15, 1)]
    results = [
        ScenarioResult("ablation", name, "title", [every, *others], [])
        for name, others in (("a", without), ("b", slower))
    ]
    settings = harness.Settings(quick=False, repeat=3, threads=1, data=Path())
    text = ablations.markdown(settings, results, 0.0)
    assert "| `a` | 10 | 1.20 | = |" in text
    assert "| `b` | 10 | 0.80 | = |" in text
    verdicts = [ablations.verdict(results, rule) for rule in ("one", "other")]
    assert verdicts[0].startswith("- **one** pays: of 2 at most CPU time 1.20 (`a`)")
    assert verdicts[0].endswith("with it all rounds are slower: `b`")
    assert verdicts[1] == "- **other** does not pay: it changes none of these"


def test_what_was_written_is_held_against_what_should_be() -> None:
    def expected() -> Iterator[tuple[slice, NDArray[np.float64]]]:
        yield slice(0, 2), np.arange(2.0)
        yield slice(2, 4), np.arange(2.0, 4.0)

    assert writers.require_equal(expected, lambda: np.arange(4.0)) == (4,)
    with pytest.raises(AssertionError, match="Mismatched elements: 1 / 2"):
        writers.require_equal(expected, lambda: np.array([0.0, 1.0, 2.0, 4.0]))


def test_a_raw_file_gives_its_chunks_back(tmp_path: Path) -> None:
    array = grids.matrix(ZSTD, quick=True)
    chunks = [partial(np.copy, items) for _, items in array.pieces()]
    raw = RawFile.write(tmp_path / "raw", array, chunks, compress2, 2)
    assert raw.shape == array.shape
    for where, items in array.pieces():
        np.testing.assert_array_equal(raw[where], items)


def test_contenders_that_disagree_stop_the_run() -> None:
    scenario = Scenario("any", "any", (), (), (), rtol=1e-9)
    names = ["one", "two"]
    harness.require_agreement(scenario, names, [1.0, 1.0 + 1e-12])
    with pytest.raises(harness.DisagreementError, match="two and one differ"):
        harness.require_agreement(scenario, names, [1.0, 1.001])
    with pytest.raises(harness.DisagreementError):
        harness.require_agreement(scenario, names, [np.zeros(2), np.zeros(3)])


def test_the_order_of_each_round_is_shuffled_by_the_seed() -> None:
    names = ["one", "two", "three", "four"]
    order = harness.shuffled(names, 40, "0 case scenario")
    assert all(sorted(one) == sorted(names) for one in order)
    assert {one[0] for one in order} == set(names)
    assert harness.shuffled(names, 40, "0 case scenario") == order
    assert harness.shuffled(names, 40, "1 case scenario") != order


def test_a_run_begins_when_little_is_dirty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kib = [90_000, 70_000, 300]

    def one_more_sync() -> None:
        text = f"MemFree: 5000 kB\nDirty: {kib.pop(0)} kB\nWriteback: 100 kB\n"
        meminfo.write_text(text)

    meminfo = tmp_path / "meminfo"
    monkeypatch.setattr("os.sync", one_more_sync)
    monkeypatch.setattr(disk, "MEMINFO", meminfo)
    assert disk.write_back() == 400 * 1024
    assert kib == []
    kib += [90_000]
    monkeypatch.setattr(disk, "PATIENCE", -1)
    assert disk.write_back() == 90_100 * 1024


def test_files_and_folders_are_synced_with_their_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    synced = []
    monkeypatch.setattr("os.fsync", lambda fd: synced.append(os.fstat(fd).st_ino))
    store = tmp_path / "store"
    (store / "c" / "0").mkdir(parents=True)
    (store / "zarr.json").touch()
    (store / "c" / "0" / "1").touch()
    disk.sync(store)
    everything = [tmp_path, *tmp_path.rglob("*")]
    assert sorted(synced) == sorted(path.stat().st_ino for path in everything)
    synced.clear()
    disk.sync(store / "zarr.json")
    assert synced == [(store / "zarr.json").stat().st_ino, store.stat().st_ino]


def test_a_digest_tells_shapes_kinds_and_bits_apart() -> None:
    items = np.arange(6.0).reshape(2, 3)
    same = observing.digest(items)
    np.testing.assert_array_equal(observing.digest(np.asfortranarray(items)), same)
    changed = items.copy()
    changed[1, 2] = np.nextafter(5, 6)
    for other in (changed, items.T, items.astype("f4"), items.reshape(3, 2)):
        assert not np.array_equal(observing.digest(other), same)


def test_contenders_that_cannot_run_here_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    contender = Contender("one", lambda paths, threads: lambda: None, needs=("json", "no_such"))
    assert "no_such cannot be imported" in harness.absence(contender)
    assert harness.absence(replace(contender, needs=("json",))) == ""
    bounded = replace(contender, needs=(), memory_limit=10**9)
    monkeypatch.setattr("sys.platform", "darwin")
    assert "does not bound the memory" in harness.absence(bounded)


@pytest.mark.skipif(not memory.can_limit(), reason="the system does not keep the limit")
def test_a_process_does_not_get_more_memory_than_its_limit() -> None:
    code = """if True:
        from benchmarks import memory
        memory.limit(300 * 2**20)
        bytearray(100 * 2**20)
        try:
            bytearray(400 * 2**20)
        except MemoryError:
            print("refused")
    """
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "refused", done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="memory of one process is told elsewhere")
def test_memory_and_time_of_all_processes_count_those_that_were_started() -> None:
    code = "x = b'1' * (200 << 20); print(flush=True); input(); sum(range(10**6)); print(); input()"
    tree = processes.ProcessTree(os.getpid())
    before, spent = tree.resident(), tree.cpu_seconds()
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin
        assert child.stdout
        child.stdout.readline()
        tree.forget_peak()
        assert tree.resident() - before > 150 << 20
        times = psutil.Process(child.pid).cpu_times()
        # sums of rounded times differ by less than a tick of the clock of 10 ms
        own = times.user + times.system - 0.01
        assert tree.cpu_seconds() - spent > own > 0
        processes.kill_tree(child.pid)
        assert child.wait() < 0
    assert tree.resident() - before < 50 << 20
    assert tree.peak - before > 150 << 20
    assert tree.cpu_seconds() - spent > own


def count_bytes_of_a_socket() -> list[int]:
    traffic = clusters.Traffic()

    async def send_and_receive() -> list[int]:
        one, other = map(IOStream, socket.socketpair())
        await one.write(bytes(1000))
        sent = traffic.nbytes
        await other.read_bytes(1000)
        return [sent, traffic.nbytes]

    return asyncio.run(send_and_receive())


def test_bytes_through_sockets_are_counted_in_both_directions() -> None:
    assert run_forked(count_bytes_of_a_socket) == [1000, 2000]


def test_a_checksum_of_series_does_not_see_chunks_but_sees_where_elements_lie() -> None:
    shape = (6, 20, 100)
    maps = np.concatenate([items for _, items in rechunk.maps(shape).pieces()])

    def checksum(items: NDArray[np.float32], chunks: tuple[int, ...]) -> NDArray[np.uint64]:
        return rechunk.checksum(shape, lambda: zarr.array(items, chunks=chunks))

    expected = checksum(maps, (1, 20, 100))
    for chunks in ((6, 10, 50), (4, 7, 30), (6, 20, 100)):
        np.testing.assert_array_equal(checksum(maps, chunks), expected)
    for axis in range(3):
        swapped = np.roll(maps, 1, axis)
        assert not np.array_equal(checksum(swapped, (6, 10, 50)), expected)


def test_results_come_back_from_their_file(tmp_path: Path) -> None:
    ours = Figures("ours", True, [1.0, 2.0], [1.5, 1.5], 10**6, 3 * 10**6, counts={"requests": 2})
    broken = Figures("peer", False, [], [], 10**6, 0, failure="MemoryError: 8 MB | more")
    verdicts = targets.judge([targets.seconds_below(2.0)], {"ours": ours, "peer": broken})
    order = [["peer", "ours"]]
    result = ScenarioResult(
        "case", "one", "title", [ours, broken], verdicts, ["x: no y"], "n", 3.0, order, 5000
    )
    machine_facts = dict.fromkeys(
        ("command", "date", "revision", "cpu", "usable_cores", "system", "python"), "?"
    )
    run = {
        "machine": {**machine_facts, "memory_bytes": 1, "packages": {}},
        "quick": True,
        "repeat": 2,
        "threads": 1,
        "memory_used_before": True,
        "load_before": 0.0,
        "load_after": 0.0,
    }
    report.write(tmp_path, run, [result], "text")
    again, results = report.read(tmp_path / "results.json")
    assert (again, results) == (run, [result])
    paths = summary.write(tmp_path, [tmp_path / "results.json"])
    text = paths[0].read_text()
    assert "| job | ours | peer |" in text
    assert "| **one**: title | 1.50 s, 1.50 s, +2 MB | failed: MemoryError: 8 MB / more |" in text
    assert "Of the 1 targets that the cases state 1 are reached" in text
    assert "`python -m benchmarks case`; [plot](plots/case.png)" in text
    assert "not a measurement" in text
    text = report.markdown(run, results)
    assert "| under 2 s | ours | 1.5 | reached |" in text
    assert "Left out: x: no y." in text
    assert "Dirty in the page cache before a run: at most 5 kB." in text
    assert [path.name for path in paths[1:]] == ["case.png"]
    assert all(path.stat().st_size > 1000 for path in paths[1:])


def test_data_is_kept_while_it_is_intact(tmp_path: Path) -> None:
    builds = []

    def build(path: Path) -> None:
        builds.append(path)
        path.write_text("data")

    dataset = Dataset("some", "file", {"size": 4}, build)
    path = datasets.ensure(dataset, tmp_path)
    assert datasets.ensure(dataset, tmp_path) == path
    assert len(builds) == 1
    path.write_text("dbta")
    assert datasets.ensure(dataset, tmp_path).read_text() == "data"
    assert len(builds) == 2
    (path.parent / datasets.MANIFEST).unlink()
    datasets.ensure(dataset, tmp_path)
    assert len(builds) == 3
    other = Dataset("some", "file", {"size": 5}, build)
    assert datasets.ensure(other, tmp_path) != path


def test_targets_are_judged_for_ours_alone() -> None:
    def figures(name: str, seconds: float, is_ours: bool) -> Figures:
        return Figures(name, is_ours, [seconds, seconds], [seconds], 10**6, 3 * 10**6, 5 * 10**3)

    both = {"ours": figures("ours", 1.0, True), "peer": figures("peer", 2.0, False)}
    verdicts = targets.judge(
        [
            targets.speedup_over("peer", 2.0),
            targets.speedup_over("peer", 2.5),
            targets.times_as_long_as("peer", 0.5),
            targets.seconds_below(0.9),
            targets.megabytes_below(2),
            targets.resident_below(2),
            targets.kilobytes_written_below(5),
        ],
        both,
    )
    assert [one.contender for one in verdicts] == ["ours"] * 7
    assert targets.judge([targets.speedup_over("absent", 2.0)], both) == []
    assert targets.judge([targets.seconds_below(2.0, "another of ours")], both) == []
    assert [one.value for one in verdicts] == [2.0, 2.0, 0.5, 1.0, 2.0, 3.0, 5.0]
    assert [one.is_reached for one in verdicts] == [True, False, True, False, True, False, True]
