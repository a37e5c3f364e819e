"""A run as a value: its fields, how one is made, read, saved and loaded.

A document is of `RUN_FORMAT`, has every field and no other, and its parts fit its state; else it is refused by name.
Nothing here moves a run; `sojourn.core.run` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    ModelWrapValidatorHandler,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import from_json

from ._output import OutputRules
from ._steps import Failure, RunEntry
from ._turns import OpenTurn, Round, closed, sound
from .agent import ModelCall
from .errors import FormatUnsupported, InvalidParams, ProtocolViolation
from .messages import (
    AssistantMessage,
    LateResultMessage,
    Message,
    SummaryMessage,
    SystemMessage,
    ToolChoice,
    ToolResultMessage,
    Usage,
    UserMessage,
    user,
)
from .values import Json, Value, clean, unchecked

RUN_FORMAT = 1
"""The format of saved runs. A document of any other is refused; a change of form is a new number."""

State = Literal[
    "preparing", "awaiting_model", "resolving_calls", "awaiting_advance", "executing_tools", "done", "failed"
]

_NEEDED: Mapping[str, frozenset[State]] = {
    "openTurn": frozenset(("resolving_calls", "awaiting_advance")),
    "round": frozenset(("executing_tools",)),
    "ending": frozenset(("done",)),
    "failure": frozenset(("failed",)),
}
"""The states in which a field has a value; in all others it is null."""
_APART = {"history", "messages", "model_calls", "entries"}
_ROLES = frozenset(("user", "assistant", "toolResult", "lateResult", "summary", "system"))
_PARTS = frozenset(("text", "image", "resource", "reasoning", "toolCall", "refusal", "other"))
_MESSAGES = (UserMessage, AssistantMessage, ToolResultMessage, LateResultMessage, SummaryMessage, SystemMessage)
_KINDS = frozenset(_MESSAGES)
_JSON: TypeAdapter[Any] = TypeAdapter(JsonValue)

_NO_USAGE = Usage()
Count = Annotated[int, Field(ge=0, le=2**53, strict=True)]


class Ending(Value):
    """How a run is done: whether its last message is the answer (an empty one is not kept), and what ails it."""

    recorded: bool
    error: str


class RunDocument(BaseModel):
    """All that there is of a run, and all that is saved of it."""

    model_config = ConfigDict(
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
    )
    __slots__ = ("_ids", "_labelled")  # no private attributes, whose every use costs as much as a field of three
    if TYPE_CHECKING:
        _ids: set[str] | None
        _labelled: int
    else:
        # Nothing is checked when a field is set, so pydantic's own `__setattr__` has nothing to do but take its time.
        __setattr__ = object.__setattr__

    format: int
    state: State
    turn: Count
    """How many turns were emitted; the number of the last one."""
    turn_limit: Annotated[int, Field(alias="maxTurns", ge=0, le=2**53, strict=True)]
    invalid_call_limit: Annotated[int, Field(alias="maxInvalidToolCallRetries", ge=0, le=2**53, strict=True)]
    invalid_call_retries: Count
    choice: Annotated[ToolChoice | None, Field(alias="toolChoice")]
    output: OutputRules | None
    raw_kept: bool
    open_turn: OpenTurn | None
    round: Round | None
    ending: Ending | None
    failure: Failure | None
    """Why the run failed, also after a reload."""
    usage: Usage
    """The sum of all recorded model calls, rejected turns included."""
    history: list[Message]
    """What the run was given; not its own."""
    messages: list[Message]
    """The run's own: prompt, accepted turns, results, feedback. Read it; only the run appends."""
    model_calls: list[ModelCall]
    entries: list[RunEntry]

    # -- making one -----------------------------------------------------------------------------------------------

    @classmethod
    def new(cls, prompt: str | Message | Sequence[Message] | None) -> Self:
        """A run that has `prompt` to send: text, a message, what the inbox held and then the prompt, or nothing."""
        fields = {
            "format": RUN_FORMAT,
            "state": "preparing",
            "turn": 0,
            "turn_limit": 1,
            "invalid_call_limit": 0,
            "invalid_call_retries": 0,
            "choice": None,
            "output": None,
            "raw_kept": False,
            "open_turn": None,
            "round": None,
            "ending": None,
            "failure": None,
            "usage": _NO_USAGE,
            "history": [],
            "messages": _as_messages(prompt),
            "model_calls": [],
            "entries": [],
        }
        run = unchecked(cls, fields)
        run._remember_nothing()
        return run

    def with_history(self, messages: Iterable[Message], *, call_ids: set[str] | None = None) -> Self:
        """Puts earlier messages before the run's own, as they are.

        A driver that keeps the ids of all their calls gives them too, see `knowing_call_ids`: neither is looked through
        then, which a long conversation would make felt at each run.
        """
        self._require_unstarted("with_history")
        self.history = _all_messages(messages) if call_ids is None else list(messages)
        self._ids = call_ids
        return self

    def knowing_call_ids(self, ids: set[str]) -> Self:
        """Takes the call ids of the conversation from a driver that keeps them, instead of reading it for them.

        The set is shared: the run adds the ids of its own calls.
        """
        self._ids = ids
        return self

    def max_turns(self, n: int) -> Self:
        """Sets how many turns may be emitted; 1 unless set."""
        self._require_unstarted("max_turns")
        self.turn_limit = _count(n, "maxTurns")
        return self

    def max_invalid_tool_call_retries(self, n: int) -> Self:
        """Sets how often `retry` may answer an invalid call in the whole run; 0 unless set."""
        self._require_unstarted("max_invalid_tool_call_retries")
        self.invalid_call_limit = _count(n, "maxInvalidToolCallRetries")
        return self

    def tool_choice(self, choice: ToolChoice) -> Self:
        """Says under which tool choice the driver asks the model."""
        self._require_unstarted("tool_choice")
        self.choice = choice
        return self

    def output_schema(
        self, schema: Mapping[str, Any], *, max_retries: int = 1, tool: str = "final_result", taken: Iterable[str] = ()
    ) -> Self:
        """Asks for an output that is valid for this JSON Schema, through a tool named `tool` or as text.

        The tool's name is made unique among `taken` (the tools there are); `output_tool` tells it. `max_retries` is how
        often the model is asked again. Raises `InvalidParams` when it is no schema.
        """
        self._require_unstarted("output_schema")
        retries = _count(max_retries, "maxOutputRetries")
        self.output = OutputRules.of(schema, tool=tool, max_retries=retries, taken=taken)
        return self

    def keep_raw(self) -> Self:
        """Stores the provider's bodies (`ModelTurn.raw`) with the model calls."""
        self._require_unstarted("keep_raw")
        self.raw_kept = True
        return self

    # -- reading it -----------------------------------------------------------------------------------------------

    @property
    def can_continue(self) -> bool:
        """Whether a turn is left (and the run has not failed)."""
        return self.turn < self.turn_limit and self.state != "failed"

    @property
    def output_tool(self) -> str | None:
        """The name of the tool that takes the output, to be advertised with the schema as its input."""
        return None if self.output is None else self.output.tool

    @property
    def dispatched(self) -> frozenset[str]:
        """The ids of the current round's calls that were started."""
        return frozenset(() if self.round is None else self.round.dispatched)

    def full_history(self) -> list[Message]:
        """History and messages, closed: each call has exactly one result directly after it."""
        answered: list[ToolResultMessage] = []
        if self.round is not None:
            answered = list({**self.round.preresolved, **self.round.answers}.values())
        return closed([*self.history, *self.messages, *answered])

    def count_call(self, call: ModelCall) -> None:
        """Counts a model call that is no turn of the run, such as the one that sums the conversation up."""
        self.model_calls.append(call.model_copy(update={"index": len(self.model_calls)}))
        self.usage += call.usage

    def append_entry(self, kind: str, value: Json, *, turn: int | None = None) -> int:
        """Keeps a record of the host's own, stamped with the turn; its position. Raises `InvalidParams`."""
        try:
            kept = _JSON.validate_python(clean(value, at="value"))
        except ValidationError as error:
            raise InvalidParams(f"The value of an entry must be JSON: {error}", field="value") from None
        self.entries.append(RunEntry(kind=kind, turn=self.turn if turn is None else turn, value=kept))
        return len(self.entries) - 1

    def entries_of(self, kind: str) -> list[RunEntry]:
        """The entries of this kind in order."""
        return [entry for entry in self.entries if entry.kind == kind]

    def last_entry_of(self, kind: str) -> RunEntry | None:
        """The newest entry of this kind."""
        return next((entry for entry in reversed(self.entries) if entry.kind == kind), None)

    def label_messages(self, first: int, at: str) -> int:
        """Gives each own message that has no id `msg-<n>`, counting from `first`, and `at` where there is no time.

        Answers the next free number.
        """
        for position in range(self._labelled, len(self.messages)):
            message = self.messages[position]
            label = message.message_id
            if label is not None and message.at is not None:
                continue
            if label is None:
                label, first = f"msg-{first}", first + 1
            self.messages[position] = message.but(message_id=label, at=message.at or at)
        self._labelled = len(self.messages)
        return first

    # -- saving it ------------------------------------------------------------------------------------------------

    @classmethod
    def load(cls, document: str | bytes | Mapping[str, Any]) -> Self:
        """The saved run. Raises `FormatUnsupported` naming both format numbers, or the field that does not belong."""
        return cls.model_validate(_parsed(document), by_name=False)

    def document(self) -> dict[str, Any]:
        """The whole run as JSON data for `load`; optional fields of its messages that are None are left out."""
        return {**dict.fromkeys(_fields()), **self.model_dump(mode="json", exclude_none=True)}

    def machine(self) -> str:
        """The run without history, messages, model calls and entries: small, however long the conversation is."""
        return self.__pydantic_serializer__.to_json(self, exclude=_APART).decode()

    @classmethod
    def restore(
        cls,
        machine: str,
        *,
        history: Iterable[Message],
        messages: Iterable[Message],
        model_calls: Iterable[ModelCall],
        entries: Iterable[RunEntry],
    ) -> Self:
        """The run whose `machine()` this is, with the parts that were kept apart. Raises as `load` does."""
        apart = {
            "history": list(history),
            "messages": list(messages),
            "modelCalls": list(model_calls),
            "entries": list(entries),
        }
        return cls.load({**_parsed(machine), **apart})

    def _remember_nothing(self) -> None:
        """What is worked out again when it is needed: the call ids of the conversation, how many messages have ids."""
        self._ids = None
        self._labelled = 0

    def __copy__(self) -> Self:
        twin = super().__copy__()
        twin._remember_nothing()
        return twin

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        twin = super().__deepcopy__(memo)
        twin._remember_nothing()
        return twin

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunDocument) and self.__dict__ == other.__dict__

    @model_validator(mode="wrap")
    @classmethod
    def _judge(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if isinstance(data, cls):
            return data
        _refuse_other_forms(data, _fields())
        try:
            run = handler(data)
        except ValidationError as error:
            raise _misfit(error) from None
        run._remember_nothing()
        if (field := next(run._contradictions(), None)) is not None:
            raise FormatUnsupported(f"The run document's {field!r} does not fit its state {run.state!r}.", field=field)
        return run

    def _contradictions(self) -> Iterator[str]:
        has = {"openTurn": self.open_turn, "round": self.round, "ending": self.ending, "failure": self.failure}
        yield from (name for name, states in _NEEDED.items() if (has[name] is not None) != (self.state in states))
        if self.turn > self.turn_limit or (self.turn == 0 and self.state not in ("preparing", "failed")):
            yield "turn"
        if self.open_turn is not None and not self.open_turn.consistent(
            self.output.tool if self.output else None, whole=self.state == "awaiting_advance"
        ):
            yield "openTurn"
        if not self._fits_messages():
            yield "messages"

    def _fits_messages(self) -> bool:
        last = self.messages[-1] if self.messages else None
        if self.round is not None:
            calls = last.calls if isinstance(last, AssistantMessage) else ()
            return self.round.calls == calls and self.round.consistent()
        if self.ending is not None and self.ending.recorded:
            return isinstance(last, AssistantMessage)
        return last is not None or bool(self.history) or self.state in ("preparing", "failed")

    def _require_unstarted(self, call: str) -> None:
        if self.state != "preparing" or self.turn:
            raise self._violation(call, "sets up a run before its first step only")

    def _violation(self, call: str, why: str) -> ProtocolViolation:
        return ProtocolViolation(f"{call}() {why}; the run is in state {self.state!r}.", call=call, state=self.state)


def _fields() -> list[str]:
    return [field.alias or name for name, field in RunDocument.model_fields.items()]


def _parsed(document: str | bytes | Mapping[str, Any]) -> Any:
    if not isinstance(document, str | bytes):
        return dict(document) if isinstance(document, Mapping) else document
    try:
        return from_json(document)
    except ValueError as error:
        raise FormatUnsupported(f"The run document is not JSON: {error}.") from None


def _refuse_other_forms(data: Any, fields: list[str]) -> None:
    if not isinstance(data, Mapping):
        raise FormatUnsupported(f"A run document is a JSON object, not {type(data).__name__}.")
    if "format" not in data:
        raise FormatUnsupported("The run document lacks the field 'format'.", field="format")
    found = data["format"]
    if type(found) is not int or found != RUN_FORMAT:
        raise FormatUnsupported(
            f"The run document has format {found!r}, this version reads format {RUN_FORMAT}; "
            "continue it with the version that saved it.",
            found=found,
            supported=RUN_FORMAT,
        )
    for name in data:
        if name not in fields:
            raise FormatUnsupported(f"The run document has an unknown field {name!r}.", field=name)
    for name in fields:
        if name not in data:
            raise FormatUnsupported(f"The run document lacks the field {name!r}.", field=name)


def _misfit(error: ValidationError) -> FormatUnsupported:
    first = error.errors(include_url=False, include_input=False)[0]
    field = _path(first["loc"])
    match first["type"]:
        case "extra_forbidden":
            text = f"The run document has an unknown field {field!r}."
        case "missing":
            text = f"The run document lacks the field {field!r}."
        case _:
            text = f"The run document's field {field!r} is not what format {RUN_FORMAT} has there: {first['msg']}."
    return FormatUnsupported(text, field=field)


def _path(loc: tuple[int | str, ...]) -> str:
    path = ""
    for before, step in zip((None, *loc), loc, strict=False):
        if isinstance(step, int):
            path += f"[{step}]"
        elif not (isinstance(before, int) and step in _ROLES | _PARTS):
            path += f".{step}" if path else step
    return path


def _as_messages(given: str | Message | Sequence[Message] | None) -> list[Message]:
    if given is None:
        return []
    if isinstance(given, str):
        return [sound(user(given))]
    return [sound(message) for message in _all_messages([given] if isinstance(given, _MESSAGES) else given)]


def _all_messages(given: Iterable[Message]) -> list[Message]:
    messages = list(given)
    if _KINDS.issuperset(map(type, messages)):
        return messages
    for message in messages:
        if not isinstance(message, _MESSAGES):
            raise InvalidParams(f"A conversation is made of messages, not of {message!r}.", field="messages")
    return messages


def _count(n: int, field: str) -> int:
    if n < 0:
        raise InvalidParams(f"{field!r} is {n}; it counts, so it is at least 0.", field=field)
    return n
