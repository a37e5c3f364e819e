--- Where a chat is seen and typed into: its windows, its keys.
local chats = require("sojourn.chat")
local config = require("sojourn.config")
local context = require("sojourn.context")
local render = require("sojourn.render")
local ui = require("sojourn.ui")

local M = {}

local HELP = {
  "In the chat:            In the input:",
  "  <CR>  decide/resolve    <CR>   send (normal mode)",
  "  i a o type a prompt     <C-s>  send (any mode)",
  "  ]] [[ next, previous    @buffer @selection @diagnostics",
  "  gs    stop the run      @file:PATH  go along with it;",
  "  gr    resume            <C-x><C-o> completes them",
  "  q     close             :help sojourn",
}

local function share(size, of)
  return size < 1 and math.floor(of * size) or size
end

local function float_geometry()
  local float = config.get().float
  local width, height = share(float.width, vim.o.columns), share(float.height, vim.o.lines)
  local row, col = math.floor((vim.o.lines - height) / 2) - 1, math.floor((vim.o.columns - width) / 2)
  return { relative = "editor", width = width, height = height, row = math.max(row, 0), col = col, style = "minimal" }
end

local function open_float(buf)
  local geometry = float_geometry()
  geometry.height = geometry.height - config.get().input_height - 2
  geometry.border = config.get().float.border
  return vim.api.nvim_open_win(buf, true, geometry)
end

local function open_split(buf, layout)
  local size = config.get().size
  if layout == "tab" then
    vim.cmd.tabnew()
    vim.bo[vim.api.nvim_get_current_buf()].bufhidden = "wipe"
    vim.api.nvim_win_set_buf(0, buf)
  else
    vim.api.nvim_open_win(buf, true, {
      split = layout == "split" and "below" or "right",
      win = -1,
      width = layout == "vsplit" and share(size, vim.o.columns) or nil,
      height = layout == "split" and share(size, vim.o.lines) or nil,
    })
  end
  return vim.api.nvim_get_current_win()
end

local function dress(window)
  local options = {
    wrap = true,
    linebreak = true,
    breakindent = true,
    breakindentopt = "shift:2",
    number = false,
    relativenumber = false,
    signcolumn = "no",
    spell = false,
    list = false,
    foldmethod = "expr",
    foldexpr = render.FOLD_EXPR,
    foldtext = "v:lua.require'sojourn.render'.fold_text()",
    foldlevel = 0,
    foldminlines = 0,
    foldenable = true,
    fillchars = "fold: ,eob: ",
    winbar = "%{%v:lua.require'sojourn.chat'.winbar()%}",
  }
  for name, value in pairs(options) do
    vim.api.nvim_set_option_value(name, value, { win = window, scope = "local" })
  end
end

local function input_buffer(chat)
  if chat.input and vim.api.nvim_buf_is_valid(chat.input) then
    return chat.input
  end
  local buf = vim.api.nvim_create_buf(false, true)
  vim.api.nvim_buf_set_name(buf, ("sojourn://%s/input"):format(chat.agent_id))
  vim.b[buf].sojourn_agent = chat.agent_id
  vim.bo[buf].filetype = "sojourn-input"
  vim.bo[buf].omnifunc = "v:lua.require'sojourn.window'.omnifunc"
  pcall(vim.treesitter.start, buf)
  chat.input = buf
  M.input_keys(chat)
  return buf
end

local function open_input(chat, window)
  local buf = input_buffer(chat)
  local height = config.get().input_height
  local layout = vim.api.nvim_win_get_config(window)
  local input
  if layout.relative ~= "" then
    layout.row = layout.row + layout.height + 2
    layout.height = height
    layout.title = " prompt "
    input = vim.api.nvim_open_win(buf, false, layout)
  else
    input = vim.api.nvim_open_win(buf, false, { split = "below", win = window, height = height })
    vim.wo[input].winfixheight = true
    vim.w[input].sojourn_input = true
  end
  for name, value in pairs({ wrap = true, linebreak = true, number = false, relativenumber = false }) do
    vim.api.nvim_set_option_value(name, value, { win = input, scope = "local" })
  end
  vim.api.nvim_set_option_value(
    "winbar",
    "%{%v:lua.require'sojourn.window'.input_bar()%}",
    { win = input, scope = "local" }
  )
  vim.api.nvim_create_autocmd("WinClosed", {
    pattern = tostring(window),
    once = true,
    callback = function()
      vim.schedule(function()
        if vim.api.nvim_win_is_valid(input) and #vim.api.nvim_list_wins() > 1 then
          vim.api.nvim_win_close(input, true)
        end
      end)
    end,
  })
  return input
