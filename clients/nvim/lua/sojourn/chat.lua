--- Chats: one for each agent that was opened here; each follows its agent's events and draws them into its buffer.
---
--- A chat knows the last event that it has drawn. Whatever happens to the connection, the daemon or the pace of
--- events, it attaches again from there.
local agents = require("sojourn.agents")
local client = require("sojourn.client")
local draw = require("sojourn.draw")
local render = require("sojourn.render")
local transcript = require("sojourn.transcript")
local ui = require("sojourn.ui")

local DRAW_MS = 30

local M = {}

---@type table<string, sojourn.Chat>
M.open_chats = {}
--- The agent whose chat was used last.
---@type string?
M.last = nil

--- What comes before every prompt: `prepare(agent_id, go_on)`. The tools module puts its offer here.
---@type fun(agent_id: string, go_on: fun())
M.prepare = function(_, go_on)
  go_on()
end

local attach_listeners = {}

vim.treesitter.language.register("markdown", { "sojourn", "sojourn-input" })

--- Calls `callback(chat, answer)` whenever a chat has attached to its agent.
function M.on_attach(callback)
  table.insert(attach_listeners, callback)
end

---@class sojourn.Chat
---@field agent_id string
---@field buf integer
---@field input? integer
---@field transcript sojourn.Transcript
---@field context table[] what goes along with the next prompt
---@field unborn boolean the agent is about to be made
---@field attached boolean it has attached once
---@field make_again? fun() the agent could not be made: this tries again
---@field waiting table[] prompts for then
---@field unsent integer prompts that the daemon has not on disk yet
local Chat = {}
Chat.__index = Chat

local function new_buffer(agent_id)
  local buf = vim.api.nvim_create_buf(false, true)
  vim.api.nvim_buf_set_name(buf, "sojourn://" .. agent_id)
  vim.b[buf].sojourn_agent = agent_id
  vim.bo[buf].modifiable = false
  vim.bo[buf].undolevels = -1
  vim.bo[buf].filetype = "sojourn"
  pcall(vim.treesitter.start, buf)
  return buf
end

--- The chat with an agent; it attaches when it is new, unless the agent itself is still to be made (`unborn`).
---@param agent_id string
---@param unborn? boolean
---@return sojourn.Chat
function M.get(agent_id, unborn)
  local chat = M.open_chats[agent_id]
  if chat and vim.api.nvim_buf_is_valid(chat.buf) then
    return chat
  end
  render.highlights()
  chat = setmetatable({ agent_id = agent_id, context = {}, waiting = {}, unsent = 0 }, Chat)
  chat.transcript = transcript.new()
  chat.unborn = unborn
  chat.buf = new_buffer(agent_id)
  M.open_chats[agent_id] = chat
  vim.api.nvim_create_autocmd("BufWipeout", {
    buffer = chat.buf,
    callback = function()
      chat:forget()
    end,
  })
  if client.state == "ready" then
    chat:attach()
  elseif not unborn then
    client.connect(ui.unless_failed()) -- chats attach when it is ready
  end
  return chat
end

function Chat:forget()
  if M.open_chats[self.agent_id] == self then
    M.open_chats[self.agent_id] = nil
    if client.state == "ready" then
      client.request("agent/detach", { agentId = self.agent_id }, nil, { once = true })
    end
  end
end

--- Starts anew, with nothing drawn.
function Chat:reset()
  self.transcript = transcript.new()
  self.loading = nil
  if vim.api.nvim_buf_is_valid(self.buf) then
    draw.clear(self.buf)
  end
end

--- The agent exists now: it is followed.
function Chat:born()
  self.unborn = false
  self:attach()
end

--- Attaching has come to its end: what was said to the agent meanwhile is sent.
function Chat:release()
  self.attached = true
  local waiting = self.waiting
  self.waiting = {}
  for _, prompt in ipairs(waiting) do
    self:send(unpack(prompt))
  end
end

--- Follows the agent from the last event that was drawn.
function Chat:attach()
  if self.attaching or self.unborn then
    return
  end
  self.attaching = true
  local after = self.transcript.seq
  client.request("agent/attach", { agentId = self.agent_id, afterSeq = after }, function(err, answer)
    self.attaching = false
    if M.open_chats[self.agent_id] ~= self then
      return
    elseif err then
      return self:attach_failed(err)
    end
    agents.update(answer.agent, true)
    if answer.mode == "snapshot" then
      self:read_messages(answer)
    else
      self.transcript:attached(answer)
    end
    for _, listener in ipairs(attach_listeners) do
      listener(self, answer)
    end
    self:release()
    self:draw_soon()
  end, { once = true })
end

function Chat:attach_failed(err)
  local kind = vim.tbl_get(err, "data", "kind")
  if kind == "seqAhead" then -- another store, or one from a backup: what was drawn is not its story
    self:reset()
    return self:attach()
  elseif kind == "agentNotFound" then
    self:say("this agent does not exist")
    self:release() -- the daemon says the same to each of them
  elseif client.state == "ready" then
    ui.fail(err)
  end
end

