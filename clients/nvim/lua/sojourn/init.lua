--- Sojourn in Neovim: what a user's config may call. `setup` is optional; nothing else is loaded before its use.
local M = {}

--- Sets options (see |sojourn-config|).
---@param options? table
function M.setup(options)
  require("sojourn.config").set(options)
end

--- Opens the chat with an agent; without one the user picks.
---@param agent_id? string
function M.chat(agent_id)
  vim.cmd.Sojourn({ args = { "chat", agent_id } })
end

--- Says something to an agent. `callback(err)` once the daemon has it on disk.
---@param agent_id string
---@param text string may name `@buffer`, `@selection`, `@diagnostics`, `@file:PATH`
---@param callback? fun(err: table?)
function M.prompt(agent_id, text, callback)
  require("sojourn.commands")
  local content = require("sojourn.context").content(text)
  require("sojourn.chat").get(agent_id):prompt(content, callback)
end

--- Connects, so that notifications and the status line work before the first command.
function M.connect()
  require("sojourn.commands")
  require("sojourn.client").connect()
end

--- What agents are doing, for a status line: "" while nothing is, or before the first use.
---@return string
function M.statusline()
  local agents = package.loaded["sojourn.agents"]
  if not agents then
    return ""
  end
  local state = require("sojourn.client").state
  if state ~= "ready" then
    return state == "starting" and "sojourn: connecting" or ""
  end
  local running, needing, pending = 0, 0, 0
  for _, agent in pairs(agents.known) do
    if not agent.parent then
      local active, needs = agent.state == "running" or agent.state == "waiting", agents.needs_somebody(agent)
      running = running + (active and not needs and 1 or 0)
      needing = needing + (needs and 1 or 0)
      pending = pending + agent.pendingCalls
    end
  end
  local words = {}
  words[#words + 1] = needing > 0 and ("%d need%s you"):format(needing, needing == 1 and "s" or "") or nil
  words[#words + 1] = running > 0 and ("%d running"):format(running) or nil
  words[#words + 1] = pending > 0 and ("%d pending"):format(pending) or nil
  return #words > 0 and "sojourn: " .. table.concat(words, ", ") or ""
end

return M
