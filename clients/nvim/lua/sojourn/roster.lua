--- The list of agents as a buffer, kept fresh, with keys to act on the one under the cursor.
local about = require("sojourn.about")
local agents = require("sojourn.agents")
local render = require("sojourn.render")
local config = require("sojourn.config")
local ui = require("sojourn.ui")

local M = {}

local buffer
local namespace = vim.api.nvim_create_namespace("sojourn_roster")

local function line_of(agent)
  local asks = agent.approvals > 0 or agent.waitingFor == "approval"
  local icon = config.get().icons[asks and "approval" or agent.state] or " "
  local elsewhere = agent.config.cwd ~= vim.fn.getcwd(-1, -1) and agent.config.cwd
  local where = elsewhere and ("  %s"):format(vim.fn.fnamemodify(elsewhere, ":~")) or ""
  local said = ui.short(about.text(agent), 200)
  local line = ("%s %-24s %-24s %s%s"):format(icon, agents.name(agent), agents.describe(agent), said, where)
  return (line:gsub("%s+$", ""))
end

local function group_of(agent)
  if agents.needs_somebody(agent) then
    return "SojournToolApproval"
  elseif agent.state == "running" or agent.state == "waiting" then
    return "SojournToolRunning"
  end
  return agent.pendingCalls > 0 and "SojournToolPending" or "SojournOutput"
end

local draw

local function learn()
  if buffer and vim.api.nvim_buf_is_valid(buffer) and vim.fn.bufwinid(buffer) ~= -1 then
    about.learn(agents.sorted(), function(news)
      if news then
        draw()
      end
    end)
  end
end

function draw()
  if not buffer or not vim.api.nvim_buf_is_valid(buffer) then
    return
  end
  local found = agents.sorted()
  local lines = vim.tbl_map(line_of, found)
  if #lines == 0 then
    lines = { "No agents yet. :Sojourn new makes one." }
  end
  vim.bo[buffer].modifiable = true
  vim.api.nvim_buf_set_lines(buffer, 0, -1, false, lines)
  vim.bo[buffer].modifiable = false
  vim.api.nvim_buf_clear_namespace(buffer, namespace, 0, -1)
  for index, agent in ipairs(found) do
    local options = { end_col = #lines[index], hl_group = group_of(agent) }
    vim.api.nvim_buf_set_extmark(buffer, namespace, index - 1, 0, options)
  end
  vim.b[buffer].sojourn_agents = vim.tbl_map(function(agent)
    return agent.agentId
  end, found)
end

local KEYS = {
  { "<CR>", "chat", "open the chat" },
  { "s", "stop", "stop the run" },
  { "r", "resume", "resume" },
  { "a", "review", "decide what waits" },
  { "d", "delete", "delete" },
}

local function map_keys()
  for _, key in ipairs(KEYS) do
    vim.keymap.set("n", key[1], function()
      local agent_id = (vim.b.sojourn_agents or {})[vim.api.nvim_win_get_cursor(0)[1]]
      if agent_id then
        vim.cmd.Sojourn({ args = { key[2], agent_id } })
      end
    end, { buffer = buffer, nowait = true, desc = "Sojourn: " .. key[3] })
  end
  vim.keymap.set("n", "q", "<C-w>c", { buffer = buffer, nowait = true, desc = "Sojourn: close" })
end

--- Opens the list.
function M.open()
  render.highlights()
  if not buffer or not vim.api.nvim_buf_is_valid(buffer) then
    buffer = vim.api.nvim_create_buf(false, true)
    vim.api.nvim_buf_set_name(buffer, "sojourn://")
    vim.bo[buffer].filetype = "sojourn-agents"
    map_keys()
  end
  if vim.fn.bufwinid(buffer) == -1 then
    local window = vim.api.nvim_open_win(buffer, true, { split = "below", win = -1, height = 10 })
    vim.wo[window].wrap, vim.wo[window].number, vim.wo[window].cursorline = false, false, true
    vim.wo[window].winbar = " agents: <CR> chat, s stop, r resume, a decide, d delete, q close"
  else
    vim.api.nvim_set_current_win(vim.fn.bufwinid(buffer))
  end
  draw()
  learn()
  agents.refresh()
end

agents.on_change(function()
  draw()
  learn()
end)

return M
