--- Puts blocks into a buffer, only where they changed; windows whose cursor is at the end follow.
local render = require("sojourn.render")

--- A long story is drawn in slices of this length, so that keys are heard in between.
local DRAW_FOR_NS = 20 * 1000000

local M = {}

local namespace = vim.api.nvim_create_namespace("sojourn")

local function edit(buf, change)
  vim.bo[buf].modifiable = true
  change()
  vim.bo[buf].modifiable = false
end

--- The windows of the buffer whose cursor stands at its end.
local function following(buf)
  local last = vim.api.nvim_buf_line_count(buf)
  return vim.tbl_filter(function(window)
    return vim.api.nvim_win_get_cursor(window)[1] >= last
  end, vim.fn.win_findbuf(buf))
end

local function same_lines_at_the_start(buf, row, count, lines)
  local drawn = vim.api.nvim_buf_get_lines(buf, row, row + count, false)
  local same = 0
  while same < #drawn and same < #lines and drawn[same + 1] == lines[same + 1] do
    same = same + 1
  end
  return same
end

local function draw_block(buf, block, row, name)
  local count = block.lines or 0
  local lines, groups = render.block(block, name)
  local same = same_lines_at_the_start(buf, row, count, lines)
  vim.api.nvim_buf_clear_namespace(buf, namespace, row, row + count)
  vim.api.nvim_buf_set_lines(buf, row + same, row + count, false, vim.list_slice(lines, same + 1))
  for index, group in pairs(groups) do
    local length = #lines[index]
    if length > 0 then
      local options = { end_col = length, hl_group = group, priority = 150 }
      vim.api.nvim_buf_set_extmark(buf, namespace, row + index - 1, 0, options)
    end
  end
  block.lines, block.dirty = #lines, false
end

--- Empties a buffer.
---@param buf integer
function M.clear(buf)
  edit(buf, function()
    vim.api.nvim_buf_set_lines(buf, 0, -1, false, {})
  end)
end

--- Draws the dirty ones of the blocks, from the first on; false when time was up before the last.
---@param buf integer
---@param blocks sojourn.Block[]
---@param name string how the agent is called
---@return boolean
function M.blocks(buf, blocks, name)
  local windows, whole = following(buf), true
  edit(buf, function()
    local row, stop = 0, vim.uv.hrtime() + DRAW_FOR_NS
    for _, block in ipairs(blocks) do
      if block.dirty and vim.uv.hrtime() > stop then
        whole = false
        break
      elseif block.dirty then
        draw_block(buf, block, row, name)
      end
      row = row + block.lines
    end
  end)
  local last = vim.api.nvim_buf_line_count(buf)
  for _, window in ipairs(windows) do
    vim.api.nvim_win_set_cursor(window, { last, 0 })
  end
  return whole
end

return M
