--- What a user may set, with its defaults: by `require("sojourn").setup{}`, or as `vim.g.sojourn` before first use.
local M = {}

---@class sojourn.Config
M.defaults = {
  --- How the daemon is reached: a command that carries the protocol over its stdin and stdout.
  cmd = { "sojourn", "connect" },
  --- Environment for that command, beside Neovim's own.
  env = {},
  --- The name under which the daemon knows this editor. Nil: one for each working directory.
  client_id = nil,
  --- Config of agents that `:Sojourn new` makes (as of `agent/create`).
  agent = { tools = { "*" } },
  --- The chat's window: "vsplit", "split", "tab" or "float".
  layout = "vsplit",
  --- Width of a vsplit and height of a split: a share of the editor below 1, else columns and lines.
  size = 0.45,
  --- Share of the editor that a float covers.
  float = { width = 0.8, height = 0.8, border = "rounded" },
  --- Lines of the input window.
  input_height = 4,
  --- Lines of a tool's output that are shown before the rest is folded.
  output_lines = 6,
  --- When what waits for you is shown by itself: "focus" (in a chat that has the cursor, in normal mode), "never".
  review = "focus",
  --- What a background agent tells you about.
  notify = { approval = true, paused = true, interrupted = true, done = true },
  --- Whether this editor offers its tools to the agents whose chats it opens, and what may run unasked.
  tools = {
    enabled = true,
    approval = {
      editor_open_buffers = "allow",
      editor_read_buffer = "allow",
      editor_diagnostics = "allow",
      editor_selection = "allow",
      editor_open_location = "allow",
      editor_apply_edit = "ask",
    },
  },
  --- Most bytes of a file or buffer that go along with a prompt.
  max_context_bytes = 1000000,
  --- Whether chats get their buffer-local keys (`g?` shows them).
  keys = true,
  icons = {
    called = "·",
    approval = "?",
    running = "…",
    done = "✓",
    failed = "✗",
    pending = "◷",
    denied = "⊘",
    waiting = "?",
    paused = "◷",
    interrupted = "!",
    idle = " ",
  },
}

local active

local function check(given, default, path)
  for key, value in pairs(given) do
    local name = path .. key
    local expected = default[key]
    if expected == nil and name ~= "client_id" then
      error(("sojourn: there is no option %q; see :help sojourn-config"):format(name), 0)
    end
    if expected ~= nil and type(value) ~= type(expected) then
      error(("sojourn: the option %q takes a %s, not a %s"):format(name, type(expected), type(value)), 0)
    end
    if type(expected) == "table" and not vim.tbl_contains({ "cmd", "env", "agent", "tools.approval" }, name) then
      check(value, expected, name .. ".")
    end
  end
end

--- Takes a user's options in. Raises an error that names an unknown option or a wrong type; then nothing changes.
---@param options? table
function M.set(options)
  options = options or {}
  check(options, M.defaults, "")
  local merged = vim.tbl_deep_extend("force", M.defaults, options)
  merged.agent = options.agent or merged.agent
  active = merged
end

--- The options in force.
---@return sojourn.Config
function M.get()
  if not active then
    M.set(vim.g.sojourn)
  end
  return active
end

return M
