"""pygls as it is used: the names that are overridden or read exist and mean what they are taken for."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from importlib.metadata import version

from lsprotocol.types import ResponseError, ResponseErrorMessage
from pygls import exceptions
from pygls.protocol.json_rpc import (
    JsonRPCNotification,
    JsonRPCProtocol,
    JsonRPCRequestMessage,
    JsonRPCResponseMessage,
)
from pygls.server import JsonRPCServer

from sojourn.rpc.protocol import SojournProtocol

OVERRIDDEN = {
    "structure_message": ["data"],
    "handle_message": ["message"],
    "notify": ["method", "params"],
    "send_request": ["method", "params", "callback", "msg_id"],
    "_send_data": ["data"],
    "_handle_request": ["msg_id", "method_name", "params"],
    "_handle_notification": ["method_name", "params"],
    "_handle_response": ["msg_id", "result", "error"],
    "_handle_cancel_notification": ["msg_id"],
}


def test_the_release_is_one_that_was_read() -> None:
    assert version("pygls").split(".")[:2] == ["2", "1"]


def test_every_override_has_the_name_and_the_parameters_of_what_it_replaces() -> None:
    for name, expected in OVERRIDDEN.items():
        for cls in (JsonRPCProtocol, SojournProtocol):
            found = [parameter for parameter in inspect.signature(getattr(cls, name)).parameters if parameter != "self"]
            assert found == expected, (cls, name)
    replaced = {name for name in vars(SojournProtocol) if hasattr(JsonRPCProtocol, name) and name in OVERRIDDEN}
    assert replaced == OVERRIDDEN.keys()


def test_nothing_of_pygls_is_overridden_unawares() -> None:
    own = {name for name in vars(SojournProtocol) if not name.startswith("__")}
    inherited = {name for name in dir(JsonRPCProtocol) if not name.startswith("__")}
    assert own & inherited == OVERRIDDEN.keys()
    attributes = set(vars(JsonRPCServer(JsonRPCProtocol, lambda: None).protocol))  # type: ignore[arg-type,return-value]
    assert not attributes & {"session", "outbox", "requests", "_end", "_limits", "_batch", "_next_id", "_own", "_scope"}
    assert not attributes & {"_loop", "_largest"}


def test_a_server_makes_its_protocol_from_a_factory_with_itself_and_the_converter() -> None:
    made = []
    server = JsonRPCServer(lambda *given: made.append(given), lambda: "converter")  # type: ignore[arg-type,return-value]
    assert made == [(server, "converter")]


def test_messages_take_their_fields_in_this_order() -> None:
    assert JsonRPCRequestMessage(1, "m", "2.0", {}) == JsonRPCRequestMessage(id=1, method="m", jsonrpc="2.0", params={})
    assert JsonRPCNotification("m", "2.0", {}) == JsonRPCNotification(method="m", jsonrpc="2.0", params={})
    assert JsonRPCResponseMessage(id=1, jsonrpc="2.0", result=2).result == 2
    assert ResponseErrorMessage(id=1, error=ResponseError(code=5, message="m")).error.code == 5


def test_errors_have_the_codes_of_the_specifications() -> None:
    codes = {
        exceptions.JsonRpcParseError: -32700,
        exceptions.JsonRpcInvalidRequest: -32600,
        exceptions.JsonRpcMethodNotFound: -32601,
        exceptions.JsonRpcInternalError: -32603,
        exceptions.JsonRpcServerNotInitialized: -32002,
        exceptions.JsonRpcRequestCancelled: -32800,
    }
    for cls, code in codes.items():
        error = cls("why")
        assert (error.code, error.message, error.data) == (code, "why", None)


LOOK = """
import json, sys
if sys.argv[1] == "late":
    import sojourn.rpc.protocol
import attrs
from lsprotocol import converters, types

one = types.Location("file:///a", types.Range(types.Position(1, 2), types.Position(3, 4)))
same = types.Location("file:///a", types.Range(types.Position(1, 2), types.Position(3, 4)))
assert one == same and one != types.Location("file:///b", one.range), one
try:
    types.Position(-1, 0)
except ValueError as error:
    refused = str(error)
kinds = {name: kind for name, kind in vars(types).items() if isinstance(kind, type) and attrs.has(kind)}
fields = {name: [(f.name, repr(f.default), f.kw_only) for f in attrs.fields(kind)] for name, kind in kinds.items()}
converter = converters.get_converter()
params = {"processId": 1, "rootUri": None, "capabilities": {"window": {"workDoneProgress": True}}}
read = converter.structure({"id": 1, "method": "initialize", "params": params}, types.InitializeRequest)
print(json.dumps([fields, refused, repr(one), repr(read), converter.unstructure(read)]))
"""


def test_classes_of_lsprotocol_made_when_first_used_are_what_they_always_are() -> None:
    late, whole = (
        json.loads(subprocess.run([sys.executable, "-c", LOOK, when], check=True, capture_output=True).stdout)
        for when in ("late", "at once")
    )
    assert late == whole
    assert len(whole[0]) > 500
    assert whole[4]["params"]["capabilities"] == {"window": {"workDoneProgress": True}}
