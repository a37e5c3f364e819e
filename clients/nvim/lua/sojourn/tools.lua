--- What this editor lets agents do in it: tools that the daemon calls back with `tool/execute`.
---
--- They are offered to the agents whose chats are open here. Edits go into buffers: they can be undone, and what the
--- user has not saved is neither overwritten nor saved.
local agents = require("sojourn.agents")
local chats = require("sojourn.chat")
local client = require("sojourn.client")
local config = require("sojourn.config")
local context = require("sojourn.context")

local M = {}

local function full_path(path, agent_id)
  if type(path) ~= "string" or path == "" then
    error("path must be a text", 0)
  elseif vim.startswith(path, "/") then
    return vim.fs.normalize(path, { expand_env = false })
  end
  local agent = agents.known[agent_id]
  local directory = agent and agent.config.cwd or vim.fn.getcwd()
  return vim.fs.normalize(vim.fs.joinpath(directory, path), { expand_env = false })
end

local function buffer_of(path)
  for _, buf in ipairs(vim.api.nvim_list_bufs()) do
    if vim.bo[buf].buftype == "" and vim.fs.normalize(vim.api.nvim_buf_get_name(buf)) == path then
      return buf
    end
  end
end

local function loaded_buffer(path, is_new)
  local buf = buffer_of(path)
  if not buf then
    local stat = vim.uv.fs_stat(path)
    if not (stat and stat.type == "file" or is_new and not stat) then
      error(("there is no file %s"):format(path), 0)
    end
    buf = vim.fn.bufadd(path)
    vim.bo[buf].buflisted = true
  end
  if vim.api.nvim_buf_is_loaded(buf) then
    vim.cmd(("silent! checktime %d"):format(buf)) -- what changed on disk is read, unless there are unsaved changes
    return buf
  end
  -- Where another editor has the file open, it is read-only here rather than a question to the user.
  local id = vim.api.nvim_create_autocmd("SwapExists", { command = "let v:swapchoice = 'o'" })
  local sound, problem = pcall(vim.fn.bufload, buf)
  vim.api.nvim_del_autocmd(id)
  return sound and buf or error(problem, 0)
end

local function text_of(buf)
  return table.concat(vim.api.nvim_buf_get_lines(buf, 0, -1, false), "\n")
end

--- The text that an edit of a file would begin with, without opening the file.
local function text_at(path, is_new)
  local buf = buffer_of(path)
  if buf and vim.api.nvim_buf_is_loaded(buf) and vim.bo[buf].modified then
    return text_of(buf)
  elseif is_new and not vim.uv.fs_stat(path) then
    return ""
  end
  local lines = vim.fn.readfile(path)
  for index, line in ipairs(lines) do
    lines[index] = line:gsub("\r$", "")
  end
  return table.concat(lines, "\n")
end

--- The text after an edit. Raises an error that says why it does not fit.
local function edited(text, arguments)
  local old, new = arguments.old_text, arguments.new_text
  if type(old) ~= "string" or type(new) ~= "string" then
    error("old_text and new_text must be texts", 0)
  elseif old == "" then
    return text == "" and new or error("old_text is empty, which makes a new file; this one has a text already", 0)
  end
  local shown = vim.fn.strcharpart(old, 0, 80)
  local first, last = text:find(old, 1, true)
  if not first then
    error(("old_text is not in the buffer as it is now: %q"):format(shown), 0)
  elseif arguments.replace_all == true then
    return table.concat(vim.split(text, old, { plain = true }), new)
  elseif text:find(old, first + 1, true) then
    error(("old_text is in the buffer more than once: %q"):format(shown), 0)
  end
  return text:sub(1, first - 1) .. new .. text:sub(last + 1)
end

--- Changes the buffer's lines where they differ, as one step of undo.
local function set_text(buf, before, after)
  local old, new = vim.split(before, "\n", { plain = true }), vim.split(after, "\n", { plain = true })
  local hunks = vim.diff(before .. "\n", after .. "\n", { result_type = "indices" })
  for index = #hunks, 1, -1 do -- from the end, so that the lines before stay where they are
    local start, count, new_start, new_count = unpack(hunks[index])
    local at = count == 0 and start or start - 1
    vim.api.nvim_buf_set_lines(buf, at, at + count, true, vim.list_slice(new, new_start, new_start + new_count - 1))
  end
  return #old, #new
