"""A language client without a plugin: it prompts and decides by commands, and reads what comes of it in its windows.

To the hub it is one more client, attached to the agents that it has prompted: their events become `window/showMessage`
and `$/progress`, their approvals `window/showMessageRequest`. It is never sent a message of ours that it does not know.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import orjson
from pydantic import ValidationError

from sojourn.core.agent import AgentConfig, Caller, RunOutcome
from sojourn.core.errors import AgentNotFound, ApprovalNotFound, ClientRefused, InvalidParams, SojournError
from sojourn.core.messages import InputPart, ResourcePart, TextPart
from sojourn.core.values import clean
from sojourn.methods._parse import invalid_params
from sojourn.methods.lifecycle import COMMANDS
from sojourn.methods.workspace import CodeActionParams, CommandAnswer, CommandArguments, EditorCommand

from ._said import Progress, decision_actions, problem_action, question, selection_actions, what_happened

if TYPE_CHECKING:
    from .session import ClientSession

log = logging.getLogger(__name__)

LABEL = "sojourn.prompt"
"""The label by which `sojourn prompt` and these commands find a directory's agent again."""
ERROR, WARNING, INFO = 1, 2, 3
_METHOD_NOT_FOUND = -32601
_STRING_IS = {
    "sojourn.prompt": "text",
    "sojourn.new": "text",
    "sojourn.approve": "approvalId",
    "sojourn.deny": "approvalId",
}


