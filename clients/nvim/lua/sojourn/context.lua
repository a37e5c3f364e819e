--- What goes along with a prompt: a selection, a buffer, a file, diagnostics, as parts that name where they are from.
local config = require("sojourn.config")

local M = {}

--- The last window and buffer that held a file, before the cursor went into a chat.
local origin = {}

local function is_file(buf)
  return vim.api.nvim_buf_is_valid(buf) and vim.bo[buf].buftype == "" and vim.api.nvim_buf_get_name(buf) ~= ""
end

--- Remembers the buffer that the cursor is in, when it holds a file.
function M.remember()
  local buf = vim.api.nvim_get_current_buf()
  if is_file(buf) then
    origin = { buf = buf, window = vim.api.nvim_get_current_win() }
  end
end

--- The buffer of a file that the user is, or was last, working in.
---@return integer?
function M.buffer()
  M.remember()
  return origin.buf and is_file(origin.buf) and origin.buf or nil
end

--- A window for showing files: the one that last held one, else none.
---@return integer?
function M.window()
  M.remember()
  return origin.window and vim.api.nvim_win_is_valid(origin.window) and origin.window or nil
end

local function resource(buf, text, lines)
  local limit = config.get().max_context_bytes
  local name = vim.api.nvim_buf_get_name(buf)
  if #text > limit then
    error(("%s has %d bytes; at most %d go along with a prompt (max_context_bytes)"):format(name, #text, limit), 0)
  end
  local uri = vim.uri_from_bufnr(buf)
  local mime = vim.bo[buf].filetype ~= "" and "text/x-" .. vim.bo[buf].filetype or "text/plain"
  return { type = "resource", uri = lines and uri .. "#" .. lines or uri, mimeType = mime, text = text }
end

local function lines_name(first, last)
  return first == last and "L" .. first or ("L%d-L%d"):format(first, last)
end

--- Lines of a buffer, as a part.
---@param buf integer
---@param first integer from 1
---@param last integer
function M.range(buf, first, last)
  local text = table.concat(vim.api.nvim_buf_get_lines(buf, first - 1, last, false), "\n")
  return resource(buf, text, lines_name(first, last))
end

--- Where the last visual selection of a buffer is and what it holds; nil when there is none.
---@param buf integer
---@return {first: integer, last: integer, text: string}?
function M.selected(buf)
  return vim.api.nvim_buf_call(buf, function()
    local from, to = vim.fn.getpos("'<"), vim.fn.getpos("'>")
    if from[2] == 0 or to[2] == 0 then
      return nil
    end
    local mode = vim.fn.visualmode()
    local text = vim.fn.getregion(from, to, { type = mode ~= "" and mode or "v" })
    return { first = from[2], last = to[2], text = table.concat(text, "\n") }
  end)
end

--- The last visual selection of a buffer, as a part. Raises an error when there is none.
function M.selection(buf)
  local selected = M.selected(buf)
  if not selected then
    error("nothing was selected in " .. vim.api.nvim_buf_get_name(buf), 0)
  end
  return resource(buf, selected.text, lines_name(selected.first, selected.last))
end

--- A whole buffer as it is now, unsaved changes included, as a part.
function M.whole(buf)
  return resource(buf, table.concat(vim.api.nvim_buf_get_lines(buf, 0, -1, false), "\n"))
end

--- A file, as a part; from its buffer when it is open. Raises an error when it cannot be read.
---@param path string
function M.file(path)
  local full = vim.fn.fnamemodify(vim.fn.expand(path), ":p")
  local open = vim.fn.bufnr("^" .. vim.fn.escape(full, [[\*?[{]]) .. "$")
  if open > 0 and vim.api.nvim_buf_is_loaded(open) then
    return M.whole(open)
  end
  local stat = vim.uv.fs_stat(full)
  if not stat or stat.type ~= "file" then
    error(("there is no file %q"):format(path), 0)
  elseif stat.size > config.get().max_context_bytes then
    error(
      ("%s has %d bytes; at most %d go along (max_context_bytes)"):format(
        path,
        stat.size,
        config.get().max_context_bytes
      ),
      0
    )
  end
  local file = assert(io.open(full, "rb"))
  local text = file:read("*a")
  file:close()
  local kind = vim.filetype.match({ filename = full })
  return {
    type = "resource",
    uri = vim.uri_from_fname(full),
    mimeType = kind and "text/x-" .. kind or "text/plain",
    text = text,
  }
end

local SEVERITIES = { "error", "warning", "info", "hint" }

--- Diagnostics as lines of text, `path:line:column: severity: message`.
---@param buf? integer nil: of all buffers
---@return string[]
function M.diagnostics(buf)
  local lines = {}
  for _, found in ipairs(vim.diagnostic.get(buf)) do
    local name = vim.fn.fnamemodify(vim.api.nvim_buf_get_name(found.bufnr), ":.")
    local source = found.source and (" [%s]"):format(found.source) or ""
    local severity = SEVERITIES[found.severity] or "info"
    local message = found.message:gsub("\n", " ")
    lines[#lines + 1] = ("%s:%d:%d: %s: %s%s"):format(name, found.lnum + 1, found.col + 1, severity, message, source)
  end
  return lines
end

local function diagnostics_part(buf)
  local lines = M.diagnostics(buf)
  return { type = "text", text = "Diagnostics:\n" .. (#lines > 0 and table.concat(lines, "\n") or "none") }
end

--- What may stand in a prompt, as completion shows it.
M.words = { "@buffer", "@selection", "@diagnostics", "@file:" }

local function part_for(word)
  local path = word:match("^@file:(.+)$")
  if path then
    return M.file(path)
  end
  local what = { ["@buffer"] = M.whole, ["@selection"] = M.selection, ["@diagnostics"] = diagnostics_part }
  if not what[word] then
    return nil
  end
  local buf = M.buffer()
  if not buf then
    error(word .. " needs a buffer with a file", 0)
  end
  return what[word](buf)
end

--- The content of a prompt: the text, then what it names with `@…`, then `more`. Raises an error that says what is
--- missing; then nothing should be sent.
---@param text string
---@param more? table[]
---@return string|table[]
function M.content(text, more)
  local parts = {}
  for word in (" " .. text):gmatch("%s(@%S+)") do
    parts[#parts + 1] = part_for(word)
  end
  vim.list_extend(parts, more or {})
  if #parts == 0 then
    return text
  end
  if text ~= "" then
    table.insert(parts, 1, { type = "text", text = text })
  end
  return parts
end

return M
