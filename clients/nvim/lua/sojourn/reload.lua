--- Buffers follow their files when agents change those: soon after a tool has ended. Unsaved changes are left alone.
local client = require("sojourn.client")

local WAIT_MS = 100

local M = {}

local waiting = false

--- Reads what changed on disk into every buffer without unsaved changes.
function M.now()
  waiting = false
  for _, buf in ipairs(vim.api.nvim_list_bufs()) do
    local is_file = vim.bo[buf].buftype == "" and vim.api.nvim_buf_get_name(buf) ~= ""
    if is_file and vim.api.nvim_buf_is_loaded(buf) and not vim.bo[buf].modified then
      vim.cmd(("silent! checktime %d"):format(buf))
    end
  end
end

client.on("notification", function(params)
  local event = params.event
  while event.type == "nested" do
    event = event.event
  end
  if event.type == "toolExecEnd" and not params.replayed and not waiting then
    waiting = true
    vim.defer_fn(M.now, WAIT_MS)
  end
end, "agent/event")

return M
