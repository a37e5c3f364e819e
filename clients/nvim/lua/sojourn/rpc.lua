--- JSON-RPC messages over a child process, framed as in the Language Server Protocol. It knows no method.
---
--- Rule: everything is read in libuv's callbacks and handed over on the main loop, in order.
local json = require("sojourn.json")

local M = {}

---@class sojourn.Framing
local Framing = {}
Framing.__index = Framing

function M.framing()
  return setmetatable({ chunks = {}, size = 0, need = nil }, Framing)
end

--- Takes bytes in; answers the bodies that are complete.
---@param data string
---@return string[]
function Framing:feed(data)
  self.chunks[#self.chunks + 1] = data
  self.size = self.size + #data
  local bodies = {}
  -- Chunks are joined only when a whole body is there: a large one arrives in thousands of them.
  while self.size > 0 and (not self.need or self.size >= self.need) do
    local all = table.concat(self.chunks)
    self.chunks = { all }
    if not self.need then
      local head, stop = all:find("\r\n\r\n", 1, true)
      if not head then
        break
      end
      self.need = tonumber(all:sub(1, head):lower():match("content%-length:%s*(%d+)"))
      if not self.need then
        error("a frame without Content-Length")
      end
      all = all:sub(stop + 1)
    end
    if #all >= self.need then
      bodies[#bodies + 1] = all:sub(1, self.need)
      all = all:sub(self.need + 1)
      self.need = nil
    end
    self.chunks, self.size = { all }, #all
  end
  return bodies
end

---@class sojourn.Connection
---@field send fun(message: table)
---@field close fun()

--- Starts `cmd`. `on_message` gets every message, `on_exit` the exit code and what was said on stderr, both on the
--- main loop. Raises an error when the command cannot be started.
---@param cmd string[]
---@param env table<string, string>
---@param on_message fun(message: table)
---@param on_exit fun(code: integer, stderr: string)
---@return sojourn.Connection
function M.start(cmd, env, on_message, on_exit)
  local framing, queue, stderr, ended = M.framing(), {}, {}, false
  local scheduled = false

  local function drain()
    scheduled = false
    local messages = queue
    queue = {}
    for _, message in ipairs(messages) do
      on_message(message)
    end
  end

  local process
  local function read(_, data)
    if not data or ended then
      return
    end
    local sound, problem = pcall(function()
      for _, body in ipairs(framing:feed(data)) do
        queue[#queue + 1] = json.decode(body)
      end
    end)
    if not sound then
      stderr[#stderr + 1] = "What the daemon said could not be read: " .. tostring(problem)
      process:kill("sigterm")
    end
    if #queue > 0 and not scheduled then
      scheduled = true
      vim.schedule(drain)
    end
  end

  process = vim.system(cmd, {
    stdin = true,
    stdout = read,
    stderr = function(_, data)
      stderr[#stderr + 1] = data
    end,
    env = env,
  }, function(done)
    vim.schedule(function()
      drain()
      ended = true
      on_exit(done.signal ~= 0 and 128 + done.signal or done.code, vim.trim(table.concat(stderr)))
    end)
  end)

  local connection = {}

  function connection.send(message)
    if not ended and not process:is_closing() then
      message.jsonrpc = "2.0"
      local body = json.encode(message)
      process:write(("Content-Length: %d\r\n\r\n%s"):format(#body, body))
    end
  end

  --- Ends stdin, upon which the bridge ends by itself after what it still carries.
  function connection.close()
    if not process:is_closing() then
      pcall(process.write, process, nil)
    end
  end

  return connection
end

return M
