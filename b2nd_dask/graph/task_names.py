"""Names of tasks for dask's dashboard: the step and its frame.

dask groups the keys of tasks by `dask.utils.key_split`. It keeps the first word of a key, up to
a hyphen, and further words only if they consist of letters. So step and frame are one word.
"""

from __future__ import annotations

import re

#: Maximum length of a frame's name: a dashboard has little room.
MAX_NAME_LEN = 40

_SUFFIX = re.compile(r"\.b2nd(\[\d+:\])?$")
#: Suffix of the label of joined frames.
_OTHERS = re.compile(r" and (\d+) others$")
#: Parts that dask adds to the name of a reduction.
_STEP = re.compile(r"^(chunk_|_)|_(chunk|combine|agg|skip)$")
_UNSAFE = re.compile(r"[^\w.]+")


def of_frame(label: str, token: str) -> str:
    """End of a task's name: its frame, by its path or URL without secrets, and a unique token."""
    name = frame_name(label)
    return f"({name})-{token}" if name else f"-{token}"


def read_name(label: str, token: str) -> str:
    """Name of a task that reads a frame, from its path or URL without secrets, and a token."""
    return "read" + of_frame(label, token)


def frame_name(label: str) -> str:
    """Last part of a path or URL, without characters that dask or a dashboard parses."""
    others = _OTHERS.search(label)
    if others:
        label = label[: others.start()]
    links = [link.partition("://")[2] or link for link in label.split("::") if "/" in link]
    last = links[0].rstrip("/").rpartition("/")[2] if links else ""
    if last.endswith("]") and "[hidden]" in last:
        return ""
    end = f"_and_{others[1]}" if others else ""
    name = _UNSAFE.sub("_", _SUFFIX.sub("", last)).strip("_")[: MAX_NAME_LEN - len(end)]
    return name and name + end


def reading_name(name: str, label: str) -> str:
    """Name of a task that reduces blocks of a frame while it reads them; `name` is dask's.

    Examples
    --------
    >>> reading_name("mean_combine-partial-0a1b", "/data/t2m.b2nd")
    'read_mean(t2m)-mean_combine.partial.0a1b'
    """
    step = _STEP.sub("", name.partition("-")[0])
    # different names stay different
    return f"read_{step}" + of_frame(label, name.replace("-", "."))
