"""Tasks of a layer become what each would have become alone, and few of them are looked at."""

import operator
from functools import partial

import blosc2
import dask.array as da
import numpy as np
import pytest
from dask._task_spec import DataNode, Task
from dask.blockwise import BlockwiseDepDict, blockwise
from dask.highlevelgraph import HighLevelGraph

from b2nd_dask import from_b2nd
from b2nd_dask.graph.optimize import optimizer
from b2nd_dask.graph.optimize.rules import pushdown
from b2nd_dask.graph.optimize.rules.pushdown import OncePerLayer
from b2nd_dask.graph.read.blocks import ConstantRegion, FrameRegion

WHOLE = np.random.default_rng(8).integers(-9, 9, (60, 60)) / 2
WHOLE[:20] = 0
WHOLE[30:40, :30] = 2.5
#: What is added differs from block to block.
ADDEND = np.arange(60.0) * 3

WORKS = {
    "reduction": lambda x: x.sum(axis=1),
    "search in blocks with offsets": lambda x: da.argmin(x, axis=0),
    "search in all": lambda x: x.argmax(),
    "index": lambda x: x[5:55:3, 7],
    "points": lambda x: x.vindex[[1, 30, 59], [3, 31, 2]],
    "list": lambda x: x[[3, 50, 4]],
    "no work that is understood": lambda x: x.map_blocks(np.sort),
    "not understood, then reduced": lambda x: x.map_blocks(np.sort).max(axis=1),
    "a result of another task for each block": lambda x: (x - x.mean(axis=0)).sum(axis=1),
    "a number for each block": lambda x: _times_numbers(x).sum(axis=1),
    "an array beside": lambda x: (x + ADDEND).sum(axis=1),
    "twice": lambda x: (x * 2 + x[::-1]).sum(axis=0),
    "two frames of other axes": lambda x: (x + x[3]).min(axis=1),
}


def _times_numbers(x):
    """Blocks times numbers that stand in the graph, another one for each block."""
    numbers = {block: 1 + sum(block) for block in np.ndindex(*x.numblocks)}
    dep = BlockwiseDepDict(numbers, numblocks=x.numblocks)
    sizes = {x.name: x.numblocks}
    layer = blockwise(operator.mul, "times", "ij", x.name, "ij", dep, "ij", numblocks=sizes)
    graph = HighLevelGraph.from_collections("times", layer, [x])
    return da.Array(graph, "times", x.chunks, dtype=x.dtype)


@pytest.fixture
def frame(tmp_path):
    blosc2.asarray(WHOLE, urlpath=str(tmp_path / "x.b2nd"), chunks=(10, 15), blocks=(5, 5))
    return from_b2nd(tmp_path / "x.b2nd")


@pytest.mark.parametrize("name", WORKS)
def test_each_task_becomes_what_it_would_alone(frame, monkeypatch, name):
    work = WORKS[name](frame)
    many = optimizer.optimize(work.dask, work.__dask_keys__())
    monkeypatch.setattr(pushdown, "OncePerLayer", lambda rule: rule)
    alone = optimizer.optimize(work.dask, work.__dask_keys__())
    assert {key: _form(task) for key, task in many.items()} == {
        key: _form(task) for key, task in alone.items()
    }
    expected = WORKS[name](da.from_array(WHOLE, chunks=frame.chunks))
    np.testing.assert_allclose(work.compute(scheduler="sync"), expected.compute(scheduler="sync"))


def _form(value):
    """All that a task does, in terms that compare."""
    if isinstance(value, Task):
        inside = [value.func, *value.args, *sorted(value.kwargs.items())]
        return [value.key, value.data_producer, *map(_form, inside)]
    if isinstance(value, FrameRegion | ConstantRegion):
        return [type(value), *map(_form, vars(value).values())]
    if isinstance(value, dict):
        return {key: _form(inner) for key, inner in value.items()}
    if isinstance(value, tuple):
        return list(map(_form, value))
    if isinstance(value, DataNode):
        return [_form(value.value)]
    if isinstance(value, partial):
        return repr(value)
    return value


@pytest.mark.parametrize("name", ["reduction", "no work that is understood"])
def test_one_task_of_a_layer_is_looked_at(frame, monkeypatch, name):
    seen = []

    class Counting(OncePerLayer):
        def __init__(self, rule):
            super().__init__(lambda node: seen.append(node) or rule(node))

    monkeypatch.setattr(pushdown, "OncePerLayer", Counting)
    work = WORKS[name](frame)
    optimizer.optimize(work.dask, work.__dask_keys__())
    blocks = [node for node in seen if any(map(_is_region, node.args))]
    # a block is the frame, zeros, or values that its chunks repeat
    assert len(blocks) <= 3 < frame.npartitions


def _is_region(argument):
    return isinstance(argument, DataNode) and isinstance(
        argument.value, FrameRegion | ConstantRegion
    )