--- Reads the whole conversation as messages, for want of events; what happens meanwhile is applied afterwards.
function Chat:read_messages(answer)
  self:reset()
  self.loading = {}
  local into, waiting = self.transcript, self.loading
  into.seq = answer.seq
  local function page(cursor)
    local params = { agentId = self.agent_id, limit = 500, cursor = cursor }
    client.request("agent/messages", params, function(err, result)
      if self.loading ~= waiting then
        return
      elseif err then
        self.loading = nil
        return ui.fail(err)
      end
      for _, message in ipairs(result.messages) do
        into:message({}, message)
      end
      if result.nextCursor then
        return page(result.nextCursor)
      end
      for _, approval in ipairs(answer.approvals or {}) do
        into:show_approval(approval)
      end
      into:attached({ streaming = answer.streaming or {}, seq = answer.seq, mode = "snapshot" })
      self.loading = nil
      vim.iter(waiting):each(function(params_of_event)
        self:event(params_of_event)
      end)
      self:draw_soon()
    end)
  end
  page(nil)
end

--- Takes in the params of an `agent/event`.
function Chat:event(params)
  if self.loading then
    table.insert(self.loading, params)
    return
  end
  if not self.transcript:apply(params) then
    self:attach()
  elseif self.transcript.stale then
    self:read_messages({ seq = self.transcript.seq })
  end
  self:draw_soon()
end

--- Adds a line of the editor's own.
function Chat:say(text)
  self.transcript:add({}, "note", { text = text })
  self:draw_soon()
end

function Chat:draw_soon()
  if not self.drawing then
    self.drawing = true
    vim.defer_fn(function()
      self.drawing = false
      self:draw()
    end, DRAW_MS)
  end
end

--- Draws what has changed.
function Chat:draw()
  if not vim.api.nvim_buf_is_valid(self.buf) then
    return
  elseif not draw.blocks(self.buf, self.transcript.blocks, self.agent_id) then
    self:draw_soon()
  end
  vim.api.nvim_exec_autocmds("User", { pattern = "SojournDrawn", modeline = false, data = { agent = self.agent_id } })
end

--- The block at a line of the buffer.
---@param line integer from 1
---@return sojourn.Block?
function Chat:block_at(line)
  local row = 0
  for _, block in ipairs(self.transcript.blocks) do
    row = row + (block.lines or 0)
    if line <= row then
      return block
    end
  end
end

--- Says something to the agent; while it is busy this waits in its inbox. `callback(err)` once it is on disk.
---@param content string|table[]
---@param callback? fun(err: table?)
function Chat:prompt(content, callback)
  self.unsent = self.unsent + 1
  self:send(content, function(err)
    self.unsent = self.unsent - 1
    if callback then
      callback(err)
    end
  end)
end

function Chat:send(content, callback)
  if not self.attached then
    table.insert(self.waiting, { content, callback })
    if self.make_again then
      self.make_again()
    elseif client.state == "off" then
      client.connect(ui.unless_failed()) -- it attaches when it is ready
    end
    return
  end
  local params = { agentId = self.agent_id, content = content, wait = false, ifBusy = "queue" }
  M.prepare(self.agent_id, function()
    client.request("agent/prompt", params, function(err)
      if err then
        ui.fail(err)
      end
      callback(err)
    end)
  end)
end

--- The agent that a command means when it names none: the chat's that the cursor is in, else the last one used.
---@return string?
function M.current()
  return vim.b.sojourn_agent or M.last
end

--- The chat's own status line, above its window.
---@return string
function M.winbar()
  local buf = vim.api.nvim_get_current_buf() -- while a window bar is made, that is its window
  local agent_id = vim.b[buf].sojourn_agent or "?"
  local agent = agents.known[agent_id]
  if client.state ~= "ready" then
    local words = client.state == "starting" and "connecting…" or "not connected"
    local chat = M.open_chats[agent_id]
    words = chat and chat.unsent > 0 and words .. " What you said waits." or words
    return ("%%#SojournAgent# %s %%#SojournWarning#%s"):format(agent_id, words)
  elseif not agent then
    return ("%%#SojournAgent# %s"):format(agent_id or "")
  end
  local group = agents.needs_somebody(agent) and "SojournToolApproval" or "SojournNote"
  local name = (agent.title and agent.title:gsub("%%", "%%%%") .. " · " or "") .. agent.agentId
  local text = ("%%#SojournAgent# %s %%#%s#%s"):format(name, group, agents.describe(agent))
  return agent.inbox > 0 and ("%s · %d in the inbox"):format(text, agent.inbox) or text
end

agents.is_open = function(agent_id)
  return M.open_chats[agent_id] ~= nil
end

agents.is_visible = function(agent_id)
  local chat = M.open_chats[agent_id]
  return chat ~= nil
    and vim.iter(vim.fn.win_findbuf(chat.buf)):any(function(window)
      return vim.api.nvim_win_get_tabpage(window) == vim.api.nvim_get_current_tabpage()
    end)
end

--- Nobody will hear what waits: its callbacks are told why.
function Chat:refuse_waiting(why)
  local waiting = self.waiting
  self.waiting = {}
  for _, prompt in ipairs(waiting) do
    prompt[2]({ message = why })
  end
end

client.on("lost", function(why, for_good)
  for _, chat in pairs(M.open_chats) do
    if for_good then
      chat:refuse_waiting(why)
    end
  end
end)

client.on("notification", function(params)
  local chat = M.open_chats[params.agentId]
  if chat then
    chat:event(params)
  end
end, "agent/event")

client.on("notification", function(params)
  local chat = M.open_chats[params.agentId]
  if chat then
    chat:attach()
  end
end, "agent/resync")

client.on("ready", function(session)
  for _, chat in pairs(M.open_chats) do
    if not session.first and not session.same_store then
      chat:reset()
    end
    chat.attaching = false
    chat:attach()
  end
end)

return M
