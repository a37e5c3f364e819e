"""Names of servers' tools, and of servers."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sojourn.core.agent import AgentConfig
from sojourn.core.servers import McpServer
from sojourn.tools.mcp.naming import server_of, tool_name

SERVERS = st.from_regex(r"[A-Za-z0-9](?:[_-]?[A-Za-z0-9])*", fullmatch=True).filter(lambda name: len(name) <= 32)
PLAIN = st.from_regex(r"[A-Za-z0-9_-]{1,30}", fullmatch=True)


@given(SERVERS, st.text(min_size=1, max_size=200))
def test_every_name_is_one_that_every_provider_takes_and_tells_its_server(server: str, tool: str) -> None:
    name = tool_name(server, tool)
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name)
    assert server_of(name) == server


@given(SERVERS, PLAIN)
def test_a_plain_name_stays_as_it_is(server: str, tool: str) -> None:
    assert tool_name(server, tool) == f"{server}__{tool}"


@given(st.lists(st.tuples(SERVERS, st.text(min_size=1, max_size=80)), min_size=2, max_size=2, unique=True))
def test_two_tools_never_have_one_name(pair: list[tuple[str, str]]) -> None:
    one, other = (tool_name(server, tool) for server, tool in pair)
    assert one != other


def test_names_that_look_alike_are_told_apart() -> None:
    names = {tool_name("fs", tool) for tool in ("read.file", "read_file", "read file", "x" * 70, "x" * 71)}
    assert len(names) == 5


@pytest.mark.parametrize("name", ["echo", "__echo", "fs__", ""])
def test_other_names_belong_to_no_server(name: str) -> None:
    assert server_of(name) in (None, "")


@pytest.mark.parametrize("name", ["a__b", "_a", "a_", "a.b", "a b", "", "-", "x" * 33])
def test_a_server_cannot_have_a_name_in_which_its_tools_are_not_told_apart(name: str) -> None:
    with pytest.raises(ValidationError):
        AgentConfig(mcp_servers={name: McpServer(command="x")})


FAULTS = [
    ({}, "a server has either a 'command' or a 'url'"),
    ({"command": "x", "url": "http://x"}, "a server has either a 'command' or a 'url'"),
    ({"command": "x", "headers": {"a": "b"}}, "only a server with a 'url' takes it"),
    ({"url": "http://x", "args": ["b"]}, "only a server with a 'command' takes it"),
    ({"command": "x", "env": {"MY_TOKEN": "b"}}, "name it in pass_env"),
    ({"url": "http://x", "headers": {"Authorization": "b"}}, "in header_env"),
    ({"url": "http://x", "headerEnv": {"Authorization": "b c"}}, "the name of an environment variable"),
    ({"command": "x", "startTimeoutS": 0}, "greater than 0"),
]


@pytest.mark.parametrize(("fields", "said"), FAULTS)
def test_what_an_agent_says_of_a_server_is_judged_at_the_door(fields: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(said)):
        AgentConfig.model_validate({"mcpServers": {"x": fields}}, by_name=False)
