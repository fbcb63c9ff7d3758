"""Reductions of arrays that are put together of reads: each block is reduced while it is read."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from b2nd_dask.graph._dask_compat import Task, TaskRef
from b2nd_dask.graph.expression.chunk_steps import Fold
from b2nd_dask.graph.expression.nodes import Elemwise, Node, Patchwork, Read, with_leaves
from b2nd_dask.graph.expression.program import compile_tree, leaves_of
from b2nd_dask.graph.layers.layers import Layers
from b2nd_dask.graph.optimize.lower import Lowered, ReadBlocks, reducing_task
from b2nd_dask.graph.optimize.sharing import Sharing
from b2nd_dask.graph.tasks.block_read import BlockReduction, reduce_array


@dataclass(frozen=True, eq=False)
class _Source:
    """A layer whose blocks are read, and how they are reduced."""

    blocks: ReadBlocks
    step: BlockReduction


def lowered_patchwork(layers: Layers, sharing: Sharing, name: str, *, asks: bool) -> Lowered | None:
    """A layer of chunk steps over blocks of other layers, some of which are reads."""
    if name not in layers.folds:
        return None
    fold, below = layers.folds[name]
    tree = layers.nodes[below]
    if not any(isinstance(leaf, Patchwork) for leaf in leaves_of(tree)):
        return None
    absorbed = sharing.absorbed(tree, name)
    leaves = [] if absorbed is None else list(leaves_of(absorbed))
    patches = [leaf for leaf in leaves if isinstance(leaf, Patchwork)]
    if absorbed is None or len(patches) != 1 or len(leaves) != 1:
        return None
    (patch,) = patches
    if absorbed.chunks != patch.chunks:
        return None
    # a block that is used twice is read once
    used = Counter(patch.blocks.values())
    names = {key[0] for key, count in used.items() if count == 1}
    step = _step_on_array(absorbed, patch, fold, asks)
    if step is None:
        return None
    sources = {}
    for each in sorted(names):
        source = _source(layers.nodes[each], sharing, absorbed, patch, step)
        if source is not None:
            sources[each] = source
    if not sources:
        return None
    tasks: dict[Any, Any] = {}
    left: set[str] = set()
    for block in itertools.product(*(range(len(along)) for along in patch.chunks)):
        key = (name, *block)
        target = patch.blocks.get(block)
        source = sources.get(target[0]) if target is not None and used[target] == 1 else None
        if source is None or target is None:
            left.add(patch.layers[0])
            tasks[key] = Task(key, reduce_array, TaskRef((patch.layers[0], *block)), step)
        else:
            axes = source.blocks.axes_of(target[1:])
            tasks[key] = reducing_task(key, source.blocks.read, axes, source.step, ())
    return Lowered({name: tasks}, {name: left})


def _source(
    node: Node, sharing: Sharing, tree: Node, patch: Patchwork, step: BlockReduction
) -> _Source | None:
    """A layer that a patchwork takes blocks of, with the work above; None where it reads none."""
    if not isinstance(node, Read | Elemwise):
        return None
    absorbed = sharing.absorbed(node, patch.layers[0])
    if absorbed is None:
        return None
    whole = with_leaves(tree, lambda leaf: absorbed if leaf is patch else leaf)
    compiled = compile_tree(whole)
    if compiled is None or compiled.inputs or not compiled.read.is_box:
        return None
    read, program, _ = compiled
    if not compiled.is_numeric or not read.positions:
        return None
    if read.chunks != node.chunks:
        return None
    return _Source(ReadBlocks(read), replace(step, program=program))


def _step_on_array(tree: Node, patch: Patchwork, fold: Fold, asks: bool) -> BlockReduction | None:
    """The chunk step, and the work before it, of a block that another task computes."""
    stand_in = Read(None, (), (), patch.chunks, patch.layers)  # type: ignore[arg-type]
    compiled = compile_tree(with_leaves(tree, lambda leaf: stand_in if leaf is patch else leaf))
    return None if compiled is None else BlockReduction(fold, compiled.program, asks)