class PlainEditor:
    """What a connection without a plugin is to the hub (`agents.feed.Subscriber`)."""

    runs_tools = False
    delta_latency_ms: int | None = None

    def __init__(self, session: ClientSession) -> None:
        self._session = session
        self._hub = session.hub
        self.answers_approvals = not session.answers_approvals
        self.client_id: str | None = session.client_id or re.sub(r"[^A-Za-z0-9._-]", "-", session.editor_name)[:64]
        self.root_path = session.root_path
        self._agent_id: str | None = None
        self._attached: set[str] = set()
        self._progress: dict[str, Progress] = {}
        self._answers: dict[str, str] = {}
        self._asking = asyncio.Lock()
        self._asked: str | None = None
        """The approval that the person was shown last."""
        self._can_ask = True
        self._commands: dict[str, Callable[[CommandArguments], Awaitable[CommandAnswer]]] = dict(
            zip(
                COMMANDS,
                (self._prompt, self._new, self._approve, self._deny, self._stop, self._status, self._show),
                strict=True,
            )
        )

    # -- what the client says -----------------------------------------------------------------------------------------

    async def execute(self, command: str, arguments: tuple[Any, ...]) -> CommandAnswer:
        """Does a command. Raises `InvalidParams` for one that does not exist, or does not take these arguments."""
        work = self._commands.get(command)
        if work is None:
            there = ", ".join(self._commands)
            raise InvalidParams(f"There is no command {command[:100]!r}; there are: {there}.", field="command")
        return await work(_read(command, arguments))

    async def actions(self, params: CodeActionParams) -> list[EditorCommand]:
        """The commands that make sense at a place of an open file."""
        pointed = CommandArguments(uri=params.text_document.uri, range=params.range)
        place = pointed.wire()
        agent_id = self._agent_id or await self._found(state=None)
        found = selection_actions(place, self._selected(pointed))
        found += [problem_action(place, problem.message) for problem in params.context.diagnostics[:3]]
        if agent_id is not None:
            for approval in (await self._hub.approvals(agent_id))["approvals"]:
                found += decision_actions(approval)
        if agent_id is not None and (await self._hub.get_agent(agent_id))["state"] in ("running", "waiting"):
            found.append(
                EditorCommand(title="Sojourn: stop", command="sojourn.stop", arguments=({"agentId": agent_id},))
            )
        return found

    async def cancel_progress(self, token: str | int) -> None:
        """Stops the run whose progress is shown under this token."""
        for agent_id, progress in list(self._progress.items()):
            if progress.token == token:
                await self._hub.stop(self._caller(), agent_id)

    async def _prompt(self, given: CommandArguments) -> CommandAnswer:
        text = given.text or self._selected(given)
        if not text:
            raise InvalidParams("There is nothing to say: 'text' is missing.", field="arguments.text")
        agent_id = given.agent_id or self._agent_id or await self._found() or await self._made()
        await self._attach(agent_id)
        content: tuple[InputPart, ...] = (TextPart(text=text), *(self._pointed(given) if given.text else ()))
        self._agent_id = agent_id
        self._begin(agent_id)
        try:
            accepted = await self._hub.prompt(
                self._caller(), agent_id, content, if_busy="queue", on_approval=None, wait=False, session=self
            )
        except SojournError:
            self._end(agent_id, "refused")
            raise
        assert not isinstance(accepted, RunOutcome)
        queued = accepted.run_id is None
        message = f"{agent_id} is at work and reads it next." if queued else f"{agent_id} is at work."
        return CommandAnswer(message=message, agent_id=agent_id, run_id=accepted.run_id)

    async def _new(self, given: CommandArguments) -> CommandAnswer:
        self._agent_id = await self._made()
        if given.text or given.uri:
            return await self._prompt(given.model_copy(update={"agent_id": self._agent_id}))
        return CommandAnswer(message="The next prompt goes to a new agent.", agent_id=self._agent_id)

    async def _approve(self, given: CommandArguments) -> CommandAnswer:
        return await self._decide(given, "approve")

    async def _deny(self, given: CommandArguments) -> CommandAnswer:
        return await self._decide(given, "deny")

    async def _decide(self, given: CommandArguments, decision: str) -> CommandAnswer:
        approval_id = given.approval_id or await self._meant()
        scope = given.scope if decision == "approve" else None
        await self._hub.decide(
            self._caller(), approval_id, decision, arguments=None, content=None, reason=given.reason, scope=scope
        )
        word = "Approved" if decision == "approve" else "Denied"
        return CommandAnswer(message=f"{word}: {approval_id}.", approval_id=approval_id)

    async def _meant(self) -> str:
        """The open approval that a decision without an id is about: the one shown last, or the only one."""
        where = self._agent_id
        found = (await self._hub.approvals(where))["approvals"] if where else []
        ids = [approval["approvalId"] for approval in found]
        if self._asked in ids:
            return str(self._asked)
        if len(ids) == 1:
            return str(ids[0])
        if not ids:
            raise ApprovalNotFound("Nothing of this editor's agent waits for a decision.")
        raise InvalidParams(f"Several calls wait; name one: {', '.join(ids)}.", field="arguments.approvalId")

    async def _stop(self, given: CommandArguments) -> CommandAnswer:
        agent_id = await self._current(given)
        stopped = (await self._hub.stop(self._caller(), agent_id))["stopped"]
        return CommandAnswer(message="Stopped." if stopped else "Nothing was at work.", agent_id=agent_id)

    async def _status(self, given: CommandArguments) -> CommandAnswer:
        agent_id = await self._current(given)
        await self._attach(agent_id)  # asks what is open
        agent = await self._hub.get_agent(agent_id)
        waits = f", waits for {agent['waitingFor']}" if agent.get("waitingFor") else ""
        counts = {"approvals": "open approvals", "pendingCalls": "pending calls", "inbox": "unread"}
        more = "".join(f", {agent[key]} {word}" for key, word in counts.items() if agent[key])
        message = f"{agent_id} is {agent['state']}{waits}{more}."
        self._say(INFO, message)
        return CommandAnswer(message=message, agent_id=agent_id)

    async def _show(self, given: CommandArguments) -> CommandAnswer:
        agent_id = await self._current(given)
        message = self._answers.get(agent_id) or "There is no answer yet."
        self._say(INFO, message)
        return CommandAnswer(message=message, agent_id=agent_id)

    # -- which agent, and what is said to it --------------------------------------------------------------------------

    async def _current(self, given: CommandArguments) -> str:
        agent_id = given.agent_id or self._agent_id or await self._found(state=None)
        if agent_id is None:
            raise AgentNotFound("This directory has no agent yet; sojourn.prompt makes one.")
        self._agent_id = agent_id
        return agent_id

    async def _found(self, state: str | None = "idle") -> str | None:
        """The agent that was used last in the client's directory."""
        page = await self._hub.list_agents(
            cursor=None, limit=1, state=state, parent_agent_id=None, labels={LABEL: self.root_path or ""}
        )
        return str(page["agents"][0]["agentId"]) if page["agents"] else None

    async def _made(self) -> str:
        config = AgentConfig(tools=("*",), cwd=self.root_path)
        made = await self._hub.create_agent(self._caller(), agent_id=None, config=config)
        agent_id = str(made["agentId"] if isinstance(made, dict) else made.agent_id)
        await self._hub.update_agent(self._caller(), agent_id, {"labels": {LABEL: self.root_path or ""}})
        return agent_id

    async def _attach(self, agent_id: str) -> None:
        if agent_id not in self._attached:
            await self._hub.attach(self, agent_id, after_seq=None, deltas=False)
            self._attached.add(agent_id)

    def _selected(self, given: CommandArguments) -> str | None:
        if given.uri is None:
            return None
        return self._hub.buffers.text(self._session, given.uri, given.range.range() if given.range else None)

    def _pointed(self, given: CommandArguments) -> tuple[InputPart, ...]:
        if given.uri is None:
            return ()
        return (ResourcePart(uri=given.uri, text=self._selected(given)),)

    # -- what the hub says --------------------------------------------------------------------------------------------

    def notify(self, body: bytes) -> bool:
        """Tells a notification in the client's own terms."""
        message = orjson.loads(body)
        params = message["params"]
        if message["method"] == "agent/event":
            self._event(params["agentId"], params["event"])
        elif message["method"] == "agent/resync":
            self._attached.discard(params["agentId"])
        return True

    async def room(self) -> None:
        """Returns when the client reads again."""
        await self._session.room()

    def cancel_requested(self) -> bool:
        """Whether the command under way was cancelled."""
        return False

    def caller(self, params: Any, method: str) -> Caller:
        """Who asks."""
        return self._caller()

    def _caller(self) -> Caller:
        return Caller(client_id=self.client_id, cwd=self.root_path)

    def _event(self, agent_id: str, event: dict[str, Any]) -> None:
        kind = event["type"]
        if kind == "messageEnd" and event["message"]["role"] == "assistant":
            words = "".join(part["text"] for part in event["message"]["content"] if part["type"] == "text")
            if words:
                self._answers[agent_id] = words
        elif kind == "agentStart":
            self._answers.pop(agent_id, None)
            self._begin(agent_id)
        elif kind == "agentEnd":
            serious, words = what_happened(event, self._answers.get(agent_id))
            self._end(agent_id, event["reason"])
            self._say(ERROR if serious else INFO, words)
        elif agent_id in self._progress:
            self._progress[agent_id].hear(event)

    # -- approvals ----------------------------------------------------------------------------------------------------

    async def request(self, method: str, params: dict[str, Any]) -> Any:
        """Asks the person for a decision, one question at a time. Raises `ClientRefused` when there is none."""
        if method != "approval/request":
            raise ClientRefused(_METHOD_NOT_FOUND, "it is a client without a plugin")
        async with self._asking:
            approval = params["approval"]
            self._asked = approval["approvalId"]
            message, actions = question(approval)
            titles = [title for title, _ in actions]
            chosen = await self._choose(message, titles) if self._can_ask else None
            if not self._can_ask:
                self._say(WARNING, f"{message}\n\nDecide with sojourn.approve or sojourn.deny.")
            decision = next((decision for title, decision in actions if title == chosen), None)
            if decision is None:
                raise ClientRefused(0, "no decision was made")
            return decision

    async def _choose(self, message: str, titles: list[str]) -> str | None:
        params = {"type": WARNING, "message": message, "actions": [{"title": title} for title in titles]}
        try:
            said = clean(await self._session.request("window/showMessageRequest", params))
        except ClientRefused as error:
            self._can_ask = error.code != _METHOD_NOT_FOUND
            return None
        if not isinstance(said, dict):
            self._say(INFO, "It stays open: sojourn.approve and sojourn.deny decide.")
            return None
        return str(said.get("title"))

    # -- the client's windows -----------------------------------------------------------------------------------------

    def _say(self, kind: int, text: str) -> None:
        self._session.tell("window/showMessage", {"type": kind, "message": text})

    def _begin(self, agent_id: str) -> None:
        if self._session.shows_progress and agent_id not in self._progress:
            progress = self._progress[agent_id] = Progress(f"sojourn {agent_id}", self._session.tell)
            self._hub.spawn(self._open(progress), f"progress of {agent_id}")

    async def _open(self, progress: Progress) -> None:
        try:
            await self._session.request("window/workDoneProgress/create", {"token": progress.token})
        except (ClientRefused, ConnectionError):
            return
        progress.begin()

    def _end(self, agent_id: str, word: str) -> None:
        progress = self._progress.pop(agent_id, None)
        if progress is not None:
            progress.end(word)


def _read(command: str, arguments: tuple[Any, ...]) -> CommandArguments:
    given = arguments[0] if arguments else None
    if given is None:
        return CommandArguments()
    if isinstance(given, str):
        given = {_STRING_IS.get(command, "agentId"): given} if given else {}
    if not isinstance(given, dict):
        raise InvalidParams(f"{command} takes a string or an object, not {type(given).__name__}.", field="arguments")
    try:
        return CommandArguments.model_validate(given, by_name=False)
    except ValidationError as error:
        raise invalid_params(error, CommandArguments, given, of=command) from None
