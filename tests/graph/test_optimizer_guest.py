"""The optimizer is a guest in dask: whatever happens to it, dask's own graph is computed."""

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
from dask.highlevelgraph import HighLevelGraph

import b2nd_dask
from b2nd_dask.graph import _dask_compat
from b2nd_dask.graph.optimize import optimizer, rewrite
from b2nd_dask.graph.optimize.rewrite import RULES
from b2nd_dask.graph.optimize.rules.rule import GraphRule, LayerAnswer, LayerRewrite, TaskRule
from tests.forked import run_forked
from tests.graph import names_changed

PACKAGE = Path(b2nd_dask.__file__).parent
PROGRAMS = {
    "sum": lambda x: (x * 2 + 1).sum(),
    "deviation": lambda x: x - x.mean(axis=0),
    "index": lambda x: (x + 1)[3, ::7],
    "list": lambda x: x[[5, 30, 5]],
    "persisted": lambda x: (x + 1).persist(scheduler="sync").sum(axis=1)[::2],
}


TASK_RULES = [rule for rule in RULES if not isinstance(rule, LayerAnswer | LayerRewrite)]


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
    """The warnings of programs whose results are right."""
    expected = results_without_frames()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for name, program in PROGRAMS.items():
            got = program(x).compute(scheduler="sync")
            np.testing.assert_allclose(got, expected[name], rtol=1e-12, err_msg=name)
    return [str(w.message) for w in caught]


def fail(*_):
    raise RuntimeError("on purpose")


def some_task(tasks):
    return next(key for key, node in tasks.items() if type(node) is _dask_compat.Task)


def without_output(tasks, output_keys, found):
    return {key: node for key, node in tasks.items() if key not in output_keys}


def without_dependency(tasks, output_keys, found):
    needed = {name for node in tasks.values() for name in node.dependencies}
    return {key: node for key, node in tasks.items() if key not in needed}


def with_dangling(tasks, output_keys, found):
    key = some_task(tasks)
    return {**tasks, key: _dask_compat.Task(key, max, _dask_compat.TaskRef("nowhere"), 1)}


def with_cycle(tasks, output_keys, found):
    a, b = ("ring", 0), ("ring", 1)
    ring = {x: _dask_compat.Alias(x, target=y) for x, y in ((a, b), (b, a))}
    key = next(iter(output_keys & tasks.keys()))
    return {**tasks, **ring, key: _dask_compat.Alias(key, target=a)}


def with_own_cycle(tasks, output_keys, found):
    key = next(iter(output_keys & tasks.keys()))
    return {**tasks, key: _dask_compat.Task(key, max, _dask_compat.TaskRef(key), 1)}


def with_other_key(tasks, output_keys, found):
    key = some_task(tasks)
    return {**tasks, key: tasks[key].substitute({}, key="other")}


def without_all(tasks, output_keys, found):
    """What dask has made is emptied in place."""
    tasks.clear()
    return tasks


def with_fused(change):
    """A rule that changes what is inside of fused tasks."""

    def spoil(tasks, *_):
        fused = {key: t for key, t in tasks.items() if t.func is _dask_compat._execute_subgraph}
        assert fused
        return {**tasks, **{key: _changed(task, change) for key, task in fused.items()}}

    return spoil


def _changed(task, change):
    inner, out, names, *values = task.args
    args = change(dict(inner), out, names, values)
    return _dask_compat.Task(task.key, task.func, *args, _data_producer=task.data_producer)


def _with_inner(inner, out, names, values, **more):
    return {**inner, **more}, out, names, *values


def _refers(key, other):
    return _dask_compat.Task(key, abs, _dask_compat.TaskRef(other))


INSIDE = {
    "fused: output lost": lambda inner, out, names, values: (inner, "none", names, *values),
    "fused: argument lost": lambda inner, out, names, values: (inner, out, (*names, "a"), *values),
    "fused: dangling": lambda *args: _with_inner(*args, a=_refers("a", "none")),
    "fused: cycle": lambda *args: _with_inner(*args, a=_refers("a", "b"), b=_refers("b", "a")),
}
BROKEN = {
    **{name: with_fused(change) for name, change in INSIDE.items()},
    "raises": fail,
    "no graph": lambda tasks, *_: list(tasks),
    "no tasks": lambda tasks, *_: dict.fromkeys(tasks, 7),
    "nothing": lambda *_: None,
    "emptied": without_all,
    "output lost": without_output,
    "dependency lost": without_dependency,
    "dangling": with_dangling,
    "cycle": with_cycle,
    "own cycle": with_own_cycle,
    "other key": with_other_key,
}


def agree_with_one_warning(frame, caplog, what):
    caplog.set_level(logging.DEBUG, "b2nd_dask")
    (warning,) = outcome(frame[0])
    assert "Results are right" in warning
    assert what in warning
    assert any(r.exc_info and r.levelno == logging.DEBUG for r in caplog.records)
    assert not any(r.levelno > logging.DEBUG for r in caplog.records)


