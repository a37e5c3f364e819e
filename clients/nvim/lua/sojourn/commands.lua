--- `:Sojourn …`: the commands and their completion.
local agents = require("sojourn.agents")
local approvals = require("sojourn.approvals")
local calls = require("sojourn.calls")
local chats = require("sojourn.chat")
local client = require("sojourn.client")
local config = require("sojourn.config")
local context = require("sojourn.context")
local json = require("sojourn.json")
local ui = require("sojourn.ui")
local window = require("sojourn.window")
require("sojourn.documents")
require("sojourn.tools")
require("sojourn.reload")

local M = {}

---@class sojourn.Arguments
---@field words string[] what follows the command's name
---@field rest string the same as one text
---@field bang boolean
---@field range? integer[] first and last line

local function new_name()
  local directory = vim.fn.fnamemodify(vim.fn.getcwd(-1, -1), ":t"):gsub("[^%w._-]", "-"):gsub("^[._-]+", "")
  local tail = vim.fn.sha256(tostring(vim.uv.hrtime())):sub(1, 4)
  return ("%s-%s"):format(directory ~= "" and directory:sub(1, 60) or "agent", tail)
end

local function make(chat, agent_config)
  chat.make_again = nil
  client.request("agent/create", { agentId = chat.agent_id, config = agent_config }, function(err, agent)
    local exists = err and vim.tbl_get(err, "data", "kind") == "alreadyExists"
    if err then
      ui.fail(err)
    else
      agents.update(agent, true)
    end
    if chat.unborn and (exists or not err) then
      chat:born()
    elseif chat.unborn then
      chat:refuse_waiting(err.message)
      chat.make_again = function()
        make(chat, agent_config)
      end
    end
  end)
end

--- Makes an agent. Its chat opens at once, so that the cursor moves when the command is given and not later.
local function create(agent_id, settings)
  agent_id = agent_id or new_name()
  local chat = window.open(agent_id, not chats.open_chats[agent_id])
  make(chat, vim.tbl_extend("force", config.get().agent, settings or {}))
  return agent_id
end

--- The agent that is meant: the named one, the current one, or the one that the user picks.
local function with_agent(name, callback)
  local agent_id = name or chats.current()
  if agent_id then
    return callback(agent_id)
  end
  agents.pick("Which agent?", function(picked)
    if picked then
      callback(picked)
    else
      callback(create())
    end
  end, true)
end

local function range_part(range)
  local buf = vim.api.nvim_get_current_buf()
  local visual = range[1] == vim.fn.line("'<") and range[2] == vim.fn.line("'>") and vim.fn.visualmode() ~= ""
  return visual and context.selection(buf) or context.range(buf, range[1], range[2])
end

--- Reads `key=value` words as config: JSON where it is JSON, text otherwise.
local function settings_of(words)
  local settings, agent_id = {}, nil
  for _, word in ipairs(words) do
    local name, value = word:match("^(%w+)=(.*)$")
    if name then
      local sound, decoded = pcall(json.decode, value)
      settings[name] = sound and decoded or value
    else
      agent_id = word
    end
  end
  return agent_id, settings
end

local function simple(method, said)
  return function(arguments)
    with_agent(arguments.words[1], function(agent_id)
      client.request(
        method,
        { agentId = agent_id, wait = method == "agent/resume" and false or nil },
        function(err, result)
          if err then
            ui.fail(err)
          elseif said then
            ui.say(said(agent_id, result))
          end
        end
      )
    end)
  end
end

local function decide(decision)
  return function(arguments)
    local id = arguments.words[1] and approvals.open[arguments.words[1]] and table.remove(arguments.words, 1) or nil
    local reason = table.concat(arguments.words, " ")
    if decision == "approve" and reason ~= "" then
      return ui.fail(("no approval %s is open"):format(reason))
    end
    approvals.choose(id, chats.current(), function(approval)
      approvals.decide(approval.approvalId, { decision = decision, reason = reason ~= "" and reason or nil })
    end)
  end
end

local function answer(failed)
  return function(arguments)
    local first = arguments.words[1]
    local call_id = first and first:match("^msg%-%d+%-call%-%d+$") and table.remove(arguments.words, 1) or nil
    with_agent(nil, function(agent_id)
      calls.answer(agent_id, failed, call_id, table.concat(arguments.words, " "))
    end)
  end
end

local function prompt(arguments)
  local more = arguments.range and { range_part(arguments.range) } or {}
  local content = arguments.rest ~= "" and context.content(arguments.rest, more) or nil
  with_agent(nil, function(agent_id)
    if not content then
      local chat = window.open(agent_id)
      vim.list_extend(chat.context, more)
      return
    end
    local before = vim.api.nvim_get_current_win()
    local chat = arguments.bang and chats.get(agent_id) or window.open(agent_id)
    chats.last = agent_id
    if vim.api.nvim_win_is_valid(before) then
      vim.api.nvim_set_current_win(before)
    end
    chat:prompt(content)
  end)
end

local function review(arguments)
  local word = arguments.words[1]
  local known = word and (approvals.open[word] ~= nil)
  approvals.choose(known and word or nil, not known and word or chats.current(), approvals.review)
end

local function status()
  client.connect(ui.unless_failed(function(it)
    local words = "Sojourn %s, %s for %d min: %d agents, %d running, %d clients; this one is %q"
    local minutes = math.floor(it.uptimeS / 60)
    ui.say(words:format(it.version, it.state, minutes, it.agents, it.activeRuns, it.clients, client.client_id()))
  end))
