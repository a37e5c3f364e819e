"""One model's way to its server: a request goes out, the answer's bytes come back in pieces.

The rule: every failure is a `ModelError`, every answer is closed on every path, and two limits hold: `idle_timeout_s`
between two pieces (also before the first) and `total_timeout_s` for the whole turn, retries included. httpx is
imported when the first request is made, and its default limits and reading of the environment are not used.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from sojourn.core.errors import ModelError

from ._proxies import route_to
from ._secrets import ApiKey
from ._wire_errors import Peer, status_error
from .base import ModelNotice, ModelSpec

if TYPE_CHECKING:
    import httpx

CONNECT_LIMIT_S = 30.0
ERROR_BODY_BYTES = 64 * 1024
ERROR_BODY_S = 5.0
"""How long the words of a refusal are waited for."""
DRAIN_LIMIT_S = 0.05
_PACKED = ("", "identity", "gzip", "x-gzip", "deflate")
"""Forms of a body that are read: what is packed twice can become a million times as large."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Auth:
    """The header that carries the key, e.g. `authorization` with the prefix `Bearer `."""

    header: str = "authorization"
    prefix: str = "Bearer "


class Reply:
    """The answer to one request, status 200. `read` is the only way to its bytes."""

    def __init__(self, response: httpx.Response, pieces: AsyncGenerator[bytes, None], wire: Wire, limit: float) -> None:
        self.headers: Mapping[str, str] = response.headers
        self._pieces = pieces
        self._wire = wire
        self._deadline = limit

    @property
    def request_id(self) -> str | None:
        """What the provider calls this request, for its support."""
        return self.headers.get("x-request-id") or self.headers.get("request-id")

    async def read(self, *, within_s: float | None = None) -> bytes:
        """The next piece; b"" at the end, or when `within_s` is given and nothing came in that time."""
        now = asyncio.get_running_loop().time()
        limit = self._deadline if within_s is None else min(self._deadline, now + within_s)
        try:
            async with asyncio.timeout_at(limit):
                return await anext(self._pieces, b"")
        except TimeoutError:
            if within_s is not None and limit < self._deadline:
                return b""
            raise self._wire.too_long() from None
        except Exception as error:  # noqa: BLE001 - httpx's tree is not imported here; `failure` passes on what is not of it
            raise self._wire.failure(error) from None

    async def drain(self) -> None:
        """Reads a finished answer's last bytes if they are there, so that the connection can be used again."""
        try:
            async with asyncio.timeout(DRAIN_LIMIT_S):
                async for _ in self._pieces:
                    pass
        except Exception:  # noqa: BLE001 - the answer is complete; whatever happens to its connection now is no matter
            _log.debug("The connection of a finished answer is not used again.")


