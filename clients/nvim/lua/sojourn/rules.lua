--- Approval rules of an agent: what runs unasked, lasting decisions among them, and taking one back.
local client = require("sojourn.client")
local ui = require("sojourn.ui")

local M = {}

local function revoke(agent_id, rule)
  client.request(
    "approval/revoke",
    { agentId = agent_id, rule = rule.rule },
    ui.unless_failed(function()
      ui.say(("%s no longer has the rule %s"):format(agent_id, rule.rule))
    end)
  )
end

--- Lists the agent's rules; the one that the user picks is taken back, when they say so again.
---@param agent_id string
function M.choose(agent_id)
  client.request(
    "approval/rules",
    { agentId = agent_id },
    ui.unless_failed(function(result)
      if #result.rules == 0 then
        return ui.say(agent_id .. " has no approval rules")
      end
      vim.ui.select(result.rules, {
        prompt = "Approval rules of " .. agent_id,
        kind = "sojourn_rule",
        format_item = function(rule)
          return ("%s: %s (%s)"):format(rule.rule, rule.policy, rule.source)
        end,
      }, function(rule)
        if rule then
          vim.ui.select({ "Keep it", "Take it back" }, { prompt = rule.rule }, function(_, index)
            if index == 2 then
              revoke(agent_id, rule)
            end
          end)
        end
      end)
    end)
  )
end

return M
