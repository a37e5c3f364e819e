--- Approvals: what an agent wants to do, shown as it would run, and the user's decision about it.
---
--- Rule: nothing runs by an accident of typing. What waits is shown by itself only where the cursor is in the agent's
--- chat, in normal mode, and takes no key; the question comes with `<CR>` or `:Sojourn review`.
local agents = require("sojourn.agents")
local chats = require("sojourn.chat")
local client = require("sojourn.client")
local config = require("sojourn.config")
local json = require("sojourn.json")
local ui = require("sojourn.ui")

local M = {}

---@type table<string, table> open approvals that this editor was told of, by id
M.open = {}

local showing -- the one on the screen: {id, window}

local function who(approval)
  local names = vim.tbl_map(function(step)
    return step.agentId
  end, approval.path)
  names[#names + 1] = approval.agentId
  return table.concat(names, " › ")
end

--- A call in one line.
function M.label(approval)
  return ("%s: %s %s"):format(who(approval), approval.toolName, ui.short(json.encode(approval.args), 60))
end

--- What a decision is about, as lines and their filetype: the daemon's preview, the diff of an edit of this editor's,
--- or the arguments.
---@param approval table
---@return string[] lines
---@return string filetype
function M.preview(approval)
  local preview = approval.preview
  local diff = preview and preview.text
  if preview and preview.truncated then
    diff = diff:gsub("\n$", "") .. "\n… and more: this is the beginning of the change"
  elseif not preview then
    local sound, made = pcall(require("sojourn.tools").diff, approval)
    diff = sound and made or nil
  end
  if diff then
    return vim.split(json.clean(diff):gsub("\n$", ""), "\n", { plain = true }), "diff"
  end
  return vim.split(json.pretty(approval.args), "\n", { plain = true }), "json"
end

local function close()
  if showing and vim.api.nvim_win_is_valid(showing.window) then
    vim.api.nvim_win_close(showing.window, true)
  end
  showing = nil
end

local function show(approval, footer)
  local lines, filetype = M.preview(approval)
  local buf = vim.api.nvim_create_buf(false, true)
  vim.api.nvim_buf_set_lines(buf, 0, -1, false, lines)
  vim.bo[buf].bufhidden, vim.bo[buf].modifiable = "wipe", false
  vim.bo[buf].filetype = filetype
  local width = 40
  for _, line in ipairs(lines) do
    width = math.max(width, vim.fn.strdisplaywidth(line) + 1)
  end
  width = math.min(width, vim.o.columns - 6)
  local height = math.max(1, math.min(#lines, vim.o.lines - 16))
  local window = vim.api.nvim_open_win(buf, false, {
    relative = "editor",
    width = width,
    height = height,
    row = 1,
    col = math.floor((vim.o.columns - width) / 2),
    border = "rounded",
    style = "minimal",
    title = (" %s wants to run %s "):format(who(approval), approval.toolName),
    footer = footer,
    focusable = footer == nil,
  })
  vim.wo[window].wrap = true
  showing = { id = approval.approvalId, window = window }
  vim.cmd.redraw()
end

--- Decides. The first decision of all clients wins; the error of a later one says whose it was.
---@param approval_id string
---@param decision table as the params of `approval/decide`
---@param callback? fun(err: table?)
function M.decide(approval_id, decision, callback)
  local params = vim.tbl_extend("force", { approvalId = approval_id }, decision)
  client.request("approval/decide", params, function(err)
    if err then
      ui.fail(err)
    else
      M.open[approval_id] = nil
    end
    if callback then
      callback(err)
    end
  end)
end

--- Opens the arguments as JSON to be edited: writing the buffer runs the call with them, leaving it decides nothing.
function M.edit(approval)
  local buf = vim.api.nvim_create_buf(false, true)
  vim.api.nvim_buf_set_name(buf, ("sojourn://approval/%s.json"):format(approval.approvalId))
  vim.api.nvim_buf_set_lines(buf, 0, -1, false, vim.split(json.pretty(approval.args), "\n", { plain = true }))
  vim.bo[buf].buftype, vim.bo[buf].bufhidden, vim.bo[buf].filetype = "acwrite", "wipe", "json"
  vim.bo[buf].modified = false
  local window = vim.api.nvim_open_win(buf, true, { split = "below", win = -1, height = 12 })
  vim.wo[window].winbar = (" %s: :w runs it with these arguments, :q! decides nothing"):format(approval.toolName)
  vim.api.nvim_create_autocmd("BufWriteCmd", {
    buffer = buf,
    callback = function()
      local text = table.concat(vim.api.nvim_buf_get_lines(buf, 0, -1, false), "\n")
      local sound, arguments = pcall(json.decode, text)
      if not sound or type(arguments) ~= "table" or text:match("^%s*(.)") ~= "{" then
        return ui.fail("the arguments must be a JSON object; nothing was decided")
      end
      M.decide(approval.approvalId, { decision = "edit", arguments = arguments }, function(err)
        if not err and vim.api.nvim_buf_is_valid(buf) then
          vim.api.nvim_buf_delete(buf, { force = true })
        end
      end)
    end,
  })
end

local function ask_for(prompt, callback)
  vim.ui.input({ prompt = prompt }, function(text)
    if text then
      callback(text)
    end
  end)
end

local function choices(approval)
  local id = approval.approvalId
  local function decision(what)
    return function()
      M.decide(id, what)
    end
  end
  local covered = approval.covers or approval.toolName
  local found = {
    { "Run it", decision({ decision = "approve" }) },
    { ("Run it, and %s from now on in this run"):format(covered), decision({ decision = "approve", scope = "run" }) },
    {
      ("Run it, and %s from now on for this agent"):format(covered),
      decision({ decision = "approve", scope = "agent" }),
    },
    {
      "Do not run it…",
      function()
        ask_for("Why not (the model reads it): ", function(reason)
          M.decide(id, { decision = "deny", reason = reason ~= "" and reason or nil })
        end)
      end,
    },
    {
      "Answer in its place…",
      function()
        ask_for("Its result: ", function(content)
          M.decide(id, { decision = "answer", content = content })
        end)
      end,
    },
    { "Stop the run", decision({ decision = "abort" }) },
    { "Later", function() end },
  }
  if approval.editable then
    table.insert(found, 4, {
      "Edit the arguments…",
      function()
        M.edit(approval)
      end,
    })
  end
  return found
end

--- Shows a call and asks what to do about it.
---@param approval table
function M.review(approval)
  close()
  local chat = chats.open_chats[approval.agentId]
  if chat then
    chat:draw() -- what led to the call is on the screen with it
  end
  show(approval)
  vim.ui.select(choices(approval), {
    prompt = ("%s: %s?"):format(who(approval), approval.toolName),
    kind = "sojourn_approval",
    format_item = function(choice)
      return choice[1]
    end,
  }, function(choice)
    close()
    if choice then
      choice[2]()
    end
  end)
end

--- Asks the daemon for what is open; `callback(approvals)`.
---@param agent_id? string nil: of all agents
function M.list(agent_id, callback)
  client.request(
    "approval/list",
    { agentId = agent_id },
    ui.unless_failed(function(result)
      callback(result.approvals)
    end)
  )
end

--- Finds an open approval and hands it to `callback`: by id, the only one, or the one that the user picks.
---@param id? string
---@param agent_id? string
---@param callback fun(approval: table)
function M.choose(id, agent_id, callback)
  M.list(not id and agent_id or nil, function(found)
    if id then
      found = vim.tbl_filter(function(approval)
        return approval.approvalId == id
      end, found)
    end
    if #found == 0 then
      return ui.say(id and ("no approval %s is open"):format(id) or "nothing waits for a decision")
    elseif #found == 1 then
      return callback(found[1])
    end
    vim.ui.select(found, { prompt = "Which call?", kind = "sojourn_approval", format_item = M.label }, function(one)
      if one then
        callback(one)
      end
    end)
  end)
end

--- The open approval of an agent, or of a child of its, that is on the screen; else the oldest that is known here.
---@param agent_id string
---@return table?
function M.of(agent_id)
  local found = vim.tbl_filter(function(approval)
    return M.concerns(approval, agent_id)
  end, vim.tbl_values(M.open))
  table.sort(found, function(one, other)
    return (one.since .. one.callId) < (other.since .. other.callId)
  end)
  for _, approval in ipairs(found) do
    if showing and showing.id == approval.approvalId then
      return approval
    end
  end
  return found[1]
end

--- Whether an approval is an agent's, or a descendant's of it.
function M.concerns(approval, agent_id)
  return agent_id == approval.agentId
    or vim.iter(approval.path):any(function(step)
      return step.agentId == agent_id
    end)
end

local function in_sight(approval)
  if config.get().review ~= "focus" or showing or vim.api.nvim_get_mode().mode ~= "n" then
    return false
  end
  return vim.b.sojourn_agent ~= nil and M.concerns(approval, vim.b.sojourn_agent)
end

--- Shows a call without asking: typing, or leaving the chat, takes it away again, and decides nothing.
local function announce(approval)
  show(approval, " <CR> decides ")
  local window = showing.window
  vim.api.nvim_create_autocmd({ "InsertEnter", "CmdlineEnter", "WinLeave" }, {
    once = true,
    callback = function()
      if showing and showing.window == window then
        close()
      end
    end,
  })
end

client.on("request", function(params)
  local approval = params.approval
  -- It is decided by `approval/decide`, which is repeatable; this request stays open until it is withdrawn.
  M.open[approval.approvalId] = approval
  if in_sight(approval) then
    announce(approval)
  elseif not agents.is_visible(approval.agentId) and #approval.path > 0 then
    ui.say(M.label(approval) .. " waits (:Sojourn review)", vim.log.levels.WARN)
  end
end, "approval/request")

client.on("notification", function(params)
  local event = params.event
  while event.type == "nested" do
    event = event.event
  end
  if event.type == "approvalResolved" then
    M.open[event.approval.approvalId] = nil
    if showing and showing.id == event.approval.approvalId then
      close()
    end
    local next_one = vim.b.sojourn_agent and M.of(vim.b.sojourn_agent)
    if next_one and in_sight(next_one) then
      announce(next_one)
    end
  end
end, "agent/event")

chats.on_attach(function(_, answer)
  for _, approval in ipairs(answer.approvals or {}) do
    M.open[approval.approvalId] = approval
  end
end)

return M
