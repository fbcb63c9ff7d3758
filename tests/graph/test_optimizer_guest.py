"""The optimizer is a guest in dask: if it fails in any way, dask's own graph is computed."""

import ast
import importlib
import logging
import warnings
from functools import cache
from pathlib import Path

import blosc2
import dask.array as da
import numpy as np
import pytest
from dask.layers import ArrayBlockwiseDep

import b2nd_dask
from b2nd_dask.graph import _dask_compat
from b2nd_dask.graph.optimize import optimizer, rewrite
from b2nd_dask.graph.optimize.lower import Lowered
from tests.forked import run_forked
from tests.graph import names_changed

PACKAGE = Path(b2nd_dask.__file__).parent
PROGRAMS = {
    "sum": lambda x: (x * 2 + 1).sum(),
    "deviation": lambda x: x - x.mean(axis=0),
    "index": lambda x: (x + 1)[3, ::7],
    "list": lambda x: x[[5, 30, 5]],
    "persisted": lambda x: (x + 1).persist(scheduler="sync").sum(axis=1)[::2],
    "rows": lambda x: x[3:20, ::2],
}


@pytest.fixture
def unwarned(monkeypatch):
    monkeypatch.setattr(_dask_compat._Warned, "done", False)


@pytest.fixture
def frame(tmp_path):
    array = elements()
    blosc2.asarray(array, urlpath=str(tmp_path / "x.b2nd"), chunks=(5, 10), blocks=(5, 5))
    return da.from_b2nd(tmp_path / "x.b2nd"), array


def elements():
    array = np.random.default_rng(5).integers(0, 3, (40, 40)) / 2
    array[10:20] = 0
    return array


@cache
def results_without_frames():
    plain = da.from_array(elements(), chunks=(5, 10))
    return {name: program(plain).compute(scheduler="sync") for name, program in PROGRAMS.items()}


def outcome(x):
    """Check the results of programs; return the warnings."""
    expected = results_without_frames()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for name, program in PROGRAMS.items():
            got = program(x).compute(scheduler="sync")
            np.testing.assert_allclose(got, expected[name], rtol=1e-12, err_msg=name)
    return [str(w.message) for w in caught]


def fail(*_, **__):
    raise RuntimeError("on purpose")


def of_one_layer(made, layers, below=()):
    """The result of a rule, with another layer in place of its own."""
    (name,) = made.layers
    return Lowered({name: layers(made.layers[name])}, {name: {*made.dependencies[name], *below}})


class FailingBlocks(ArrayBlockwiseDep):
    """An argument of blocks that raises when dask makes their tasks."""

    def __getitem__(self, block):
        raise RuntimeError("on purpose")


def failing_later(layer):
    (_, labels), *_ = layer.indices
    blocks = FailingBlocks(_dask_compat.block_arguments(layer)[0].chunks)
    name, own = layer.output, layer.output_indices
    return _dask_compat.blockwise(abs, name, own, blocks, labels, numblocks={})


def with_first(layer, task):
    """The tasks of a layer, with one task replaced."""
    tasks = dict(layer)
    key = next(iter(tasks))
    return {**tasks, key: task(key)}


def ring(key):
    return _dask_compat.Task(key, max, _dask_compat.TaskRef(key), 1)


def dangling(key):
    return _dask_compat.Task(key, max, _dask_compat.TaskRef("nowhere"), 1)


#: Damages to the layers that a rule returns.
BROKEN = {
    "error": fail,
    "no layers": lambda made: 7,
    "layer lost": lambda made: Lowered({}, {}),
    "dependencies lost": lambda made: Lowered(made.layers, {}),
    "dependency lost": lambda made: of_one_layer(made, lambda layer: layer, {"lost"}),
    "no layer": lambda made: of_one_layer(made, lambda layer: 7),
    "tasks lost": lambda made: of_one_layer(made, lambda layer: {}),
    "no tasks": lambda made: of_one_layer(made, lambda layer: dict.fromkeys(layer, max)),
    "dangling": lambda made: of_one_layer(made, lambda layer: with_first(layer, dangling)),
    "cycle": lambda made: of_one_layer(made, lambda layer: with_first(layer, ring)),
    "later error": lambda made: of_one_layer(made, failing_later),
}
#: Damages to the tasks of `read_at_once`.
BROKEN_TASKS = {
    "error": fail,
    "no graph": list,
    "no tasks": lambda tasks: dict.fromkeys(tasks, 7),
    "output lost": lambda tasks: {},
    "dangling": lambda tasks: {key: dangling(key) for key in tasks},
    "cycle": lambda tasks: {key: ring(key) for key in tasks},
    "other key": lambda tasks: {key: task.substitute({}, key="x") for key, task in tasks.items()},
}


def agree_with_one_warning(frame, caplog, what):
    caplog.set_level(logging.DEBUG, "b2nd_dask")
    (warning,) = outcome(frame[0])
    assert "Results are right" in warning
    assert what in warning
    assert any(r.exc_info and r.levelno == logging.DEBUG for r in caplog.records)
    assert not any(r.levelno > logging.DEBUG for r in caplog.records)


def broken(rule, way):
    """A rule that damages its result."""

    def spoilt(*args, **kwargs):
        made = rule(*args, **kwargs)
        return None if made is None else way(made)

    return spoilt


@pytest.mark.parametrize("way", BROKEN)
def test_a_rule_that_spoils_the_layers(frame, monkeypatch, unwarned, caplog, way):
    monkeypatch.setattr(rewrite, "lowered_tree", broken(rewrite.lowered_tree, BROKEN[way]))
    agree_with_one_warning(frame, caplog, "leaves a graph as dask has optimized it")


