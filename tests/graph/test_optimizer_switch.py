"""The key b2nd_dask.optimize of dask's configuration, and the user's own array_optimize."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest

import b2nd_dask
from b2nd_dask.graph.optimize.optimizer import RULE_NAMES, chosen_rules
from b2nd_dask.graph.tasks import index_block, reduce_block
from tests.forked import run_forked
from tests.graph.pushdown import computing_with, elements_read, many_blocks, small_frame, tasks_of

SWITCH = "b2nd_dask.optimize"
PROGRAMS = {
    "sum": lambda x: (x * 2 + 1).sum(),
    "means": lambda x: x.mean(axis=0),
    "deviation": lambda x: x - x.mean(),
    "index": lambda x: (x + 1)[3, ::7],
    "list": lambda x: x[[5, 60, 5]],
    "copies": lambda x: x * 2,
}


def tasks(x):
    (optimized,) = dask.optimize(x)
    return dict(optimized.__dask_graph__())


@pytest.mark.parametrize("value", [True, False, [], *([name] for name in RULE_NAMES)], ids=str)
def test_results_are_the_same_with_each_setting(tmp_path, value):
    _, array = many_blocks(tmp_path)
    x = da.from_b2nd(tmp_path / "x.b2nd", chunks=(10, 10))
    with dask.config.set({SWITCH: value, "scheduler": "sync"}), computing_with(held=1 << 10):
        for name, program in PROGRAMS.items():
            np.testing.assert_allclose(
                program(x).compute(), program(array), rtol=1e-12, err_msg=name
            )


def test_off_is_the_way_of_dask(tmp_path):
    x, _ = many_blocks(tmp_path)
    with dask.config.set({SWITCH: False}):
        assert x.__dask_optimize__ is da.optimize
        assert tasks_of(reduce_block, x.sum()) == 0
    assert tasks_of(reduce_block, x.sum()) > 0


def test_rules_are_switched_one_by_one(tmp_path):
    x, _ = many_blocks(tmp_path)
    reduced, indexed, worked = (x + 1).sum(), (x + 1)[[3, 7]], (x + 1)[3, ::7]
    with dask.config.set({SWITCH: ["elementwise", "positions"]}):
        assert tasks_of(reduce_block, reduced) == 0
        assert tasks_of(index_block, indexed) > 0
    with dask.config.set({SWITCH: "elementwise reductions"}):
        assert tasks_of(reduce_block, reduced) == 256
        assert tasks_of(index_block, indexed) == 0
    with dask.config.set({SWITCH: "elementwise, merge_blocks, reductions"}), computing_with():
        assert 0 < tasks_of(reduce_block, reduced) < 256
    with dask.config.set({SWITCH: ["elementwise", "merge_blocks"]}):
        assert tasks_of(reduce_block, reduced) == 0
    with dask.config.set({SWITCH: ["elementwise"]}):
        assert elements_read(worked) == 12 * 25
    with dask.config.set({SWITCH: ["elementwise", "slices"]}):
        assert elements_read(worked) == worked.size


@pytest.mark.parametrize("value", ["slice", ["slices", "no"], 7, {"slices": True}, [[]]], ids=str)
def test_nonsense_names_the_rules(tmp_path, value):
    x = da.from_b2nd(small_frame(tmp_path, np.ones((3, 3))))
    refused = pytest.raises(ValueError, match=r"b2nd_dask\.optimize .*late_reads")
    with dask.config.set({SWITCH: value}), refused:
        x.sum().compute(scheduler="sync")


def test_nonsense_leaves_arrays_without_frames_alone():
    with dask.config.set({SWITCH: "nonsense"}):
        assert da.ones((3, 3)).sum().compute(scheduler="sync") == 9


def test_what_the_user_sets_for_arrays_wins(tmp_path):
    x, array = many_blocks(tmp_path)
    seen = []

    def own(dsk, keys, **kwargs):
        seen.append(len(keys))
        return da.optimize(dsk, keys, **kwargs)

    for value in (True, False, ["slices"]):
        with dask.config.set({"array_optimize": own, SWITCH: value}):
            assert x.__dask_optimize__ is own
            assert x.sum().compute(scheduler="sync") == array.sum()
    assert len(seen) == 3
    with dask.config.set(array_optimize=False):
        assert len(tasks(x.sum())) > 256


def test_a_choice_travels_to_a_scheduler(tmp_path):
    x = da.from_b2nd(small_frame(tmp_path, np.ones((3, 3))))
    with dask.config.set({SWITCH: ["slices", "merge_blocks"]}):
        chosen, total = x.__dask_optimize__, x.sum()
        sent = pickle.dumps((chosen, total.__dask_graph__(), total.__dask_keys__()))
    optimizer, graph, keys = pickle.loads(sent)
    assert optimizer == chosen == da.optimize
    assert optimizer.setting == chosen.setting == ["slices", "merge_blocks"]
    assert x.__dask_optimize__.setting is None
    assert not any(
        getattr(node, "func", None) is reduce_block for node in optimizer(graph, keys).values()
    )


SCRIPT = """
import sys
import numpy as np, dask, dask.array as da
from b2nd_dask.graph.optimize.optimizer import chosen_rules
x = da.from_b2nd(sys.argv[1])
assert (x + 1).sum().compute(scheduler="sync") == 18
print(chosen_rules(dask.config.get("b2nd_dask.optimize")))
"""
VARIABLE = "DASK_B2ND_DASK__OPTIMIZE"


@pytest.mark.slow
def test_the_environment_switches(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(small_frame(tmp_path, np.ones((3, 3))))],
        env={
            **os.environ,
            VARIABLE: "slices,merge_blocks",
            "PYTHONPATH": str(Path(b2nd_dask.__file__).parents[1]),
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "('slices', 'merge_blocks')"


def rules_chosen_with(value, path):
    """The rules in a process with this variable, which dask reads at its start."""
    os.environ[VARIABLE] = value
    dask.config.refresh()
    assert (da.from_b2nd(path) + 1).sum().compute(scheduler="sync") == 18
    return chosen_rules(dask.config.get(SWITCH))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "rules"),
    [
        ("false", ()),
        ("off", ()),
        ("0", ()),
        ("on", RULE_NAMES),
        ("True", RULE_NAMES),
        ("slices,merge_blocks", ("slices", "merge_blocks")),
        ("['masks', 'slices']", ("slices", "masks")),
    ],
)
def test_values_of_the_environment(tmp_path, value, rules):
    path = str(small_frame(tmp_path, np.ones((3, 3))))
    assert run_forked(rules_chosen_with, value, path) == rules
    assert chosen_rules(None) == RULE_NAMES
