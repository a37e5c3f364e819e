"""What a tool is: a spec, and one coroutine from arguments to output. And what it gets to work with: `ToolContext`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from sojourn.core.agent import AgentConfig
from sojourn.core.approvals import Policy, Preview
from sojourn.core.messages import Content, InputPart, ToolSpec, parts
from sojourn.core.rules import Subject

OnInterrupt = Literal["fail", "rerun"]


@dataclass(frozen=True, slots=True)
class ToolInfo:
    """A tool as the daemon knows it. `approval` is its own policy; `source` says where it comes from.

    `on_interrupt`: `rerun` promises that running a call again after a crash is harmless; its id is the key (D11).
    `subject` is the argument that approval patterns look at; None: `command`, `path` or `url`, where there is one.
    `bounded`: its calls end by a time limit of their own, so a run that has no time left waits for them.
    """

    spec: ToolSpec
    approval: Policy = "ask"
    on_interrupt: OnInterrupt = "fail"
    source: str = "builtin"
    subject: Subject | None = None
    bounded: bool = False


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """What a tool answers: a result, an error that the model reads, or a placeholder for a result to come.

    `sent` is told of a client tool's placeholder only: whether its owner has got the call.
    """

    content: tuple[InputPart, ...]
    is_error: bool = False
    is_pending: bool = False
    sent: bool | None = None

    @classmethod
    def of(cls, content: Content) -> ToolOutput:
        """A result."""
        return cls(parts(content))

    @classmethod
    def error(cls, content: Content) -> ToolOutput:
        """A failure that the model reads."""
        return cls(parts(content), is_error=True)

    @classmethod
    def pending(cls, content: Content, *, sent: bool | None = None) -> ToolOutput:
        """A placeholder: the work goes on, its result reaches the agent through the inbox."""
        return cls(parts(content), is_pending=True, sent=sent)


class InboxHandle(Protocol):
    """A way to reach an agent from outside its run; may be kept after the call returned; durable when it returns."""

    async def push(self, content: Content) -> str:
        """A user message; answers its item id."""
        ...

    async def resolve(self, call_id: str, content: Content) -> str:
        """A pending call's result; answers its item id."""
        ...

    async def reject(self, call_id: str, error: str) -> str:
        """A pending call's failure; answers its item id."""
        ...


@dataclass(frozen=True, slots=True)
class ChildReply:
    """What a child agent answered."""

    agent_id: str
    content: tuple[InputPart, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Document:
    """A file that is open in an editor, as it stands there now, saved or not.

    `text` is None when the editor's text is not known (too large, or its changes made no sense); `key` is the editor's.
    One that is not `changeable` can only be read: its editor takes no edits.
    """

    path: str
    text: str | None
    owner: str
    key: Any = None
    changeable: bool = True


class Documents(Protocol):
    """The files that are open in the editors of connected clients."""

    def settle(self) -> None:
        """Looks up where the open files really are; blocks, may be called in any thread, comes before `at`."""
        ...

    def at(self, path: str) -> Document | None:
        """The open file at this absolute path without links, if it is open anywhere. On the loop only."""
        ...

    async def change(self, document: Document, text: str) -> None:
        """Has the editor replace the document's text. Raises an error in words when it does not, or has gone on."""
        ...


class StartJob(Protocol):
    """How a job is started; `ToolContext.start_job` says more."""

    async def __call__(
        self, command: str | Sequence[str], *, cwd: str | None = None, limit_s: float | None = None
    ) -> str:
        """Starts it; answers its id."""
        ...


async def no_jobs(command: str | Sequence[str], *, cwd: str | None = None, limit_s: float | None = None) -> str:
    """Where no job can be started."""
    del command, cwd, limit_s
    raise RuntimeError("No job can be started here.")


RunChild = Callable[[AgentConfig | str, str], Awaitable[ChildReply]]
StartChild = Callable[[AgentConfig | str, str], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a tool call may use.

    `run_child(config | agent_id, prompt)` runs a child inside this call (its events arrive nested) and answers its
    reply, raising `core.errors.Aborted` when stopped. `start_child(...)` does the same in the background and answers
    the child's agent id; the reply arrives through this agent's inbox as the result of this call, which should
    answer pending. `start_job(command)` starts a process that outlives the call and the daemon and answers its id: a
    command line for the shell, or a program and its arguments, in `cwd` (default: the agent's), for at most `limit_s`
    seconds. The call should answer pending: the job's output and exit code become its result, once. One job a call.
    """

    agent_id: str
    run_id: str
    call_id: str
    tool_name: str
    cwd: str | None
    inbox: Callable[[], InboxHandle]
    run_child: RunChild
    start_child: StartChild
    on_progress: Callable[[str | None, float | None], None]
    stopped: Callable[[], bool]
    approved: Preview | None = None
    """What the person who approved the call was shown; the tool does that, or nothing."""
    documents: Documents | None = None
    origin_client: str | None = None
    config: AgentConfig | None = None
    """The agent's config with its preset's; None for a call outside of any pass."""
    extra: dict[str, Any] = field(default_factory=dict)
    start_job: StartJob = no_jobs
    led_to: str | None = None
    """Where the path that the call is about led when a rule judged it, or a person was asked: absolute, without links.
    The tool goes there, or nowhere. None when neither has looked at a path."""

    def progress(self, text: str | None = None, fraction: float | None = None) -> None:
        """Tells the clients how far the work is."""
        self.on_progress(text, fraction)

    @property
    def stop_requested(self) -> bool:
        """Whether the run is being stopped."""
        return self.stopped()


MakePreview = Callable[[dict[str, Any], ToolContext], Awaitable[Preview | None]]


class Tool(Protocol):
    """Something a model may call.

    One with a method `preview(args, ctx) -> Preview | None` is asked for it before a call needs an approval: it changes
    nothing, and what it raises is the call's failed result, without anybody being asked.
    """

    info: ToolInfo

    async def execute(self, args: dict[str, Any], ctx: ToolContext) -> ToolOutput:
        """Does the work. An exception becomes a failed result that the model reads; being cancelled means stop now."""
        ...
