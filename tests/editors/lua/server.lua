-- Runs inside the Neovim under test: takes Lua from a socket, a JSON value a line, and plays the user who answers.
sojourn_test = { said = {}, answers = {}, asked = {} }

local function run(request)
  local code = assert(loadstring(request.code))
  local sound, result = pcall(code, request.given)
  return vim.json.encode({ sound = sound, result = sound and result or not sound and tostring(result) or nil }) .. "\n"
end

local server = assert(vim.uv.new_pipe())
assert(server:bind(vim.env.TEST_SOCKET))
server:listen(8, function()
  local peer = vim.uv.new_pipe()
  server:accept(peer)
  local buffered = ""
  peer:read_start(function(_, data)
    buffered = buffered .. (data or "")
    local line, rest = buffered:match("^(.-)\n(.*)$")
    if line then
      buffered = rest
      vim.schedule(function()
        peer:write(run(vim.json.decode(line, { luanil = { object = true, array = true } })))
      end)
    end
  end)
end)

vim.notify = function(message)
  table.insert(sojourn_test.said, message)
end

vim.ui.select = function(items, options, on_choice)
  local labels = vim.tbl_map(options.format_item or tostring, items)
  table.insert(sojourn_test.asked, { prompt = options.prompt, labels = labels, screen = sojourn_test_screen() })
  local wanted = table.remove(sojourn_test.answers, 1)
  for index, label in ipairs(labels) do
    if wanted and vim.startswith(label, wanted) then
      return on_choice(items[index], index)
    end
  end
  on_choice(nil, nil)
end

vim.ui.input = function(options, on_confirm)
  table.insert(sojourn_test.asked, { prompt = options.prompt })
  on_confirm(table.remove(sojourn_test.answers, 1))
end

function sojourn_test_chat(agent_id)
  local buf = vim.fn.bufnr("sojourn://" .. agent_id .. "$")
  return buf > 0 and table.concat(vim.api.nvim_buf_get_lines(buf, 0, -1, false), "\n") or ""
end

function sojourn_test_screen()
  local out = {}
  for _, window in ipairs(vim.api.nvim_list_wins()) do
    local buf = vim.api.nvim_win_get_buf(window)
    table.insert(out, "== " .. vim.api.nvim_buf_get_name(buf))
    vim.list_extend(out, vim.api.nvim_buf_get_lines(buf, 0, -1, false))
  end
  table.insert(out, "== said")
  vim.list_extend(out, sojourn_test.said)
  vim.list_extend(out, { "== messages", vim.fn.execute("messages") })
  return table.concat(out, "\n")
end