@pytest.mark.parametrize("way", BROKEN_TASKS)
def test_a_rule_that_spoils_all_tasks(frame, monkeypatch, unwarned, caplog, way):
    rule = broken(rewrite.tasks_at_once, BROKEN_TASKS[way])
    monkeypatch.setattr(rewrite, "tasks_at_once", rule)
    agree_with_one_warning(frame, caplog, "leaves a graph as dask has optimized it")


#: Functions and classes that `rewrite` uses.
PARTS = (
    "Layers",
    "Reductions",
    "Sharing",
    "lowered_positions",
    "lowered_tree",
    "masked_reads",
    "predicate_of",
    "tasks_at_once",
    "with_own_names",
)


@pytest.mark.parametrize("part", PARTS)
def test_each_part_may_fail(frame, monkeypatch, unwarned, caplog, part):
    monkeypatch.setattr(rewrite, part, fail)
    agree_with_one_warning(frame, caplog, "RuntimeError: on purpose")


def test_sound_graphs_are_taken(frame, unwarned):
    assert outcome(frame[0]) == []


@pytest.mark.slow
@pytest.mark.parametrize("way", ["missing", "changed"])
def test_names_of_dask_that_are_not_what_they_were(tmp_path, way):
    array = np.random.default_rng(5).integers(0, 3, (20, 20)) / 2
    array[5:10] = 0
    np.save(tmp_path / "array.npy", array)
    blosc2.asarray(array, urlpath=str(tmp_path / "x.b2nd"), chunks=(5, 10), blocks=(5, 5))
    # only the optimizer uses the others
    writing = [entry.name for entry in _dask_compat.NAMES if _is_for_layers(entry)]
    assert run_forked(names_changed.check_each, tmp_path, way, writing) == len(_dask_compat.NAMES)


def _is_for_layers(entry):
    return entry.module in ("dask.blockwise", "dask.layers", "dask.array.wrap", "dask.array") or (
        entry.name in ("getter", "parse_bytes")
    )


def test_all_names_are_there():
    for entry in _dask_compat.NAMES:
        assert entry.resolve() is getattr(importlib.import_module(entry.module), entry.name)
    assert len({(entry.module, entry.name) for entry in _dask_compat.NAMES}) == len(
        _dask_compat.NAMES
    )
    with pytest.raises(AttributeError, match="no attribute"):
        _dask_compat.nothing  # noqa: B018


#: Documented modules of dask, and their documented names.
DOCUMENTED = {
    "dask": {"config"},
    "dask.array": None,
    "dask.array.core": {"normalize_chunks"},
    "dask.base": {"compute", "is_dask_collection", "normalize_token", "optimize", "tokenize"},
    "dask.callbacks": {"Callback"},
    "dask.delayed": {"Delayed", "delayed"},
    "dask.diagnostics.progress": {"ProgressBar"},
    "dask.highlevelgraph": {"HighLevelGraph"},
    "dask.optimization": {"cull"},
    "dask.typing": {"Key"},
}


def imported(tree):
    """Names of dask that a module imports, and attributes of its namespaces that it uses."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "dask":
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((a.name, None) for a in node.names if a.name.split(".")[0] == "dask")
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = {"da": "dask.array", "_da": "dask.array", "dask": "dask"}.get(node.value.id)
            if module is not None:
                yield module, node.attr


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_only_one_module_imports_other_names_than_documented_ones(path):
    if path.name == "_dask_compat.py":
        return
    private = {(entry.module, entry.name) for entry in _dask_compat.NAMES}
    for module, name in imported(ast.parse(path.read_text())):
        assert module in DOCUMENTED, f"{path}: {module}"
        documented = DOCUMENTED[module]
        assert name is None or documented is None or name in documented, f"{path}: {module}.{name}"
        assert (module, name) not in private, f"{path}: {module}.{name}"


def test_what_type_checkers_see_is_what_is_resolved():
    tree = ast.parse(Path(_dask_compat.__file__).read_text())
    (block,) = (n for n in tree.body if isinstance(n, ast.If))
    seen = {alias.name for node in block.body for alias in node.names}
    for name in seen:
        assert getattr(_dask_compat, name) is not None


def test_installing_twice_changes_nothing():
    hook = optimizer._plain_hook()
    optimizer.install()
    assert optimizer._plain_hook() is hook
    assert da.Array.__dask_optimize__ == da.optimize


@pytest.mark.parametrize("change", ["no attribute", "no descriptor"])
def test_installing_where_dask_has_another_hook(frame, monkeypatch, unwarned, change):
    if change == "no attribute":
        monkeypatch.delattr(da.Array, "__dask_optimize__")
    else:
        monkeypatch.setattr(da.Array, "__dask_optimize__", object())
    before = vars(da.Array).get("__dask_optimize__")
    with pytest.warns(RuntimeWarning, match="leaves all graphs"):
        optimizer.install()
    assert vars(da.Array).get("__dask_optimize__") is before


def test_a_name_that_is_refused_by_any_exception(monkeypatch):
    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(_dask_compat.NameChangedError, match="is missing"):
        _dask_compat.NAMES[0].resolve()


def test_a_layer_that_cannot_be_built(tmp_path, frame, monkeypatch, unwarned):
    monkeypatch.setitem(vars(_dask_compat), "blockwise", fail)
    with pytest.warns(RuntimeWarning, match="leaves the reading"):
        x = b2nd_dask.from_b2nd(tmp_path / "x.b2nd")
    np.testing.assert_array_equal(x.compute(scheduler="sync"), frame[1])
