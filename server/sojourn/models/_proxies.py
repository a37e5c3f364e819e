"""Which proxy of the environment a model server is reached through, if any.

The rule: loopback servers are always reached directly, and a SOCKS proxy, which the HTTP library cannot speak without
an extra, is ignored with one notice. The HTTP library's own reading of the environment is switched off: it raises on
either before a request is made.
"""

from __future__ import annotations

import ipaddress
import urllib.request
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Route:
    """How to reach a server: through `proxy`, or directly; `ignored` is a proxy's scheme that could not be used."""

    proxy: str | None = None
    ignored: str | None = None


def route_to(url: str) -> Route:
    """The route to the server at `url` by the environment's `*_proxy` and `no_proxy`."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if is_loopback(host) or urllib.request.proxy_bypass(f"{host}:{parts.port}" if parts.port else host):
        return Route()
    proxies = urllib.request.getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy:
        return Route()
    if "://" not in proxy:
        proxy = f"http://{proxy}"
    scheme = proxy.partition("://")[0].lower()
    return Route(proxy=proxy) if scheme in ("http", "https") else Route(ignored=scheme)


def is_loopback(host: str) -> bool:
    """Whether a host name or address never leaves this machine."""
    if host.lower().rstrip(".") == "localhost" or host.lower().rstrip(".").endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