class Wire:
    """The HTTP client of one model, made at the first request and shared by all of them."""

    def __init__(self, spec: ModelSpec, *, provider: str, base_url: str, auth: Auth | None = None) -> None:
        self.spec = spec
        self.provider = provider
        self.base_url = base_url
        self._auth = auth or Auth()
        self._key = ApiKey(spec)
        self._secrets: tuple[str, ...] = tuple(value for value in spec.headers.values() if len(value) >= 8)
        self._client: httpx.AsyncClient | None = None
        self._notices: list[ModelNotice] = []

    @property
    def peer(self) -> Peer:
        """The server as errors name it."""
        return Peer(self.provider, self.spec.name, self._secrets)

    def open(self) -> list[ModelNotice]:
        """Makes the client if there is none; answers what there is to tell about it, once."""
        self._open_client()
        notices, self._notices = self._notices, []
        return notices

    def deadline(self) -> float:
        """When a turn that begins now must have ended, on the event loop's clock."""
        return asyncio.get_running_loop().time() + self.spec.total_timeout_s

    def time_left(self, deadline: float) -> float:
        """Seconds until `deadline`."""
        return deadline - asyncio.get_running_loop().time()

    def post(
        self, path: str, body: bytes, *, deadline: float, headers: Mapping[str, str] | None = None
    ) -> AbstractAsyncContextManager[Reply]:
        """Sends a request; the context is its answer, closed at the end. Raises `ModelError` for any status but 200."""
        return self._post(path, body, deadline, dict(headers or {}))

    @asynccontextmanager
    async def _post(self, path: str, body: bytes, deadline: float, headers: dict[str, str]) -> AsyncIterator[Reply]:
        client = self._open_client()
        headers = {**await self._headers(), **headers, **{k.lower(): v for k, v in self.spec.headers.items()}}
        response = await self._send(client, self.base_url + path, body, headers, deadline)
        try:
            async with aclosing(_pieces(response)) as pieces:
                reply = Reply(response, pieces, self, deadline)
                self._check_packing(response)
                if response.status_code != 200:
                    raise await self._refusal(response, reply)
                yield reply
        finally:
            await response.aclose()

    async def _send(
        self, client: httpx.AsyncClient, url: str, body: bytes, headers: dict[str, str], deadline: float
    ) -> httpx.Response:
        try:
            request = client.build_request("POST", url, content=body, headers=headers)
            async with asyncio.timeout_at(deadline):
                return await client.send(request, stream=True)
        except TimeoutError:
            raise self.too_long() from None
        except Exception as error:  # noqa: BLE001 - `failure` passes on what is not httpx's
            raise self.failure(error) from None

    async def _headers(self) -> dict[str, str]:
        headers = {
            "content-type": "application/json",
            "accept": "text/event-stream, application/json",
            "accept-encoding": "identity",  # whoever packs a stream keeps its beginning back until there is more of it
        }
        key = await self._key.get()
        if key is not None:
            headers[self._auth.header] = self._auth.prefix + key
            if key not in self._secrets:
                self._secrets = (*self._secrets, key)
        return headers

    def _check_packing(self, response: httpx.Response) -> None:
        packed = response.headers.get("content-encoding", "").strip().lower()
        if packed not in _PACKED:
            raise self.peer.error(
                f"answered with the content encoding {packed[:64]!r}, which was not asked for and is not read.",
                retryable=False,
                reason="badAnswer",
            )

    async def _refusal(self, response: httpx.Response, reply: Reply) -> ModelError:
        body = b""
        try:
            async with asyncio.timeout(ERROR_BODY_S):
                while len(body) < ERROR_BODY_BYTES and (piece := await reply.read()):
                    body += piece
        except (ModelError, TimeoutError):
            _log.debug("The body of an error answer was cut.")
        if response.status_code == 401:
            self._key.forget()
        return status_error(self.peer, response.status_code, response.headers, body)

    def too_long(self) -> ModelError:
        """The turn took longer than `total_timeout_s`."""
        limit = self.spec.total_timeout_s
        return self.peer.error(
            f"did not end its answer within {limit:g} s (`total_timeout_s`).", retryable=False, reason="totalTimeout"
        )

    def failure(self, error: Exception) -> Exception:
        """What an exception of httpx means; any other is answered as it is."""
        import httpx

        if isinstance(error, httpx.ReadTimeout | httpx.WriteTimeout):
            limit = self.spec.idle_timeout_s
            return self.peer.error(
                f"sent nothing for {limit:g} s (`idle_timeout_s`).", retryable=True, reason="idleTimeout"
            )
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError | httpx.PoolTimeout):
            return self.peer.error(
                f"cannot be reached at {self.base_url}: {str(error).rstrip('.') or type(error).__name__}.",
                retryable=not isinstance(error.__cause__, ssl.SSLCertVerificationError),
                reason="connectionFailed",
            )
        if isinstance(error, httpx.LocalProtocolError | httpx.UnsupportedProtocol | httpx.InvalidURL):
            # The library's words quote the header, which may be a secret.
            return self._bad_config("an address or a header in its config cannot be sent")
        if isinstance(error, httpx.TransportError | httpx.DecodingError):
            return self.cut(str(error))
        return error

    def cut(self, why: str = "") -> ModelError:
        """The connection ended before the answer did."""
        because = f" ({why.rstrip('.')})" if why else ""
        return self.peer.error(
            f"broke off before the end of its answer{because}; nothing of it is kept.",
            retryable=True,
            reason="streamCut",
        )

    def _open_client(self) -> httpx.AsyncClient:
        if self._client is not None:
            return self._client
        import httpx

        route = route_to(self.base_url)
        if route.ignored:
            text = f"The model {self.spec.name!r} is reached directly: a {route.ignored} proxy cannot be used."
            _log.warning("%s", text)
            self._notices.append(ModelNotice("proxyIgnored", text, {"scheme": route.ignored}))
        idle = self.spec.idle_timeout_s
        try:
            self._client = httpx.AsyncClient(
                trust_env=False,
                proxy=route.proxy,
                verify=_trust() if urlsplit(self.base_url).scheme == "https" or route.proxy else False,
                timeout=httpx.Timeout(idle, connect=min(idle, CONNECT_LIMIT_S), pool=None),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=32, keepalive_expiry=30),
            )
        except (ValueError, httpx.InvalidURL):
            raise self._bad_config("the proxy that the environment names is no URL") from None
        except OSError:
            raise self._bad_config("the certificates that SSL_CERT_FILE or SSL_CERT_DIR name are none") from None
        return self._client

    def _bad_config(self, what: str) -> ModelError:
        return self.peer.error(f"cannot be asked: {what}.", retryable=False, reason="badConfig")

    async def aclose(self) -> None:
        """Closes the connections. The wire can be used again."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


async def _pieces(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    async with aclosing(response.aiter_bytes()) as pieces:  # type: ignore[type-var]
        async for piece in pieces:
            if piece:
                yield piece


def _trust() -> ssl.SSLContext | bool:
    """The certificates that the environment names, as other programs take them, else httpx's own choice."""
    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if not (file or folder):
        return True
    return ssl.create_default_context(cafile=file or None, capath=folder or None)
