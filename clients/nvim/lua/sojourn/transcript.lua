--- An agent's events as a list of blocks to be drawn: the state of one chat. No buffer, no window, no connection.
---
--- Rule: numbered events follow one another without a gap and are taken in once; what is streamed is replaced by the
--- finished message. Blocks of a child run stand right after the call that they belong to.
local ui = require("sojourn.ui")

---@class sojourn.Block
---@field kind "head"|"user"|"text"|"reasoning"|"arguments"|"tool"|"result"|"queued"|"note"|"gone"
---@field depth integer how many calls it is nested in
---@field dirty boolean whether it must be drawn (again)

---@class sojourn.Transcript
---@field seq integer the last numbered event that was taken in
---@field blocks sojourn.Block[]
---@field stale boolean the conversation was replaced: it must be read anew
local Transcript = {}
Transcript.__index = Transcript

local M = {}

---@return sojourn.Transcript
function M.new()
  return setmetatable({
    seq = 0,
    blocks = {},
    tools = {},
    parts = {},
    ended = {},
    queued = {},
    speakers = {},
    held = {},
    stale = false,
  }, Transcript)
end

local function key(path, id)
  return table.concat(path, "/") .. "/" .. id
end

function Transcript:touch(block, fields)
  for name, value in pairs(fields or {}) do
    block[name] = value
  end
  block.dirty = true
end

local function drop(block)
  block.kind, block.dirty = "gone", true
end

--- Where a new block of a run goes: at the end, or behind everything inside its parent's call.
function Transcript:place(path)
  local parent = #path > 0 and self.tools[table.concat(path, "/")]
  if not parent then
    return #self.blocks + 1
  end
  local at = #self.blocks
  while at > 0 and self.blocks[at] ~= parent do
    at = at - 1
  end
  repeat
    at = at + 1
  until at > #self.blocks or self.blocks[at].depth < #path
  return at
end