end

local function window_here(buf)
  for _, window in ipairs(vim.fn.win_findbuf(buf)) do
    if vim.api.nvim_win_get_tabpage(window) == vim.api.nvim_get_current_tabpage() then
      return window
    end
  end
end

--- Shows the chat with an agent and puts the cursor into its input.
---@param agent_id string
---@param unborn? boolean the agent is about to be made
---@return sojourn.Chat
function M.open(agent_id, unborn)
  context.remember()
  local chat = chats.get(agent_id, unborn)
  chats.last = agent_id
  local window = window_here(chat.buf)
  if not window then
    local layout = config.get().layout
    window = layout == "float" and open_float(chat.buf) or open_split(chat.buf, layout)
    dress(window)
    M.chat_keys(chat)
    vim.api.nvim_win_set_cursor(window, { vim.api.nvim_buf_line_count(chat.buf), 0 })
  end
  M.to_input(chat, window)
  return chat
end

--- Puts the cursor into the chat's input, opening it when it was closed.
function M.to_input(chat, window)
  window = window or window_here(chat.buf)
  local input = chat.input and window_here(chat.input) or window and open_input(chat, window)
  if input then
    vim.api.nvim_set_current_win(input)
  end
end

--- Closes the chat's windows of this tab page.
function M.close(chat)
  for _, buf in ipairs({ chat.input or -1, chat.buf }) do
    local window = window_here(buf)
    if window and #vim.api.nvim_tabpage_list_wins(0) > 1 then
      vim.api.nvim_win_close(window, true)
    elseif window then
      vim.cmd.enew()
    end
  end
end

--- What stands above the input: what goes along with the next prompt.
---@return string
function M.input_bar()
  local chat = chats.open_chats[vim.b.sojourn_agent]
  if not chat or #chat.context == 0 then
    return "%#SojournNote# prompt: <C-s> sends, g? helps"
  end
  local names = vim.tbl_map(function(part)
    return (vim.fn.fnamemodify(part.uri or "diagnostics", ":t"):gsub("%%", "%%%%"))
  end, chat.context)
  return "%#SojournNote# with " .. table.concat(names, ", ")
end

--- Sends what stands in the chat's input. When the daemon refuses it, it stands there again.
function M.send(chat)
  local lines = vim.api.nvim_buf_get_lines(chat.input, 0, -1, false)
  local text = vim.trim(table.concat(lines, "\n"))
  if text == "" and #chat.context == 0 then
    local approvals = require("sojourn.approvals")
    local open = approvals.of(chat.agent_id)
    return open and approvals.review(open)
  end
  local sound, content = pcall(context.content, text, chat.context)
  if not sound then
    return ui.fail(content)
  end
  local context_before = chat.context
  chat.context = {}
  vim.api.nvim_buf_set_lines(chat.input, 0, -1, false, {})
  chat:prompt(content, function(err)
    local empty = vim.api.nvim_buf_is_valid(chat.input) and vim.fn.getbufoneline(chat.input, 1) == ""
    if err and empty then
      chat.context = context_before
      vim.api.nvim_buf_set_lines(chat.input, 0, -1, false, lines)
    end
  end)
end

--- Completes `@…` words and, behind `@file:`, paths.
function M.omnifunc(find_start, base)
  if find_start == 1 then
    local before = vim.api.nvim_get_current_line():sub(1, vim.api.nvim_win_get_cursor(0)[2])
    local start = before:find("@%S*$")
    return start and start - 1 or -3
  end
  return M.words(base)
