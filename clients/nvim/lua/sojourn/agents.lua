--- What this editor knows of all agents, kept fresh by `agent/watch`, and who of them needs somebody.
local about = require("sojourn.about")
local client = require("sojourn.client")
local config = require("sojourn.config")
local ui = require("sojourn.ui")

local M = {}

---@type table<string, table> agents as the daemon shows them, by id
M.known = {}
--- Whether an agent's chat is on the screen; the chat module puts its answer here.
---@type fun(agent_id: string): boolean
M.is_visible = function()
  return false
end

--- Whether an agent's chat was opened here; the chat module puts its answer here, too.
---@type fun(agent_id: string): boolean
M.is_open = function()
  return false
end

local watchers = {}

--- Calls `callback(agent_id)` after every change; nil for all of them.
function M.on_change(callback)
  table.insert(watchers, callback)
end

local function changed(agent_id)
  for _, watcher in ipairs(watchers) do
    watcher(agent_id)
  end
  vim.api.nvim_exec_autocmds("User", { pattern = "SojournChanged", modeline = false })
  vim.cmd.redrawstatus({ bang = true })
end

--- How an agent is called in sentences.
---@param agent table
---@return string
function M.name(agent)
  return agent.title and ("%s (%s)"):format(agent.title, agent.agentId) or agent.agentId
end

--- What an agent is doing, or what it waits for, in words.
---@param agent table
---@return string
function M.describe(agent)
  if agent.approvals > 0 then
    return agent.approvals == 1 and "waits for your approval" or ("waits for %d approvals"):format(agent.approvals)
  elseif agent.state == "waiting" then
    return agent.waitingFor == "approval" and "a child waits for your approval" or "waits for a result"
  elseif agent.pendingCalls > 0 then
    local calls = ("%d call%s pending"):format(agent.pendingCalls, agent.pendingCalls == 1 and "" or "s")
    return agent.state == "idle" and calls or agent.state .. ", " .. calls
  elseif agent.state == "running" and agent.waitingFor == "tool" then
    return "running, a tool is at work"
  elseif agent.state == "interrupted" then
    return "interrupted (:Sojourn resume)"
  end
  return agent.state
end

--- Whether an agent waits for somebody: it, or a child of its, asks, or it was cut off.
---@param agent table
---@return boolean
function M.needs_somebody(agent)
  return agent.approvals > 0 or agent.state == "interrupted" or agent.waitingFor == "approval"
end

--- Which event of `config.notify` a change from `before` to `agent` is, nil for none.
local function event_of(before, agent)
  if agent.approvals > (before and before.approvals or 0) then
    return "approval"
  end
  local was_active = before and (before.state == "running" or before.state == "waiting")
  if not was_active or before.state == agent.state then
    return nil
  end
  local events = { paused = "paused", interrupted = "interrupted", idle = "done" }
  return events[agent.state]
end

local HINTS = {
  approval = " (:Sojourn review)",
  paused = " (:Sojourn chat)",
  interrupted = " (:Sojourn resume)",
  done = "",
}

--- An approval is anybody's business; how others' agents fare elsewhere is not.
local function is_ours(agent)
  return M.is_open(agent.agentId) or agent.config.cwd == vim.fn.getcwd(-1, -1)
end

local function tell(before, agent)
  local event = event_of(before, agent)
  if event and event ~= "approval" and not is_ours(agent) then
    return
  end
  if not event or not config.get().notify[event] or agent.parent or M.is_visible(agent.agentId) then
    return
  end
  local words = event == "done" and "is done" or M.describe(agent)
  local level = event == "done" and vim.log.levels.INFO or vim.log.levels.WARN
  ui.say(("%s %s%s"):format(M.name(agent), words, HINTS[event]), level)
end

--- Takes an agent in as it is now.
---@param agent table
---@param quiet? boolean
function M.update(agent, quiet)
  local before = M.known[agent.agentId]
  if before and before.seq > agent.seq then
    return
  end
  M.known[agent.agentId] = agent
  if not quiet then
    tell(before, agent)
  end
  changed(agent.agentId)
end

client.on("notification", function(params)
  if params.deleted then
    M.known[params.agentId] = nil
    changed(params.agentId)
  else
    M.update(params.agent)
  end
end, "agent/changed")

local function list(cursor, found, callback)
  client.request("agent/list", { limit = 500, cursor = cursor }, function(err, result)
    if err then
      return callback(err)
    end
    vim.list_extend(found, result.agents)
    if result.nextCursor then
      return list(result.nextCursor, found, callback)
    end
    callback(nil, found)
  end)
end

--- Asks for all agents anew; `callback(err, agents)`, newest activity first.
function M.refresh(callback)
  list(nil, {}, function(err, found)
    if not err then
      local before = M.known
      M.known = {}
      for _, agent in ipairs(found) do
        M.known[agent.agentId] = agent
        tell(before[agent.agentId], agent)
      end
      changed()
    end
    if callback then
      callback(err, found)
    end
  end)
end

client.on("ready", function()
  client.request("agent/watch", nil, nil, { once = true })
  M.refresh()
end)

client.on("lost", function()
  changed()
end)

--- Agents at the top (no children), newest activity first; this directory's before the others.
---@return table[]
function M.sorted()
  local here = vim.fn.getcwd(-1, -1)
  local found = vim.tbl_filter(function(agent)
    return not agent.parent
  end, vim.tbl_values(M.known))
  table.sort(found, function(one, other)
    local one_here, other_here = one.config.cwd == here, other.config.cwd == here
    if one_here ~= other_here then
      return one_here
    end
    if one.updatedAt ~= other.updatedAt then
      return one.updatedAt > other.updatedAt
    end
    return one.agentId < other.agentId
  end)
  return found
end

local function in_words(agent)
  local said = ui.short(about.text(agent), 60)
  return ("%s  [%s]%s"):format(M.name(agent), M.describe(agent), said ~= "" and "  " .. said or "")
end

--- Lets the user pick an agent; `callback(agent_id)` is not called when they do not.
---@param prompt string
---@param callback fun(agent_id: string)
---@param with_new? boolean offers a new one as well, as `false`
function M.pick(prompt, callback, with_new)
  M.refresh(function(err)
    if err then
      return ui.fail(err)
    end
    local items = M.sorted()
    if with_new then
      items[#items + 1] = false
    end
    if #items == 0 then
      return ui.say("there are no agents yet; :Sojourn new makes one")
    end
    about.learn(M.sorted(), function()
      vim.ui.select(items, {
        prompt = prompt,
        kind = "sojourn_agent",
        format_item = function(agent)
          return agent and in_words(agent) or "a new agent"
        end,
      }, function(agent)
        if agent ~= nil then
          callback(agent and agent.agentId)
        end
      end)
    end)
  end)
end

return M
