"""The shortest part of a program that still differs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.graph.programs.program import Program


def reduced(program: Program, differs: Callable[[Program], bool]) -> Program:
    """Remove parts of a program one by one, as long as it still differs."""
    found = True
    while found:
        found = False
        for smaller in _smaller(program):
            if differs(smaller):
                program, found = smaller, True
                break
    return program


def _smaller(program: Program) -> Iterator[Program]:
    if len(program.outputs) > 1:
        for name in program.outputs:
            yield replace(program, outputs={name: program.outputs[name]})
    for change in (
        {"scheduler": "sync"},
        {"way": "as it is"},
        {"wrapped": False},
        {"held": 1 << 28},
        {"threads": 2},
    ):
        if replace(program, **change) != program:
            yield replace(program, **change)
    for number in reversed(range(len(program.lines))):
        lines = list(program.lines)
        line = lines.pop(number)
        yield replace(program, lines=tuple(lines))
        name, _, rest = line.partition(" = ")
        # the result of the line is its argument
        for other in dict.fromkeys(re.findall(r"\bv\d+\b", rest)):
            shorter = [re.sub(rf"\b{name}\b", other, later) for later in lines[number:]]
            outputs = {other if n == name else n: p for n, p in program.outputs.items()}
            yield replace(program, lines=(*lines[:number], *shorter), outputs=outputs)
    for number, source in enumerate(program.sources):
        simpler = [replace(source, contiguous=True), replace(source, stats=False)]
        simpler.append(replace(source, start="zeros"))
        simpler += [
            replace(source, writes=source.writes[:i] + source.writes[i + 1 :])
            for i in range(len(source.writes))
        ]
        for one in simpler:
            if one != source:
                sources = (*program.sources[:number], one, *program.sources[number + 1 :])
                yield replace(program, sources=sources)
