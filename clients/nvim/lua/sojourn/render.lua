--- How a block looks: its lines, and which highlight group each of them has. Pure.
---
--- The first characters of a line say what folds: `┊` is reasoning, `┆` the rest of a long output.
local config = require("sojourn.config")
local json = require("sojourn.json")
local ui = require("sojourn.ui")

local M = {}

M.FOLD_EXPR = [[getline(v:lnum) =~# '^\%(│ \)*[┊┆]' ? 1 : 0]]

local GROUPS = {
  SojournUser = "Title",
  SojournAgent = "Function",
  SojournReasoning = "Comment",
  SojournTool = "Identifier",
  SojournToolRunning = "DiagnosticInfo",
  SojournToolDone = "DiagnosticOk",
  SojournToolFailed = "DiagnosticError",
  SojournToolPending = "DiagnosticHint",
  SojournToolApproval = "DiagnosticWarn",
  SojournOutput = "NonText",
  SojournArguments = "String",
  SojournAdded = "Added",
  SojournRemoved = "Removed",
  SojournNote = "Comment",
  SojournWarning = "WarningMsg",
  SojournNested = "LineNr",
}

--- Defines the highlight groups, as links that a colour scheme or a user may override.
function M.highlights()
  for group, link in pairs(GROUPS) do
    vim.api.nvim_set_hl(0, group, { link = link, default = true })
  end
end

local STATUS = {
  called = { "SojournTool", "" },
  approval = { "SojournToolApproval", "waits for your approval" },
  running = { "SojournToolRunning", "running" },
  done = { "SojournToolDone", "" },
  failed = { "SojournToolFailed", "failed" },
  pending = { "SojournToolPending", "pending" },
  denied = { "SojournToolFailed", "not run" },
}

local function split(text)
  return vim.split(json.clean(text):gsub("%z", "␀"), "\n", { plain = true })
end

local function with(prefix, text)
  return vim.tbl_map(function(line)
    return prefix .. line
  end, split(text))
end

local function plain(lines, group)
  local groups = {}
  for index = 1, #lines do
    groups[index] = group
  end
  return lines, groups
end

local function append(lines, groups, more, group)
  for _, line in ipairs(more) do
    lines[#lines + 1] = line
    groups[#lines] = group
  end
end

local function output(text)
  local shown = config.get().output_lines
  local lines = with("│ ", (text:gsub("%s+$", "")))
  for index = shown + 1, #lines do
    lines[index] = lines[index]:gsub("^│", "┆")
  end
  return lines
end

local DIFF_GROUPS = { ["+"] = "SojournAdded", ["-"] = "SojournRemoved" }

--- What a decision is about: the change as a diff where there is one, else the arguments.
local function in_question(block, lines, groups)
  local shown, filetype = require("sojourn.approvals").preview(block.approval)
  for _, line in ipairs(shown) do
    local group = filetype == "diff" and (DIFF_GROUPS[line:sub(1, 1)] or "SojournOutput") or "SojournArguments"
    append(lines, groups, { "│ " .. line }, group)
  end
end

local function status_words(block)
  local words = STATUS[block.status][2]
  if block.status == "pending" then
    words = words .. " " .. block.callId
  elseif block.status == "running" and block.fraction then
    words = ("%s %d%%"):format(words, math.floor(block.fraction * 100 + 0.5))
  end
  if block.decision then
    words = words == "" and block.decision or words .. ", " .. block.decision
  end
  return words == "" and "" or " — " .. words
end

local function tool(block)
  local args = type(block.args) == "table" and json.encode(block.args) or tostring(block.args)
  local icon = config.get().icons[block.status]
  local whole = block.status == "approval"
  local head = ("%s %s %s%s"):format(icon, block.name, whole and "" or ui.short(args, 60), status_words(block))
  local lines, groups = { (head:gsub("  +", " ")) }, { STATUS[block.status][1] }
  if whole then
    in_question(block, lines, groups)
  end
  if block.output ~= "" then
    append(lines, groups, output(block.output), "SojournOutput")
  end
  return lines, groups
end

local QUEUED = { message = "queued", result = "result queued", rejection = "rejection queued" }

local RENDER = {
  head = function(block, name)
    return plain({ "## " .. (block.depth > 0 and "Helper" or name) }, "SojournAgent")
  end,
  user = function(block)
    local lines, groups = { "## " .. (block.depth > 0 and "Task" or "You"), "" }, { "SojournUser" }
    append(lines, groups, split(block.text), nil)
    return lines, groups
  end,
  text = function(block)
    return plain(split(block.text), nil)
  end,
  reasoning = function(block)
    return plain(with("┊ ", (block.text:gsub("%s+$", ""))), "SojournReasoning")
  end,
  arguments = function(block)
    return plain({ ("%s writes a call, %d characters"):format(config.get().icons.running, block.count) }, "SojournTool")
  end,
  tool = tool,
  result = function(block)
    local icon = config.get().icons[block.failed and "failed" or "done"]
    local lines =
      { ("%s %s of %s (%s)"):format(icon, block.failed and "failure" or "result", block.name, block.callId) }
    local groups = { block.failed and "SojournToolFailed" or "SojournToolDone" }
    append(lines, groups, output(block.text), "SojournOutput")
    return lines, groups
  end,
  queued = function(block)
    local what = QUEUED[block.itemKind] .. (block.callId and (" for " .. block.callId) or "")
    return plain(with("⇢ ", what .. ": " .. block.text), "SojournNote")
  end,
  note = function(block)
    return plain(with("— ", block.text), block.failed and "SojournWarning" or "SojournNote")
  end,
}

--- The lines of a block, one blank line at their end, and the highlight group of each line that has one.
---@param block sojourn.Block
---@param name string how the agent is called
---@return string[] lines
---@return table<integer, string> groups
function M.block(block, name)
  if block.kind == "gone" then
    return {}, {}
  end
  local lines, groups = RENDER[block.kind](block, name)
  lines[#lines + 1] = ""
  if block.depth > 0 then
    local bars = ("│ "):rep(block.depth)
    for index, line in ipairs(lines) do
      lines[index] = (bars .. line):gsub(" $", "")
      groups[index] = groups[index] or "SojournNested"
    end
  end
  return lines, groups
end

--- What a closed fold shows.
---@return string
function M.fold_text()
  local first = vim.fn.getline(vim.v.foldstart)
  local count = vim.v.foldend - vim.v.foldstart + 1
  local bars = vim.fn.matchstr(first, [[^\%(│ \)*]])
  local rest = first:sub(#bars + 1)
  local what = vim.startswith(rest, "┊") and "thought" or "more"
  local lines = ("%d line%s"):format(count, count == 1 and "" or "s")
  return ("%s▸ %s, %s: %s"):format(bars, what, lines, ui.short(rest:gsub("^[^ ]* ?", "", 1), 60))
end

return M
