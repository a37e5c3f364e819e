"""Where a model's server is. Apart from the client, so that asking for it imports no HTTP library."""

from __future__ import annotations

from urllib.parse import urlsplit

from sojourn.core.errors import InvalidParams

from .base import ModelSpec


def base_url_of(spec: ModelSpec, default: str) -> str:
    """The address of a model's server. Raises `InvalidParams` when it is none."""
    url = spec.base_url or default
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        fits = False
    if not fits:
        raise InvalidParams(
            f"The model {spec.name!r} has the base URL {url!r}; give one like 'http://127.0.0.1:11434/v1'.",
            field="base_url",
        )
    return url.rstrip("/")
