"""Who may do what: the schemes world, auth, digest and ip, with ZooKeeper's rules."""

import base64
import hashlib
import ipaddress
from collections.abc import Iterable
from typing import TypeAlias

from lockstep.coordination.wire.records import Acl

Identity: TypeAlias = tuple[str, str]
"""(scheme, id), as in an access list."""

SUPER: Identity = ("super", "")


def authenticate(scheme: str, secret: bytes, super_digest: str | None = None) -> Identity | None:
    """The identity that `addauth` proves, or None. The only scheme that clients add is digest."""
    if scheme != "digest" or b":" not in secret:
        return None
    identity = digest(secret)
    return SUPER if super_digest is not None and identity == super_digest else ("digest", identity)


def digest(credentials: bytes) -> str:
    """`user:password` as access lists name it: the user, and a hash of both."""
    user = credentials.partition(b":")[0].decode(errors="replace")
    return f"{user}:{base64.b64encode(hashlib.sha1(credentials).digest()).decode()}"


def allowed(acl: Iterable[Acl], perm: int, identities: Iterable[Identity]) -> bool:
    held = tuple(identities)
    if SUPER in held:
        return True
    for entry in acl:
        if not entry.perms & perm:
            continue
        if entry.scheme == "world" and entry.id == "anyone":
            return True
        for scheme, identity in held:
            if scheme != entry.scheme:
                continue
            if identity == entry.id or (scheme == "ip" and _within(identity, entry.id)):
                return True
    return False


def resolve(acl: Iterable[Acl], identities: Iterable[Identity]) -> tuple[Acl, ...] | None:
    """The list to store: `auth` becomes the creator's identities. None if an entry means nothing."""
    resolved: dict[Acl, None] = {}
    for entry in acl:
        match entry.scheme:
            case "world" if entry.id == "anyone":
                resolved[entry] = None
            case "auth":
                proven = [i for i in identities if i[0] in ("digest", "super")]
                if not proven:
                    return None
                for scheme, identity in proven:
                    resolved[Acl(entry.perms, scheme, identity)] = None
            case "digest" if entry.id.count(":") == 1:
                resolved[entry] = None
            case "ip" if _network(entry.id) is not None:
                resolved[entry] = None
            case _:
                return None
    return tuple(resolved) or None


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


def _within(address: str, text: str) -> bool:
    network = _network(text)
    try:
        return network is not None and ipaddress.ip_address(address) in network
    except ValueError:
        return False
