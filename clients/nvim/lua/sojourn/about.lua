--- What agents without a title are about: what was last said to them.
local client = require("sojourn.client")
local ui = require("sojourn.ui")

local M = {}

local MOST, LATEST = 20, 20 -- agents that are asked about, and messages of each in which to look
local known = {} -- by id: the count of messages when it was asked for, and the text

local function is_stale(agent)
  local before = known[agent.agentId]
  return not agent.title and agent.messageCount > 0 and not (before and before.count == agent.messageCount)
end

local function last_said(messages)
  for _, message in ipairs(messages) do
    local text = message.role == "user" and vim.trim(ui.text_of(message.content)) or ""
    if text ~= "" then
      return text
    end
  end
end

--- What was last said to an agent, as far as it is known here; empty for one with a title, which says more.
---@param agent table
---@return string
function M.text(agent)
  local before = known[agent.agentId]
  return not agent.title and before and before.text or ""
end

--- Asks for what is not known of the first of these agents; `callback(news)` says whether anything was asked.
---@param agents table[]
---@param callback fun(news: boolean)
function M.learn(agents, callback)
  local asked = vim.list_slice(vim.tbl_filter(is_stale, agents), 1, MOST)
  local open = #asked
  if open == 0 then
    return callback(false)
  end
  for _, agent in ipairs(asked) do
    local text = M.text(agent)
    known[agent.agentId] = { count = agent.messageCount, text = text }
    local params = { agentId = agent.agentId, order = "desc", limit = LATEST }
    client.request("agent/messages", params, function(err, result)
      text = not err and last_said(result.messages) or text
      known[agent.agentId] = not err and { count = agent.messageCount, text = text } or nil
      open = open - 1
      if open == 0 then
        callback(true)
      end
    end, { once = true })
  end
end

return M