end

--- The `@…` words that begin with `base`.
---@param base string
---@return string[]
function M.words(base)
  local path = base:match("^@file:(.*)$")
  if path then
    return vim.tbl_map(function(file)
      return "@file:" .. file
    end, vim.fn.getcompletion(path, "file"))
  end
  return vim.tbl_filter(function(word)
    return vim.startswith(word, base)
  end, context.words)
end

local function map(buf, modes, keys, action, desc)
  vim.keymap.set(modes, keys, action, { buffer = buf, desc = "Sojourn: " .. desc, nowait = true })
end

--- The keys of a chat's buffer.
function M.chat_keys(chat)
  if not config.get().keys then
    return
  end
  local buf = chat.buf
  local function command(words)
    return ("<Cmd>Sojourn %s<CR>"):format(words)
  end
  map(buf, "n", "<CR>", function()
    require("sojourn.commands").act_on(chat, chat:block_at(vim.api.nvim_win_get_cursor(0)[1]))
  end, "decide or resolve the call under the cursor")
  for _, keys in ipairs({ "i", "a", "o" }) do
    map(buf, "n", keys, function()
      M.to_input(chat)
      vim.cmd.startinsert()
    end, "type a prompt")
  end
  map(buf, "n", "<C-w>j", function()
    M.to_input(chat)
  end, "to the input, also where it floats")
  map(buf, "n", "]]", function()
    vim.fn.search([[^\%(│ \)*## ]], "W")
  end, "next message")
  map(buf, "n", "[[", function()
    vim.fn.search([[^\%(│ \)*## ]], "bW")
  end, "previous message")
  map(buf, "n", "gs", command("stop"), "stop the run")
  map(buf, "n", "gr", command("resume"), "resume")
  map(buf, "n", "q", function()
    M.close(chat)
  end, "close the chat")
  map(buf, "n", "g?", M.show_help, "show the keys")
end

--- The keys of a chat's input.
function M.input_keys(chat)
  if not config.get().keys then
    return
  end
  local function send()
    vim.cmd.stopinsert() -- folds, and questions, come in normal mode only
    M.send(chat)
  end
  map(chat.input, "n", "<CR>", send, "send")
  map(chat.input, { "n", "i" }, "<C-s>", send, "send")
  map(chat.input, "n", "<C-w>k", function()
    vim.api.nvim_set_current_win(window_here(chat.buf) or 0)
  end, "to the chat, also where it floats")
  map(chat.input, "n", "g?", M.show_help, "show the keys")
end

--- Shows the keys.
function M.show_help()
  vim.notify(table.concat(HELP, "\n"))
end

local group = vim.api.nvim_create_augroup("sojourn_window", { clear = true })

vim.api.nvim_create_autocmd({ "BufEnter", "WinEnter" }, { group = group, callback = context.remember })

local function has_one_above(window)
  return vim.api.nvim_win_call(window, function()
    return vim.fn.winnr("k") ~= vim.fn.winnr()
  end)
end

-- Neovim gives the room of a closed window to the lowest of its neighbours, of fixed height or not.
vim.api.nvim_create_autocmd("WinClosed", {
  group = group,
  callback = function(event)
    for _, window in ipairs(vim.api.nvim_tabpage_list_wins(0)) do
      if vim.w[window].sojourn_input and window ~= tonumber(event.match) then
        local height = vim.api.nvim_win_get_height(window)
        vim.schedule(function()
          if vim.api.nvim_win_is_valid(window) and has_one_above(window) then
            vim.api.nvim_win_set_height(window, height)
          end
        end)
      end
    end
  end,
})

-- In insert mode Neovim makes no folds; setting the method again makes those of what came meanwhile.
vim.api.nvim_create_autocmd("InsertLeave", {
  group = group,
  callback = function()
    for _, chat in pairs(chats.open_chats) do
      for _, window in ipairs(vim.fn.win_findbuf(chat.buf)) do
        vim.api.nvim_set_option_value("foldmethod", "expr", { win = window, scope = "local" })
      end
    end
  end,
})

return M