@pytest.mark.parametrize("way", BROKEN)
def test_a_rule_that_spoils_the_graph(frame, monkeypatch, unwarned, caplog, way):
    broken = GraphRule(RULES[0].name, "None.", lambda *_: True, BROKEN[way])
    monkeypatch.setattr(rewrite, "RULES", (*RULES, broken))
    agree_with_one_warning(frame, caplog, "leaves a graph as dask has optimized it")


def whole_graph(change):
    """A rule for layers that gives the graph which dask has optimized, after a change."""

    def tasks(layers, output_keys):
        found = da.optimization.optimize(layers, output_keys)
        return change(dict(found), output_keys, True)

    return LayerAnswer(RULES[0].name, "None.", tasks)


#: None stands for layers that a rule does not know.
SPOILT = BROKEN.keys() - INSIDE.keys() - {"nothing", "emptied", "dependency lost"}


@pytest.mark.parametrize("way", sorted(SPOILT))
def test_a_rule_for_layers_that_gives_no_sound_graph(frame, monkeypatch, unwarned, caplog, way):
    monkeypatch.setattr(rewrite, "RULES", (whole_graph(BROKEN[way]), *RULES))
    agree_with_one_warning(frame, caplog, "leaves a graph as dask has optimized it")


def test_the_first_rule_that_knows_all_layers_wins(frame, monkeypatch, unwarned):
    asked = []

    def first(layers, output_keys):
        asked.append(output_keys)

    unreached = LayerAnswer(RULES[0].name, "None.", fail)
    first, second = LayerAnswer(RULES[0].name, "None.", first), whole_graph(lambda found, *_: found)
    monkeypatch.setattr(rewrite, "RULES", (first, second, unreached))
    monkeypatch.setattr(rewrite, "push_down", fail)
    assert outcome(frame[0]) == []
    assert len(asked) >= len(PROGRAMS)
    assert all(isinstance(keys, set) and keys for keys in asked)


@pytest.mark.parametrize(
    "layers",
    [
        fail,
        lambda layers, _: HighLevelGraph({}, {}),
        lambda layers, _: dict(layers.layers),
        lambda layers, _: HighLevelGraph(layers.layers, {n: {"lost"} for n in layers.layers}),
        lambda layers, _: HighLevelGraph({n: {} for n in layers.layers}, layers.dependencies),
    ],
    ids=["error", "no layers", "no graph", "dependency lost", "tasks lost"],
)
def test_a_rule_that_spoils_the_layers(frame, monkeypatch, unwarned, caplog, layers):
    broken = LayerRewrite(RULES[0].name, "None.", layers)
    monkeypatch.setattr(rewrite, "RULES", (*RULES, broken))
    agree_with_one_warning(frame, caplog, "leaves a graph as dask has optimized it")


@pytest.mark.parametrize("part", ["condition", "replacement"])
@pytest.mark.parametrize("rule", TASK_RULES, ids=lambda rule: rule.name)
def test_each_rule_may_fail(frame, monkeypatch, unwarned, caplog, rule, part):
    parts = {"condition": rule.condition, "replacement": rule.replacement, part: fail}
    if part == "replacement" and isinstance(rule, GraphRule):
        parts["condition"] = lambda *_: True
    broken = type(rule)(rule.name, rule.reason, **parts)
    monkeypatch.setattr(rewrite, "RULES", tuple(broken if r is rule else r for r in RULES))
    agree_with_one_warning(frame, caplog, "RuntimeError: on purpose")


def test_a_task_rule_that_gives_no_task(frame, monkeypatch, unwarned, caplog):
    broken = TaskRule(RULES[0].name, "None.", lambda top: top, lambda key, *_: "no task")
    monkeypatch.setattr(rewrite, "RULES", (*RULES, broken))
    agree_with_one_warning(frame, caplog, "leaves a graph as dask has optimized it")


def test_sound_graphs_are_taken(frame, unwarned):
    assert outcome(frame[0]) == []


@pytest.mark.parametrize("way", ["missing", "changed"])
def test_names_of_dask_that_are_not_what_they_were(tmp_path, way):
    array = np.random.default_rng(5).integers(0, 3, (20, 20)) / 2
    array[5:10] = 0
    np.save(tmp_path / "array.npy", array)
    blosc2.asarray(array, urlpath=str(tmp_path / "x.b2nd"), chunks=(5, 10), blocks=(5, 5))
    # the others are the optimizer's alone
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
    assert all(entry.reason for entry in _dask_compat.NAMES)
    with pytest.raises(AttributeError, match="no attribute"):
        _dask_compat.nothing  # noqa: B018


#: Modules of dask, and the names in them, that its documentation has.
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
    assert seen == set(_dask_compat.__all__)
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
    with pytest.raises(_dask_compat.DaskChangedError, match="has no"):
        _dask_compat.NAMES[0].resolve()


def test_a_layer_that_cannot_be_built(tmp_path, frame, monkeypatch, unwarned):
    monkeypatch.setitem(vars(_dask_compat), "blockwise", fail)
    with pytest.warns(RuntimeWarning, match="leaves the reading"):
        x = b2nd_dask.from_b2nd(tmp_path / "x.b2nd")
    np.testing.assert_array_equal(x.compute(scheduler="sync"), frame[1])