function Transcript:add(path, kind, fields)
  local run = table.concat(path, "/")
  local speaker = vim.tbl_contains({ "text", "reasoning", "arguments", "tool" }, kind) and "assistant" or kind
  if speaker == "assistant" and self.speakers[run] ~= "assistant" then
    self.speakers[run] = "assistant"
    self:add(path, "head", {})
  elseif kind == "user" then
    self.speakers[run] = "user"
  end
  local block = vim.tbl_extend("force", { kind = kind, depth = #path, dirty = true }, fields)
  table.insert(self.blocks, self:place(path), block)
  return block
end

function Transcript:tool(path, call_id, name)
  local id = (#path > 0 and table.concat(path, "/") .. "/" or "") .. call_id
  if not self.tools[id] then
    self.tools[id] =
      self:add(path, "tool", { callId = call_id, name = name, args = vim.empty_dict(), status = "called", output = "" })
  end
  return self.tools[id]
end

function Transcript:part(path, message_id, index, kind)
  local message = key(path, message_id)
  self.parts[message] = self.parts[message] or {}
  local block = self.parts[message][index]
  if block and block.kind ~= kind then
    drop(block)
    block = nil
  end
  if not block then
    block = self:add(path, kind, { text = "", count = 0 })
    self.parts[message][index] = block
  end
  return block
end

local KIND_OF_DELTA = { text = "text", reasoning = "reasoning", toolArguments = "arguments" }

local function code_points(text)
  return vim.str_utfindex(text, "utf-32")
end

--- Takes a delta in; false when text is missing before it.
function Transcript:delta(path, event)
  local block = self:part(path, event.messageId, event.part, KIND_OF_DELTA[event.kind])
  if event.offset > block.count then
    return false
  end
  local count = code_points(event.text)
  local known = block.count - event.offset
  if known < count then
    local fresh = event.text:sub(vim.str_byteindex(event.text, "utf-32", known) + 1)
    self:touch(block, { text = block.text .. fresh, count = event.offset + count })
  end
  return true
end

function Transcript:forget_parts(path, message_id)
  for _, block in pairs(self.parts[key(path, message_id)] or {}) do
    drop(block)
  end
  self.parts[key(path, message_id)] = nil
end

function Transcript:assistant_message(path, message)
  local parts = self.parts[key(path, message.messageId)] or {}
  for index, part in ipairs(message.content) do
    if part.type == "text" or part.type == "reasoning" or part.type == "refusal" then
      if part.text ~= "" then
        local block = self:part(path, message.messageId, index - 1, part.type == "reasoning" and "reasoning" or "text")
        self:touch(block, { text = part.text, count = code_points(part.text) })
        parts[index - 1] = nil
      end
    elseif part.type == "toolCall" then
      local block = self:tool(path, part.id, part.name)
      self:touch(block, { args = part.arguments, name = part.name })
    end
  end
  for _, left in pairs(parts) do
    drop(left)
  end
  self.parts[key(path, message.messageId)] = nil
  local cut = { length = true, contentFilter = true, stopped = true }
  if cut[message.finishReason] then
    self:add(path, "note", { text = "the answer was cut: " .. message.finishReason })
  end
end

function Transcript:tool_message(path, message)
  local block = self:tool(path, message.callId, message.toolName)
  local open = { called = true, approval = true, running = true }
  if open[block.status] then
    local status = message.pending and "pending" or message.isError and "failed" or "done"
    self:touch(block, { status = status, output = ui.text_of(message.content) })
  elseif block.output == "" then
    self:touch(block, { output = ui.text_of(message.content) })
  end
end

local ON_MESSAGE = {
  assistant = Transcript.assistant_message,
  toolResult = Transcript.tool_message,
  user = function(self, path, message)
    self:add(path, "user", { text = ui.text_of(message.content) })
  end,
  lateResult = function(self, path, message)
    local text = ui.text_of(message.content)
    self:add(
      path,
      "result",
      { name = message.toolName, callId = message.callId, text = text, failed = message.isError }
    )
    self.speakers[table.concat(path, "/")] = "user"
  end,
  summary = function(self, path, message)
    self:add(path, "note", { text = "what came before was summed up: " .. ui.text_of(message.content) })
  end,
  system = function(self, path, message)
    self:add(path, "note", { text = "system: " .. ui.text_of(message.content) })
  end,
}

--- Takes a whole message in, once.
function Transcript:message(path, message)
  local id = key(path, message.messageId or "")
  if not self.ended[id] then
    self.ended[id] = message.messageId ~= nil
    ON_MESSAGE[message.role](self, path, message)
  end
end

local DECIDED = { approve = "called", edit = "called", answer = "done" }
local WORDS = {
  approve = "approved",
  edit = "edited",
  answer = "answered",
  deny = "denied",
  abort = "stopped",
  stopped = "stopped",
  closed = "closed",
  expired = "expired",
}

local function decided(self, path, event)
  local approval, decision = event.approval, event.approval.decision or {}
  local block = self:tool(path, approval.callId, approval.toolName)
  local words = ("%s by %s"):format(WORDS[decision.decision] or decision.decision, decision.by)
  if type(decision.reason) == "string" and decision.reason ~= "" then
    words = words .. ": " .. decision.reason
  end
  local status = block.status == "approval" and (DECIDED[decision.decision] or "denied") or block.status
  self:touch(block, { status = status, decision = words, approval = false })
end

local function ended(self, path, event)
  local run = table.concat(path, "/")
  for id, block in pairs(self.tools) do
    local mine = block.depth == #path and (run == "" or vim.startswith(id, run .. "/"))
    if mine and event.reason ~= "paused" and (block.status == "running" or block.status == "called") then
      self:touch(block, { status = "failed", decision = "interrupted" })
    end
  end
  if event.reason ~= "done" then
    local why = event.error and (": " .. event.error.message) or ""
    self:add(path, "note", { text = event.reason .. why, failed = event.reason == "failed" })
  end
end

local ON_EVENT = {
  messageEnd = function(self, path, event)
    self:message(path, event.message)
  end,
  messageReset = function(self, path, event)
    self:forget_parts(path, event.messageId)
  end,
  approvalRequested = function(self, path, event)
    local approval = event.approval
    local block = self:tool(path, approval.callId, approval.toolName)
    self:touch(block, { status = "approval", args = approval.args, approval = approval })
  end,
  approvalResolved = decided,
  toolExecStart = function(self, path, event)
    local block = self:tool(path, event.toolCallId, event.toolName)
    self:touch(block, { status = "running", args = event.args, name = event.toolName })
  end,
  toolExecProgress = function(self, path, event)
    local block = self:tool(path, event.toolCallId, "")
    if event.text then
      local gap = (block.output == "" or block.output:sub(-1) == "\n") and "" or "\n"
      self:touch(block, { output = block.output .. gap .. event.text })
    end
    if event.fraction then
      self:touch(block, { fraction = event.fraction })
    end
  end,
  toolExecEnd = function(self, path, event)
    local block = self:tool(path, event.toolCallId, event.toolName)
    local result = event.result
    local status = result.pending and "pending" or result.isError and "failed" or "done"
    self:touch(block, { status = status, output = ui.text_of(result.content) })
  end,
  toolResolved = function(self, path, event)
    local block = self:tool(path, event.toolCallId, event.toolName)
    self:touch(block, { status = event.result.isError and "failed" or "done", decision = "result came later" })
  end,
  warning = function(self, path, event)
    self:add(path, "note", { text = event.message, failed = true })
  end,
  inboxQueued = function(self, path, event)
    local item = event.item
    local text = item.error or ui.text_of(item.content)
    self.queued[item.itemId] = self:add(path, "queued", { itemKind = item.kind, callId = item.callId, text = text })
  end,
  inboxRead = function(self, _, event)
    if self.queued[event.itemId] then
      drop(self.queued[event.itemId])
      self.queued[event.itemId] = nil
    end
  end,
  agentUpdated = function(self, path, event)
    self.stale = self.stale or (#path == 0 and event.messagesReplaced ~= nil)
  end,
  agentEnd = ended,
}

--- Shows an open approval of the agent's own, for want of its event.
---@param approval table
function Transcript:show_approval(approval)
  if #approval.path == 0 then
    ON_EVENT.approvalRequested(self, {}, { approval = approval })
  end
end

--- What was streamed of unfinished messages at the moment of attaching, once the replay is over.
function Transcript:show_held()
  for _, piece in ipairs(self.held) do
    local path = {}
    for _, step in ipairs(piece.path or {}) do
      path[#path + 1] = step.callId
    end
    local block = self:part(path, piece.messageId, piece.part, KIND_OF_DELTA[piece.kind])
    self:touch(block, { text = piece.text, count = code_points(piece.text) })
  end
  self.held = {}
end

--- Takes the answer to `agent/attach` in.
---@param answer table
function Transcript:attached(answer)
  self.held, self.held_at = answer.streaming, answer.seq
  if answer.mode ~= "replay" or self.seq >= answer.seq then
    self.seq = math.max(self.seq, answer.seq)
    self:show_held()
  end
end

--- Takes the params of an `agent/event` in; false when something is missing before it.
---@param params table
---@return boolean
function Transcript:apply(params)
  if params.seq then
    if params.seq <= self.seq then
      return true
    elseif params.seq > self.seq + 1 then
      return false
    end
    self.seq = params.seq
  end
  local path, event = {}, params.event
  while event.type == "nested" do
    path[#path + 1] = event.toolCallId
    event = event.event
  end
  if event.type == "messageDelta" then
    return self:delta(path, event)
  end
  local handler = ON_EVENT[event.type]
  if handler then
    handler(self, path, event)
  end
  if params.seq and #self.held > 0 and params.seq >= self.held_at then
    self:show_held()
  end
  return true
end

return M
