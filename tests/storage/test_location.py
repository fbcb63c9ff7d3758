"""What users may pass as a location, and what of it is shown."""

from __future__ import annotations

import pickle
from pathlib import Path
from urllib.parse import quote

import pytest

from b2nd_dask.storage import Location, Span


def test_the_forms_of_a_local_path_are_one_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.b2nd"
    monkeypatch.chdir(tmp_path)
    forms = ["a.b2nd", str(path), path, Path("a.b2nd"), f"file://{path}", f"local://{path}"]
    assert {Location.of(form) for form in forms} == {Location.of(path)}
    assert {Location.of(form).key for form in forms} == {Location.of(path).key}
    assert Location.of(path).label == str(path)


class Credentials:
    """As of a store's library: without equality."""


def test_options_without_equality_are_one_place() -> None:
    one = Location.of("s3://bucket/a.b2nd", storage_options={"session": Credentials()})
    two, three = (pickle.loads(pickle.dumps(one)) for _ in range(2))
    assert two.key == three.key == one.key


def test_a_path_object_is_never_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("zip::a.b2nd").write_bytes(b"data")
    assert Location.of(Path("zip::a.b2nd")).open().read([Span(0, 4)]) == [b"data"]
    # no file system is called so
    Path("2026-11::a.b2nd").write_bytes(b"more")
    assert Location.of("2026-11::a.b2nd").open().read([Span(0, 4)]) == [b"more"]
    Path("night::a.b2nd").write_bytes(b"some")
    assert Location.of("night::a.b2nd").open().read([Span(0, 4)]) == [b"some"]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_are_kept_as_they_were(kind: type) -> None:
    mutable = bytearray(b"0123456789")
    location = Location.of(kind(mutable))
    mutable[:] = b"xxxxxxxxxx"
    assert location.urlpath == b"0123456789"
    assert location.label == "<bytes, 10 B>"


@pytest.mark.parametrize("what", [None, 3, ["a.b2nd"], object()])
def test_what_is_no_place(what: object) -> None:
    with pytest.raises(TypeError, match=f"path.*URL.*bytes.*{type(what).__name__}"):
        Location.of(what)  # type: ignore[arg-type]


def test_a_negative_offset() -> None:
    with pytest.raises(ValueError, match="offset is -1"):
        Location.of(b"data", offset=-1)


@pytest.mark.parametrize("name", ["run#1.b2nd", "a?b.b2nd", "c%d.b2nd", "a b.b2nd"])
def test_any_character_in_a_file_url(tmp_path: Path, name: str) -> None:
    for url in (
        f"file://{tmp_path}/{name.replace('%', '%25')}",
        f"file://{tmp_path}/{quote(name)}",
    ):
        assert Location.of(url).urlpath == str(tmp_path / name)


@pytest.mark.parametrize("urlpath", ["a.b2nd", "file:///a.b2nd", b"data"])
def test_storage_options_are_for_urls(urlpath: str | bytes) -> None:
    with pytest.raises(ValueError, match="storage_options are for remote stores") as caught:
        Location.of(urlpath, storage_options={"secret": "hunter2"})
    assert "hunter2" not in str(caught.value)
    assert Location.of(urlpath, storage_options={}) == Location.of(urlpath)


def test_storage_options_are_a_mapping() -> None:
    with pytest.raises(TypeError, match=r"storage_options must be a mapping .*, not str"):
        Location.of("s3://bucket/a.b2nd", storage_options="anon")


