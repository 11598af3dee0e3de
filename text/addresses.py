"""Addresses of the web and of mail, paths, and names of files, in any language."""

from __future__ import annotations

import re
from dataclasses import dataclass

_TOP = (
    "com|org|net|edu|gov|mil|int|info|biz|io|ai|co|dev|app|uk|us|eu|de|fr|es|it|nl|ch|at|ca|au|"
    "jp|cn|in|me|tv|xyz|shop|online|tech|cloud|gg|ly|fm|be|se|no|dk|fi|pl|nz|ie|example|test"
)
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = rf"(?P<host>(?:{_LABEL}\.){{1,6}}(?P<top>(?i:{_TOP})))(?![A-Za-z0-9-])"
#: After "http://" any host is accepted: with any ending or none, or an address in numbers.
_SURE_LABEL = r"[A-Za-z0-9](?:[\w-]{0,61}[A-Za-z0-9])?"
_SURE_HOST = rf"(?P<host>\[[0-9A-Fa-f:.]{{2,45}}\]|{_SURE_LABEL}(?:\.{_SURE_LABEL}){{0,8}})"
_USER = r"(?:[^\s/?#\"<>]{0,200}@)?"
_PATH = (
    r"(?::(?P<port>\d{1,5})(?!\d))?(?P<path>(?:/(?:[\w~%+@-]|\.(?=[\w~%+@/-])){0,200}){0,12})"
    r"(?:[?#][^\s\"'<>)]{0,400}(?<![.,!?]))?"
)
#: What may stand before most of these.
BEHIND = r"[^A-Za-z0-9]?"
#: Addresses of the web, whose parts ``web`` returns, and what may stand before each.
WEB: tuple[tuple[str, str | None], ...] = (
    (rf"(?P<scheme>(?i:https?|wss?|ftp)://){_USER}{_SURE_HOST}{_PATH}", None),
    (rf"(?P<scheme>(?i:www)\.)(?=[^\s/?#:]{{1,200}}\.[A-Za-z0-9]){_SURE_HOST}{_PATH}", BEHIND),
    (rf"(?P<scheme>)(?P<host>localhost)(?=:\d){_PATH}", BEHIND),
    (rf"(?P<scheme>www\.)?(?!\d+\.\d)(?!\w{{1,40}}\.\s){_HOST}{_PATH}", BEHIND),
)
MAIL = rf"(?P<local>[A-Za-z0-9][\w.+-]{{0,63}})@{_HOST}"
IPV6 = r"[0-9A-Fa-f]{1,4}(?:::?[0-9A-Fa-f]{1,4}){1,7}(?![A-Za-z0-9:])"
#: A path from the root, which has two slashes or more.
PATH = r"/(?:[A-Za-z._][\w.+~-]{0,60}/){1,12}(?:[\w.+~-]{0,60}[\w+~-])?"
PATH_ON_DRIVE = r"[A-Za-z]:\\(?:[\w.+~-]{1,60}\\){0,12}(?:[\w.+~-]{0,60}[\w+~-])?"
FILE = r"(?P<name>[A-Za-z][A-Za-z0-9]{1,40})\.(?P<end>[a-z][a-z0-9]{0,5})(?![A-Za-z0-9.])"


@dataclass(frozen=True, slots=True)
class Web:
    """The parts of a web address that are spoken: no user, query or fragment."""

    host: str
    port: str | None
    path: str


def web(match: re.Match[str]) -> Web | None:
    """Return the parts of a match of ``WEB``, the host without ``www.``; None if it is a full stop
    without its space: "Yes.It is".
    """
    host = match["host"]
    if host[:4].lower() == "www." and "." in host[4:]:
        host = host[4:]
    bare = match["scheme"] is None and host == match["host"]
    if bare and not match["path"] and not match["port"]:
        last = host.rsplit(".", 2)[-1]
        if last != last.lower():
            return None
    return Web(host, match["port"], match["path"].strip("/").rstrip("."))


def is_ipv6(written: str) -> bool:
    """Whether a match of ``IPV6`` has as many groups as an address, and a digit."""
    return ("::" in written or written.count(":") == 7) and any(map(str.isdigit, written))
