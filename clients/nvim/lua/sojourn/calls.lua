--- Pending calls: handing in by hand what a tool, or whoever knows, has not delivered yet.
local client = require("sojourn.client")
local ui = require("sojourn.ui")

local M = {}

local function open_calls(agent_id, callback)
  client.request(
    "agent/pendingCalls",
    { agentId = agent_id },
    ui.unless_failed(function(result)
      callback(vim.tbl_filter(function(call)
        return not call.answered
      end, result.pendingCalls))
    end)
  )
end

local function send(agent_id, call_id, failed, text)
  local params = { agentId = agent_id, callId = call_id }
  params[failed and "error" or "content"] = text
  client.request(
    failed and "inbox/reject" or "inbox/resolve",
    params,
    ui.unless_failed(function()
      ui.say(("%s will read it; if it is not running: :Sojourn resume"):format(agent_id))
    end)
  )
end

local function with_text(text, failed, callback)
  if text and text ~= "" then
    return callback(text)
  end
  vim.ui.input({ prompt = failed and "Why it failed: " or "Its result: " }, function(typed)
    if typed and typed ~= "" then
      callback(typed)
    end
  end)
end

--- Hands in a result, or a failure, of one of the agent's pending calls; asks for what is not given.
---@param agent_id string
---@param failed boolean
---@param call_id? string
---@param text? string
function M.answer(agent_id, failed, call_id, text)
  if call_id then
    return with_text(text, failed, function(words)
      send(agent_id, call_id, failed, words)
    end)
  end
  open_calls(agent_id, function(calls)
    if #calls == 0 then
      return ui.say(agent_id .. " has no call pending")
    end
    local function chosen(call)
      if call then
        M.answer(agent_id, failed, call.callId, text)
      end
    end
    if #calls == 1 then
      return chosen(calls[1])
    end
    vim.ui.select(calls, {
      prompt = "Which call?",
      kind = "sojourn_call",
      format_item = function(call)
        return ("%s (%s): %s"):format(call.toolName, call.callId, ui.short(ui.text_of(call.placeholder), 60))
      end,
    }, chosen)
  end)
end

--- Asks what to do about a pending call.
---@param agent_id string
---@param call_id string
---@param tool string
function M.ask(agent_id, call_id, tool)
  local choices = { "Hand in its result…", "Say that it failed…", "Later" }
  local prompt = ("%s (%s) is pending"):format(tool, call_id)
  vim.ui.select(choices, { prompt = prompt, kind = "sojourn_call" }, function(_, index)
    if index == 1 or index == 2 then
      M.answer(agent_id, index == 2, call_id)
    end
  end)
end

return M
