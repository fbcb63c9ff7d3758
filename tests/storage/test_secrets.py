"""Secrets of storage options in errors, whatever their type is and however a client spells them."""

from __future__ import annotations

import base64
import json
import traceback
from collections import namedtuple
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus

import fsspec
import pytest
from fsspec import AbstractFileSystem

from b2nd_dask.storage import Location

if TYPE_CHECKING:
    from collections.abc import Callable


class Telling(AbstractFileSystem):
    """Fails with what it was given, in the spelling that the path says."""

    protocol = "telling"
    cachable = False

    def __init__(self, how: Callable[[Any], str], **given: Any) -> None:
        super().__init__()
        self.how, self.given = how, given

    def info(self, path: str, **_: object) -> dict[str, object]:
        error = OSError(f"refused {self.how(self.given)}")
        if path == "note":
            error = OSError("telling://note refused")
            error.add_note(self.how(self.given))
        raise error


@dataclass
class Account:
    """Credentials as some libraries hold them, whose `repr` shows them."""

    name: str
    password: str | bytes


SECRET = "hunter2/+é"
AS_BYTES = SECRET.encode()


Pair = namedtuple("Pair", "name password")

GIVEN: dict[str, dict[str, Any]] = {
    "text": {"secret": SECRET},
    "bytes": {"secret": AS_BYTES},
    "bytearray": {"secret": bytearray(AS_BYTES)},
    "memoryview": {"secret": memoryview(AS_BYTES)},
    "nested": {"client_kwargs": {"auth": ("user", [AS_BYTES])}},
    "object": {"account": Account("user", AS_BYTES)},
    "object in a list": {"account": [Account("user", SECRET)]},
    "named tuple": {"account": Pair("user", AS_BYTES)},
    "bearer": {"headers": {"Authorization": b"Bearer " + AS_BYTES}},
    "basic": {
        "headers": {"Authorization": "Basic " + base64.b64encode(b"user:" + AS_BYTES).decode()}
    },
}

SPELLED: dict[str, Callable[[Any], str]] = {
    "repr": repr,
    "repr of a repr": lambda given: repr(repr(given)),
    "JSON": lambda given: json.dumps(str(given)),
    "text": lambda _: SECRET,
    "bytes": lambda _: str(AS_BYTES),
    "wrongly decoded": lambda _: AS_BYTES.decode("latin-1"),
    "quoted": lambda _: f"{quote(SECRET)} {quote(SECRET, safe='')} {quote_plus(SECRET)}",
    "hexadecimal": lambda _: AS_BYTES.hex(),
    "base64": lambda _: base64.b64encode(AS_BYTES).decode(),
    "base64 with more": lambda _: base64.b64encode(b"user:" + AS_BYTES + b"@host").decode(),
    "base64 for URLs": lambda _: base64.urlsafe_b64encode(b"the user:" + AS_BYTES).decode(),
}

#: Of the secret in all of these, base64 at each of the three alignments.
TRACES = ["hunter2", b"hunter2".hex(), "aHVudGVy", "h1bnRlc", "odW50ZX"]


@pytest.mark.parametrize("spelled", SPELLED)
@pytest.mark.parametrize("given", GIVEN)
def test_secrets_are_taken_out_in_whatever_type_and_spelling(given: str, spelled: str) -> None:
    fsspec.register_implementation("telling", Telling, clobber=True)
    options = {"how": SPELLED[spelled], **GIVEN[given]}
    for path in ("message", "note"):
        location = Location.of(f"telling://{path}", storage_options=options)
        with pytest.raises(OSError, match=f"^telling://{path}") as caught:
            location.open().identity()
        shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
        assert not any(trace in shown for trace in TRACES), shown
    assert "refused" in shown


def test_a_long_number_that_the_command_line_took_for_one_is_a_secret() -> None:
    fsspec.register_implementation("telling", Telling, clobber=True)
    options = {"how": repr, "password": 1234567890, "port": 8080}
    with pytest.raises(OSError, match="8080") as caught:
        Location.of("telling://message", storage_options=options).open().identity()
    assert "123456" not in str(caught.value)