SECRET_URLS = [
    ("https://user:hunter2@host/a.b2nd", "https://host/a.b2nd"),
    ("https://hunter2@host/a.b2nd?X-Amz-Signature=hunter2", "https://host/a.b2nd"),
    ("simplecache::https://u:hun@ter2@host/a.b2nd?s=hunter2", "simplecache::https://host/a.b2nd"),
    ("zip://a.b2nd::ftp://u:hunter2@host/a.zip", "zip://a.b2nd::ftp://host/a.zip"),
    ("s3://bucket/user@lab/a.b2nd", "s3://bucket/user@lab/a.b2nd"),
    ("s3://bucket/run#3;draft/a.b2nd", "s3://bucket/run#3;draft/a.b2nd"),
    ("s3://bucket/part?.b2nd", "s3://bucket/part?.b2nd"),
    ("s3://bucket/a.b2nd?versionId=hunter2", "s3://bucket/a.b2nd"),
    ("s3://bucket/a.b2nd?sig%3Dhunter2", "s3://bucket/a.b2nd"),
    ("s3://bucket/a.b2nd?hunter2&x", "s3://bucket/a.b2nd"),
    ("az://frames/part?.b2nd", "az://frames/part?.b2nd"),
    ("abfs://frames/a.b2nd?sv=1&sig=hunter2", "abfs://frames/a.b2nd"),
    ("gs://bucket/a.b2nd?hunter2", "gs://bucket/a.b2nd"),
    ("https://host/a.b2nd?hunter2", "https://host/a.b2nd"),
    ("s3://arn:aws:s3:eu:1:accesspoint/x/a.b2nd", "s3://arn:aws:s3:eu:1:accesspoint/x/a.b2nd"),
    ("http://host:8080/user@lab/a.b2nd", "http://[hidden]"),
    ("http://host/user@lab/a.b2nd", "http://host/user@lab/a.b2nd"),
    ("https://user:123/ter2@host/a.b2nd", "https://[hidden]"),
    ("https://user:123?ter2@host/a.b2nd", "https://[hidden]"),
    ("https://user:123#ter2@host/a.b2nd", "https://[hidden]"),
    ("https://u:12@34/ter2@h/a.b2nd", "https://[hidden]"),
    ("https://u@34/ter2@h/a.b2nd", "https://[hidden]"),
    ("s3://AK:12/ter2@bucket/a.b2nd", "s3://[hidden]"),
    ("s3://AK:hunter2@bucket/a.b2nd", "s3://bucket/a.b2nd"),
    ("https://u:hunter2@host:8443/a.b2nd", "https://host:8443/a.b2nd"),
    ("https://host/a.b2nd#token=hunter2", "https://host/a.b2nd"),
    ("https://host/a.b2nd?x=1::hunter2", "https://host/a.b2nd"),
    ("simplecache::https://host/a.b2nd#x::hunter2", "simplecache::https://host/a.b2nd"),
    ("zip://a?.b2nd::s3://bucket/a.zip", "zip://a::s3://bucket/a.zip"),
    ("https://host/a.b2nd;id=hunter2?b=1#c", "https://host/a.b2nd"),
    ("https://host/data;id=hunter2/a.b2nd", "https://host/data/a.b2nd"),
    ("https://u:hun;ter2@host/a.b2nd", "https://host/a.b2nd"),
    ("https://host?mail=u@hunter2", "https://host"),
    ("https://u:hun/ter2@host/a.b2nd", "https://[hidden]"),
    ("https://u:hun?ter2@host/a.b2nd", "https://[hidden]"),
    ("https://u:hun#ter2@host/a.b2nd", "https://[hidden]"),
    ("zip://a.b2nd::https://u:hun::ter2@host/a.zip", "zip://a.b2nd::https://[hidden]"),
    ("https://u:12::ter2@host/a.b2nd", "[hidden]"),
    ("zip://a.b2nd::data/user@lab/a.zip", "zip://a.b2nd::data/user@lab/a.zip"),
    ("https://host/folder//?hunter2", "https://host/folder"),
    ("memory://", "memory://"),
]


@pytest.mark.parametrize(("url", "label"), SECRET_URLS)
def test_secrets_are_not_shown(url: str, label: str) -> None:
    location = Location.of(url, offset=16, storage_options={"secret": "hunter2"})
    assert location.label == f"{label}[16:]"
    reader = location.open()
    for shown in (repr(location), repr(reader), str(location), f"{location}", reader.label):
        assert label in shown
        assert "ter2" not in shown


@pytest.mark.parametrize(
    "urlpath",
    [
        " http://u:hunter2@host/a.b2nd",
        "\nhttps://host/a.b2nd?sig=hunter2",
        "http:/u:hunter2@host/a.b2nd",
        "https:/host/a.b2nd?sig=hunter2",
        "s3:AK:hunter2@bucket/a.b2nd",
    ],
)
def test_mistyped_urls_are_refused_and_not_shown(urlpath: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="looks like a mistyped URL") as caught:
        Location.of(urlpath)
    assert "hunter2" not in str(caught.value)
    # such a file has a way in
    assert Location.of(tmp_path / urlpath.strip()).urlpath == str(tmp_path / urlpath.strip())


def test_the_key_covers_every_field() -> None:
    url = "s3://bucket/a.b2nd"
    locations = [
        Location.of(url),
        Location.of(url, offset=1),
        Location.of(url, storage_options={"key": "a"}),
        Location.of(url, storage_options={"key": "b"}),
        Location.of(url.encode()),
        Location.of("s3://bucket/b.b2nd"),
    ]
    assert len({location.key for location in locations}) == len(locations)
    assert len(set(locations)) == len(locations)


def test_equal_locations_have_equal_keys() -> None:
    url = "s3://bucket/a.b2nd"
    one = Location.of(url, storage_options={"key": "a", "client_kwargs": {"endpoint_url": "x"}})
    two = Location.of(url, storage_options={"client_kwargs": {"endpoint_url": "x"}, "key": "a"})
    three = pickle.loads(pickle.dumps(one))
    assert one == two == three
    assert one.key == two.key == three.key
    assert len({one, two, three}) == 1
    assert Location.of(url, storage_options={}).key == Location.of(url).key


def test_options_changed_afterwards_do_not_matter() -> None:
    options = {"key": "a"}
    location = Location.of("s3://bucket/a.b2nd", storage_options=options)
    options["key"] = "b"
    assert location == Location.of("s3://bucket/a.b2nd", storage_options={"key": "a"})