end

local function delete(arguments)
  with_agent(arguments.words[1], function(agent_id)
    local function go()
      client.request(
        "agent/delete",
        { agentId = agent_id, force = arguments.bang or nil },
        ui.unless_failed(function()
          ui.say(agent_id .. " is deleted")
        end)
      )
    end
    vim.ui.select({ "Keep it", "Delete it" }, { prompt = ("Delete %s for good?"):format(agent_id) }, function(_, index)
      if index == 2 then
        go()
      end
    end)
  end)
end

local COMMANDS = {
  agents = {
    function()
      require("sojourn.roster").open()
    end,
  },
  new = {
    function(arguments)
      local agent_id, settings = settings_of(arguments.words)
      create(agent_id, settings)
    end,
    "config",
  },
  chat = {
    function(arguments)
      local name = arguments.words[1]
      if not name and not vim.b.sojourn_agent and chats.last and not agents.is_visible(chats.last) then
        name = chats.last
      end
      if name then
        return window.open(name)
      end
      agents.pick("Chat with which agent?", function(picked)
        if picked then
          window.open(picked)
        else
          create()
        end
      end, true)
    end,
    "agent",
  },
  prompt = { prompt, "context" },
  push = {
    function(arguments)
      local content = context.content(arguments.rest, arguments.range and { range_part(arguments.range) } or nil)
      with_agent(nil, function(agent_id)
        client.request("inbox/push", { agentId = agent_id, content = content }, ui.unless_failed())
      end)
    end,
    "context",
  },
  review = { review, "approval" },
  approve = { decide("approve"), "approval" },
  deny = { decide("deny"), "approval" },
  abort = { decide("abort"), "approval" },
  rules = {
    function(arguments)
      with_agent(arguments.words[1], require("sojourn.rules").choose)
    end,
    "agent",
  },
  resolve = { answer(false), "call" },
  reject = { answer(true), "call" },
  stop = {
    simple("agent/stop", function(agent_id, result)
      return result.stopped and agent_id .. " has stopped" or agent_id .. " was not running"
    end),
    "agent",
  },
  resume = { simple("agent/resume"), "agent" },
  compact = {
    simple("agent/compact", function(agent_id, result)
      return ("%s: %d tokens became %d"):format(agent_id, result.tokensBefore, result.tokensAfter)
    end),
    "agent",
  },
  fork = {
    function(arguments)
      with_agent(arguments.words[1], function(agent_id)
        client.request(
          "agent/fork",
          { agentId = agent_id },
          ui.unless_failed(function(agent)
            window.open(agent.agentId)
          end)
        )
      end)
    end,
    "agent",
  },
  delete = { delete, "agent" },
  close = {
    function()
      local chat = chats.open_chats[chats.current() or ""]
      if chat then
        window.close(chat)
      end
    end,
  },
  status = { status },
  connect = { status },
  disconnect = { client.disconnect },
  help = {
    function()
      vim.cmd.help("sojourn")
    end,
  },
}

--- Runs `:Sojourn`; with no words it opens a chat.
---@param command table as `nvim_create_user_command` gives it
function M.run(command)
  local words = vim.list_slice(command.fargs, 2)
  local name = command.fargs[1] or "chat"
  local entry = COMMANDS[name]
  if not entry then
    return ui.fail(("there is no command %q; :Sojourn <Tab> lists them"):format(name))
  end
  local range = command.range > 0 and { command.line1, command.line2 } or nil
  local rest = vim.trim(command.args:sub(#name + 1))
  local sound, problem = pcall(entry[1], { words = words, rest = rest, bang = command.bang, range = range })
  if not sound then
    ui.fail(tostring(problem))
  end
end

--- What `<CR>` on a block of a chat does.
---@param chat sojourn.Chat
---@param block? sojourn.Block
function M.act_on(chat, block)
  if block and block.approval then
    approvals.review(block.approval)
  elseif block and block.status == "pending" then
    calls.ask(chat.agent_id, block.callId, block.name)
  else
    window.to_input(chat)
  end
end

local COMPLETE = {
  agent = function()
    return vim.tbl_map(function(agent)
      return agent.agentId
    end, agents.sorted())
  end,
  approval = function()
    return vim.tbl_keys(approvals.open)
  end,
  call = function()
    local chat = chats.open_chats[chats.current() or ""]
    local found = {}
    for _, block in ipairs(chat and chat.transcript.blocks or {}) do
      if block.status == "pending" and block.depth == 0 then
        found[#found + 1] = block.callId
      end
    end
    return found
  end,
  config = function()
    return { "model=", "preset=", "systemPrompt=", "maxTurns=", "pauseOnPending=true", "onApproval=", "cwd=" }
  end,
  context = function(lead)
    return window.words(lead)
  end,
}

--- Completion of `:Sojourn`.
---@param lead string
---@param line string
---@param position integer
---@return string[]
function M.complete(lead, line, position)
  local before = line:sub(1, position):gsub("^.-Sojourn!?%s*", "")
  local name = before:match("^(%S+)%s")
  local found
  if not name then
    found = vim.tbl_keys(COMMANDS)
  else
    local kind = COMMANDS[name] and COMMANDS[name][2]
    found = kind and COMPLETE[kind](lead) or {}
  end
  table.sort(found)
  return vim.tbl_filter(function(word)
    return vim.startswith(word, lead)
  end, found)
end

return M
