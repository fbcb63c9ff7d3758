"""Scheme, path and query of URLs; labels of URLs, without secrets."""

from __future__ import annotations

import re

HIDDEN = "[hidden]"
"""Replaces a removed text."""

#: Characters that only queries with values have.
_VALUES = frozenset("=%&#")
#: Schemes whose paths are names, with ``#``, ``;`` and ``?`` as ordinary characters.
_PLAIN_NAMES = {"abfs", "abfss", "az", "file", "gcs", "gs", "local", "memory", "s3", "s3a", "zip"}
#: Those whose labels show ``?``; in the others it may start a query that holds a secret.
_MARKS_IN_NAMES = {"abfs", "abfss", "az", "memory", "s3", "s3a"}
_FIRST_LINK = re.compile(r"(?:[A-Za-z0-9+.-]+::)*([A-Za-z][A-Za-z0-9+.-]*)://")
#: Ends of the path in a URL: its query, or the next link of a chain.
_END_OF_PATH = re.compile(r"\?|::")
#: Queries of stores with plain names are versions of objects on S3, Azure and Google.
_END_OF_NAME = re.compile(r"\?(versionid|generation)=|::", re.IGNORECASE)
_END_OF_AUTHORITY = re.compile(r"[/?#]")
_PORT = re.compile(r"\[.*|[^:]*(:[0-9]*)?")
_PARAM = re.compile(r";[^/]*")


def scheme_of(url: str) -> str:
    """Scheme of a URL in lower case, in a chain that of the first link with a path.

    Empty if the text is no URL.
    """
    found = _FIRST_LINK.match(url)
    return found[1].lower() if found else ""


def split_path(url: str) -> tuple[str, str]:
    """Split a path or URL at the end of its path; a query or more links of a chain may follow.

    In local paths and names of objects in stores, ``?`` is an ordinary character, unless it starts
    the version of an object.

    Examples
    --------
    >>> split_path("https://host/a.b2nd?v=1")
    ('https://host/a.b2nd', '?v=1')
    >>> split_path("s3://bucket/what?.b2nd?versionId=1")
    ('s3://bucket/what?.b2nd', '?versionId=1')
    >>> split_path("zip://a.b2nd::https://host/a.zip?v=1")
    ('zip://a.b2nd', '::https://host/a.zip?v=1')
    """
    link = _FIRST_LINK.match(url)
    if link is None:
        return url, ""
    end = _END_OF_NAME if scheme_of(url) in _PLAIN_NAMES else _END_OF_PATH
    found = end.search(url, link.end())
    at = found.start() if found else len(url)
    return url[:at], url[at:]


def below(url: str, name: str) -> str:
    """Path or URL of a file in the folder that a path or URL names."""
    path, rest = split_path(url)
    return f"{path.rstrip('/')}/{name}{rest}"


def public_url(url: str) -> str:
    """Remove user names, passwords, parameters, queries and fragments from a URL (maybe chained).

    Examples
    --------
    >>> public_url("https://user:secret@host/a.b2nd;v=1?signature=secret#token=secret")
    'https://host/a.b2nd'
    >>> public_url("s3://bucket/part?.b2nd")
    's3://bucket/part?.b2nd'
    """
    shown: list[str] = []
    for link in links_of(url):
        if shown and _is_cut_password(shown[-1], link):
            shown[-1] = HIDDEN
        else:
            shown.append(public_link(link))
        if shown[-1].endswith(HIDDEN):
            break  # the other links may belong to the same password
    return "::".join(shown)


def links_of(url: str) -> list[str]:
    """Split a chain of URLs; the query or fragment of a web server's URL may have ``::`` in it.

    Examples
    --------
    >>> links_of("simplecache::http://host/a?x=1::2")
    ['simplecache', 'http://host/a?x=1::2']
    """
    links = url.split("::")
    for at, link in enumerate(links):
        scheme, _, rest = link.partition("://")
        if scheme.lower() not in _PLAIN_NAMES and not {"?", "#"}.isdisjoint(rest):
            return [*links[:at], "::".join(links[at:])]
    return links


def _is_cut_password(host: str, link: str) -> bool:
    """Whether a host and a link are halves of a URL that was split at a "::" in its password."""
    scheme, separator, rest = host.partition("://")
    is_host = separator and "/" not in rest and scheme.lower() not in _PLAIN_NAMES
    return bool(is_host) and "://" not in link and "@" in link


def public_link(link: str) -> str:
    """`public_url` of one link of a chain."""
    scheme, separator, rest = link.partition("://")
    return f"{scheme}://{_public_rest(scheme, rest)}" if separator else link.partition("?")[0]


def _public_rest(scheme: str, rest: str) -> str:
    """Return the public part of the text after ``scheme://``."""
    plain = scheme.lower() in _PLAIN_NAMES
    authority = _END_OF_AUTHORITY.split(rest, maxsplit=1)[0]
    host = authority.rpartition("@")[2]
    behind = rest[len(authority) :]
    if not _PORT.fullmatch(host) and ("@" in rest or not plain):
        # not a port, but the start of a password with "/", "?" or "#", whose end is unknown
        return HIDDEN
    if "@" in behind and (":" in authority or "@" in authority):
        # a seeming port or host may be the start of such a password, too
        return HIDDEN
    path, mark, query = behind.partition("?")
    if plain:
        # for s3fs and adlfs ? is a character of the name, unless a value follows
        in_name = scheme.lower() in _MARKS_IN_NAMES and _VALUES.isdisjoint(query)
        return host + path + (mark + query if in_name else "")
    return _PARAM.sub("", host + path.partition("#")[0])