end

local function apply_edit(arguments, agent_id)
  local path = full_path(arguments.path, agent_id)
  local is_new = arguments.old_text == ""
  local buf = loaded_buffer(path, is_new)
  if not vim.bo[buf].modifiable or vim.bo[buf].readonly then
    error(path .. " is read-only in the editor", 0)
  end
  local unsaved = vim.bo[buf].modified
  local before = text_of(buf)
  local after = edited(before, arguments)
  set_text(buf, before, is_new and vim.endswith(after, "\n") and after:sub(1, -2) or after)
  if unsaved then
    return ("Edited %s in the editor. It had unsaved changes, so it was not written to disk."):format(path)
  end
  local saved, problem = pcall(vim.api.nvim_buf_call, buf, function()
    vim.cmd(is_new and "silent lockmarks write ++p" or "silent lockmarks update")
  end)
  if not saved then
    return ("Edited %s in the editor, but it could not be written to disk: %s"):format(path, problem)
  end
  return ("Edited %s and saved it."):format(path)
end

local function open_buffers()
  local lines = {}
  for _, buf in ipairs(vim.api.nvim_list_bufs()) do
    local name = vim.api.nvim_buf_get_name(buf)
    if vim.bo[buf].buflisted and vim.bo[buf].buftype == "" and name ~= "" then
      local notes = { vim.bo[buf].filetype, ("%d lines"):format(vim.api.nvim_buf_line_count(buf)) }
      notes[#notes + 1] = vim.bo[buf].modified and "unsaved changes" or nil
      notes[#notes + 1] = buf == context.buffer() and "current" or nil
      lines[#lines + 1] = ("%s (%s)"):format(name, table.concat(notes, ", "))
    end
  end
  return #lines > 0 and table.concat(lines, "\n") or "No file is open."
end

local function read_buffer(arguments, agent_id)
  local path = full_path(arguments.path, agent_id)
  local buf = buffer_of(path)
  if not buf or not vim.bo[buf].buflisted or not vim.api.nvim_buf_is_loaded(buf) then
    error(path .. " is not open in the editor", 0)
  end
  local first = (arguments.line or 1) - 1
  local last = arguments.lines and first + arguments.lines or -1
  return table.concat(vim.api.nvim_buf_get_lines(buf, first, last, false), "\n")
end

local function diagnostics(arguments, agent_id)
  local buf
  if arguments.path then
    local path = full_path(arguments.path, agent_id)
    buf = buffer_of(path)
    if not buf then
      error(path .. " is not open in the editor", 0)
    end
  end
  local lines = context.diagnostics(buf)
  return #lines > 0 and table.concat(lines, "\n") or "No diagnostics."
end

local function selection()
  local buf = context.buffer()
  local selected = buf and context.selected(buf)
  if not buf or not selected then
    return "Nothing is selected."
  end
  local name = vim.api.nvim_buf_get_name(buf)
  return ("%s, lines %d to %d:\n%s"):format(name, selected.first, selected.last, selected.text)
end

local function open_location(arguments, agent_id)
  local path = full_path(arguments.path, agent_id)
  local buf = loaded_buffer(path)
  local window = context.window()
  if not window or vim.wo[window].winfixbuf then
    window = vim.api.nvim_open_win(buf, false, { split = "left", win = -1 })
  else
    vim.api.nvim_win_set_buf(window, buf)
  end
  local line = math.max(1, math.min(arguments.line or 1, vim.api.nvim_buf_line_count(buf)))
  vim.api.nvim_win_set_cursor(window, { line, math.max(0, (arguments.column or 1) - 1) })
  return ("Opened %s at line %d."):format(path, line)
end

local PATH = { type = "string", description = "Absolute, or from the agent's working directory." }

local function number(description)
  return { type = "integer", minimum = 1, description = description }
end

local function schema(properties, required)
  return {
    type = "object",
    properties = properties or vim.empty_dict(),
    required = required,
    additionalProperties = false,
  }
end

-- The names and arguments are the same in all editors, and those of the edit are the daemon's own `edit`'s.
local TOOLS = {
  editor_open_buffers = {
    "Lists the files that are open in the user's editor, with unsaved ones marked.",
    schema(),
    open_buffers,
  },
  editor_read_buffer = {
    "Reads a file as it is in the user's editor, unsaved changes included.",
    schema({ path = PATH, line = number("The first line."), lines = number("How many lines.") }, { "path" }),
    read_buffer,
  },
  editor_diagnostics = {
    "Tells the errors and warnings that the user's editor shows, of one file or of all open ones.",
    schema({ path = PATH }),
    diagnostics,
  },
  editor_selection = {
    "Tells what the user has selected in their editor.",
    schema(),
    selection,
  },
  editor_open_location = {
    "Shows the user a place in a file, in their editor.",
    schema({ path = PATH, line = number(), column = number() }, { "path" }),
    open_location,
  },
  editor_apply_edit = {
    "Replaces old_text by new_text in a file, in the user's editor, where it can be undone. old_text must stand there "
      .. "exactly once, unless replace_all is true; an empty old_text makes a new file. The file is saved, unless the "
      .. "user has unsaved changes in it.",
    schema({
      path = PATH,
      old_text = { type = "string", description = "Exactly as in the file, with enough around it to be unique." },
      new_text = { type = "string" },
      replace_all = { type = "boolean", description = "Replace every place where it stands." },
    }, { "path", "old_text", "new_text" }),
    apply_edit,
  },
}

--- The diff that an approval of `editor_apply_edit` is about; nil for other calls. Raises an error when it cannot be
--- made.
---@param approval table
---@return string?
function M.diff(approval)
  if approval.toolName ~= "editor_apply_edit" then
    return nil
  end
  local path = full_path(approval.args.path, approval.agentId)
  local before = text_at(path, approval.args.old_text == "")
  local hunks = vim.diff(before .. "\n", edited(before, approval.args) .. "\n", { ctxlen = 3 })
  return ("--- %s\n+++ %s\n%s"):format(path, path, hunks)
end

local function offered()
  local tools = {}
  for name, tool in vim.spairs(TOOLS) do
    local policy = config.get().tools.approval[name]
    if policy then
      tools[#tools + 1] = { name = name, description = tool[1], inputSchema = tool[2], approval = policy }
    end
  end
  return tools
end

--- Why the tools are not offered to an agent, by agent; shown by `:checkhealth`.
---@type table<string, string>
M.refused = {}

--- The agents to which the tools are offered.
---@type table<string, boolean>
M.offered_to = {}

--- Offers the tools to an agent, then calls `go_on`. When another editor has done so already, that one keeps them.
---
--- Before every prompt, since a second editor of the same directory takes them away when it is left.
---@param agent_id string
---@param go_on? fun()
function M.offer(agent_id, go_on)
  go_on = go_on or function() end
  if not config.get().tools.enabled then
    return go_on()
  end
  local params = { agentId = agent_id, tools = offered() }
  client.request("tool/register", params, function(err)
    M.refused[agent_id] = err and err.message or nil
    M.offered_to[agent_id] = not err or nil
    go_on()
  end, { once = true })
end

--- Runs a tool; the answer as `tool/execute` wants it.
---@param name string
---@param arguments table
---@param agent_id string
---@return {content: string, isError?: boolean}
function M.execute(name, arguments, agent_id)
  local tool = TOOLS[name]
  if not tool then
    return { content = ("This editor has no tool %s."):format(name), isError = true }
  end
  local given = {}
  for key, value in pairs(arguments) do
    given[key] = value ~= vim.NIL and value or nil
  end
  local sound, result = pcall(tool[3], given, agent_id)
  return { content = tostring(result), isError = not sound or nil }
end

client.on("request", function(params, respond)
  respond(M.execute(params.name, params.arguments, params.agentId))
end, "tool/execute")

chats.prepare = M.offer

chats.on_attach(function(chat)
  M.offer(chat.agent_id)
end)

vim.api.nvim_create_autocmd("VimLeavePre", {
  group = vim.api.nvim_create_augroup("sojourn_tools", { clear = true }),
  callback = function()
    if client.state == "ready" and next(chats.open_chats) and config.get().tools.enabled then
      client.request("tool/unregister", { names = vim.tbl_keys(TOOLS) }, nil, { once = true })
    end
    client.disconnect()
  end,
})

return M
