--- Files with unsaved changes, as they are here: the daemon's own file tools read them so, and change them by asking.
---
--- Rule: only unsaved files are told (the others are on disk), and a change is made only of the text that was told.
--- A change leaves saving to the user, and one undo takes it back.
local client = require("sojourn.client")
local config = require("sojourn.config")

local WAIT_MS = 150
local ENDINGS = { unix = "\n", dos = "\r\n", mac = "\r" }

local M = {}

---@type table<integer, {uri: string, version: integer}> what the daemon knows, by buffer
local told = {}
local waiting = {}

local function text_of(buf)
  local ending = ENDINGS[vim.bo[buf].fileformat]
  local lines = vim.api.nvim_buf_get_lines(buf, 0, -1, false)
  if #lines == 1 and lines[1] == "" then
    return ""
  end
  local last = (vim.bo[buf].endofline or vim.bo[buf].fixendofline) and ending or ""
  return table.concat(lines, ending) .. last
end

--- The URI of the file that a buffer holds; nil when it holds none.
local function uri_of(buf)
  local name = vim.api.nvim_buf_get_name(buf)
  local is_file = vim.bo[buf].buftype == "" and vim.startswith(name, "/") and not vim.bo[buf].binary
  return is_file and vim.uri_from_fname(name) or nil
end

local function forget(buf)
  if told[buf] then
    client.notify("textDocument/didClose", { textDocument = { uri = told[buf].uri } })
    told[buf] = nil
  end
end

--- Tells the daemon how a buffer is now, when it does not know that.
---@param buf integer
function M.sync(buf)
  waiting[buf] = nil
  if client.state ~= "ready" then
    return
  end
  local unsaved = config.get().tools.enabled and vim.api.nvim_buf_is_loaded(buf) and vim.bo[buf].modified
  local uri = unsaved and uri_of(buf)
  if not uri or (told[buf] and told[buf].uri ~= uri) then
    forget(buf)
  end
  if not uri then
    return
  end
  local version = vim.api.nvim_buf_get_changedtick(buf)
  if not told[buf] then
    local document = { uri = uri, languageId = vim.bo[buf].filetype, version = version, text = text_of(buf) }
    client.notify("textDocument/didOpen", { textDocument = document })
  elseif told[buf].version ~= version then
    client.notify("textDocument/didChange", {
      textDocument = { uri = uri, version = version },
      contentChanges = { { text = text_of(buf) } },
    })
  end
  told[buf] = { uri = uri, version = version }
end

--- The same for all buffers.
function M.sync_all()
  for _, buf in ipairs(vim.api.nvim_list_bufs()) do
    M.sync(buf)
  end
end

local function sync_soon(event)
  if not waiting[event.buf] then
    waiting[event.buf] = true
    vim.defer_fn(function()
      if vim.api.nvim_buf_is_valid(event.buf) then
        M.sync(event.buf)
      end
    end, WAIT_MS)
  end
end

local function place(edit)
  for buf, known in pairs(told) do
    if edit.textDocument and known.uri == edit.textDocument.uri then
      return buf, known
    end
  end
end

local function apply(params)
  local edit = (params.edit.documentChanges or {})[1] or {}
  local buf, known = place(edit)
  if not buf or known.version ~= edit.textDocument.version then
    return "it is not as it was told"
  elseif vim.api.nvim_buf_get_changedtick(buf) ~= known.version then
    return "the user has changed it meanwhile"
  elseif not vim.bo[buf].modifiable or vim.bo[buf].readonly then
    return "it is read-only in the editor"
  end
  vim.lsp.util.apply_text_edits(edit.edits, buf, "utf-16")
  M.sync(buf)
end

--- Answers a `workspace/applyEdit`.
---@param params table
---@return {applied: boolean, failureReason?: string}
function M.apply(params)
  local why = apply(params)
  return { applied = why == nil, failureReason = why }
end

client.on("request", function(params, respond)
  respond(M.apply(params))
end, "workspace/applyEdit")

client.on("ready", function()
  told = {}
  M.sync_all()
end)

client.on("change", M.sync_all)

-- A change by a command or another plugin, in a buffer that is not the current one, is seen at the next of these.
client.on("notification", function(params)
  if params.event.type == "agentStart" or params.event.type == "turnStart" then
    M.sync_all()
  end
end, "agent/event")

local group = vim.api.nvim_create_augroup("sojourn_documents", { clear = true })

vim.api.nvim_create_autocmd(
  { "BufModifiedSet", "TextChanged", "TextChangedI", "TextChangedP", "BufWritePost", "BufReadPost", "BufFilePost" },
  { group = group, callback = sync_soon }
)

vim.api.nvim_create_autocmd({ "BufUnload", "BufWipeout" }, {
  group = group,
  callback = function(event)
    forget(event.buf)
  end,
})

return M
