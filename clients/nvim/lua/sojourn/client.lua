--- The one connection of this editor: it comes up on first use, comes back after a loss, and loses no request.
---
--- A request that was not answered when the connection broke is sent again on the next one. What changes something
--- carries a `requestId`, so that it happens once, also when the daemon had taken it in before the loss.
local config = require("sojourn.config")
local rpc = require("sojourn.rpc")

local M = {}

local RETRY_MS = { 50, 200, 500, 1000, 2000 }

local MUTATING = {}
for _, method in ipairs({
  "server/shutdown",
  "agent/create",
  "agent/update",
  "agent/fork",
  "agent/delete",
  "agent/prompt",
  "agent/resume",
  "agent/compact",
  "agent/stop",
  "agent/replaceMessages",
  "inbox/push",
  "inbox/resolve",
  "inbox/reject",
  "inbox/remove",
  "approval/decide",
  "tool/register",
  "tool/unregister",
}) do
  MUTATING[method] = true
end

---@alias sojourn.State "off"|"starting"|"ready"
---@type sojourn.State
M.state = "off"
--- Why the connection is off, when it is so against one's will.
---@type string?
M.trouble = nil
--- What the daemon said of itself: version, instanceId, storeId.
M.server = {}

local connection, generation = nil, 0
local attempts, draining, leaving = 0, false, false
local next_id = 0
local requests = {} -- id → {method, params, callback, once, sent}
local asked = {} -- the daemon's own requests that are not answered yet
local listeners = { ready = {}, lost = {}, change = {}, notification = {}, request = {} }

local start

--- Calls `callback` upon something: `ready(first)`, `lost(why)`, `change` before a request that changes something is
--- sent, `notification` and `request` by method.
---@param what "ready"|"lost"|"change"|"notification"|"request"
---@param callback function
---@param method? string
function M.on(what, callback, method)
  if what == "request" then
    listeners.request[method] = callback
  elseif what == "notification" then
    listeners.notification[method] = listeners.notification[method] or {}
    table.insert(listeners.notification[method], callback)
  else
    table.insert(listeners[what], callback)
  end
end

local own_name

--- The name under which the daemon knows this editor: it stays when the working directory changes, since tools are
--- registered under it.
---@return string
function M.client_id()
  own_name = own_name or ("nvim-" .. vim.fn.sha256(vim.fn.getcwd(-1, -1)):sub(1, 8))
  return config.get().client_id or own_name
end

local function transmit(id, request)
  request.sent = true
  connection.send({ id = id, method = request.method, params = request.params or vim.empty_dict() })
end

local function in_order()
  local ids = vim.tbl_keys(requests)
  table.sort(ids)
  return ids
end

--- Sends a request; it waits while there is no connection. `callback(err, result)` comes on the main loop; `err` is
--- the daemon's `{code, message, data}`, or `{message}` when it cannot be reached.
---@param method string
---@param params? table
---@param callback? fun(err: table?, result: any)
---@param options? {once?: boolean} `once`: it belongs to this connection and is not sent again on another
function M.request(method, params, callback, options)
  next_id = next_id + 1
  local id = next_id
  params = params or vim.empty_dict()
  if MUTATING[method] and not params.requestId then
    params =
      vim.tbl_extend("force", params, { requestId = ("%d-%d-%d"):format(vim.uv.os_getpid(), vim.uv.hrtime(), id) })
  end
  requests[id] =
    { method = method, params = params, callback = callback or function() end, once = options and options.once }
  if M.state == "ready" then
    for _, listener in ipairs(MUTATING[method] and listeners.change or {}) do
      listener()
    end
    transmit(id, requests[id])
  elseif M.state == "off" then
    start()
  end
  return id
end

--- Sends a notification, when there is a connection.
function M.notify(method, params)
  if M.state == "ready" then
    connection.send({ method = method, params = params or vim.empty_dict() })
  end
end

local function fail_all(message, only_once)
  for _, id in ipairs(in_order()) do
    local request = requests[id]
    if request and (not only_once or request.once) then
      requests[id] = nil
      request.callback({ message = message })
    end
  end
end

local function answer(id, result, err)
  asked[id] = nil
  if connection then
    connection.send(err and { id = id, error = err } or { id = id, result = result })
  end
end

local function on_request(message)
  local handler = listeners.request[message.method]
  if not handler then
    return answer(message.id, nil, { code = -32601, message = "This editor does not know " .. message.method })
  end
  asked[message.id] = true
  local mine = generation
  local function respond(result, err)
    if asked[message.id] and mine == generation then
      answer(message.id, result, err)
    end
  end
  local sound, problem = pcall(handler, message.params, respond)
  if not sound then
    respond(nil, { code = -32603, message = tostring(problem) })
  end
end

local function on_message(message)
  if message.method and message.id ~= nil then
    on_request(message)
  elseif message.method == "$/cancelRequest" then
    if asked[message.params.id] then
      answer(message.params.id, nil, { code = -32800, message = "Cancelled" })
    end
  elseif message.method then
    for _, listener in ipairs(listeners.notification[message.method] or {}) do
      listener(message.params)
    end
  elseif requests[message.id] then
    local request = requests[message.id]
    requests[message.id] = nil
    request.callback(message.error, message.result)
  end
end

local function on_ready(result)
  local ours = vim.tbl_get(result, "capabilities", "experimental", "sojourn") or {}
  local before = M.server
  M.server = {
    version = vim.tbl_get(result, "serverInfo", "version"),
    instance_id = ours.instanceId,
    store_id = ours.storeId,
  }
  connection.send({ method = "initialized", params = vim.empty_dict() })
  M.state, M.trouble, attempts = "ready", nil, 0
  for _, listener in ipairs(listeners.ready) do
    listener({ first = before.store_id == nil, same_store = before.store_id == ours.storeId })
  end
  for _, id in ipairs(in_order()) do
    if not requests[id].sent then
      transmit(id, requests[id])
    end
  end
end

local function hello()
  next_id = next_id + 1
  local id = next_id
  requests[id] = {
    method = "initialize",
    once = true,
    sent = true,
    callback = function(err, result)
      if err then
        M.trouble = err.message
        return connection and connection.close()
      end
      on_ready(result)
    end,
  }
  connection.send({
    id = id,
    method = "initialize",
    params = {
      processId = vim.uv.os_getpid(),
      clientInfo = { name = "Neovim" },
      rootUri = vim.uri_from_fname(vim.fn.getcwd(-1, -1)),
      capabilities = {
        workspace = { applyEdit = true, workspaceEdit = { documentChanges = true } },
        experimental = {
          sojourn = {
            protocolVersions = { 1 },
            clientId = M.client_id(),
            approvals = { request = vim.empty_dict() },
            tools = { execute = vim.empty_dict() },
            deltas = { maxLatencyMs = 40 },
          },
        },
      },
    },
  })
end

local function give_up(why)
  M.state, M.trouble = "off", why
  fail_all(why)
  for _, listener in ipairs(listeners.lost) do
    listener(why, true)
  end
end

local function retry(why)
  attempts = attempts + 1
  if attempts > #RETRY_MS then
    attempts = 0
    return give_up(why)
  end
  M.state = "starting"
  local mine = generation
  vim.defer_fn(function()
    if mine == generation and M.state == "starting" then
      start()
    end
  end, RETRY_MS[attempts])
end

local function on_exit(code, stderr)
  connection, asked = nil, {}
  local was_ready = M.state == "ready"
  M.state = "off"
  local why = M.trouble or (stderr ~= "" and stderr) or ("the connection to the daemon ended (%d)"):format(code)
  fail_all(why, true)
  for _, request in pairs(requests) do
    request.sent = false
  end
  if leaving then
    return
  end
  if draining then
    draining = false
    return give_up("the Sojourn daemon was shut down")
  end
  retry(why)
  if was_ready and M.state == "starting" then
    for _, listener in ipairs(listeners.lost) do
      listener(why, false)
    end
  end
end

start = function()
  generation = generation + 1
  local mine = generation
  M.state, M.trouble, leaving = "starting", nil, false
  local options = config.get()
  local started, result = pcall(rpc.start, options.cmd, options.env, function(message)
    if mine == generation then
      on_message(message)
    end
  end, function(code, stderr)
    if mine == generation then
      on_exit(code, stderr)
    end
  end)
  if not started then
    local why = ("%q cannot be started: %s"):format(table.concat(options.cmd, " "), tostring(result))
    M.state, M.trouble = "starting", why
    return vim.schedule(function()
      give_up(why)
    end)
  end
  connection = result
  hello()
end

--- Connects, when there is no connection yet; then `callback(err)`.
---@param callback? fun(err: table?)
function M.connect(callback)
  M.request("server/status", nil, function(err, result)
    if callback then
      callback(err, result)
    end
  end)
end

--- Ends the connection. Agents and their runs go on; the next request connects again.
function M.disconnect()
  leaving, attempts = true, 0
  generation = generation + 1
  if connection then
    connection.send({ method = "exit" })
    connection.close()
  end
  connection, M.state, asked = nil, "off", {}
  fail_all("disconnected")
end

M.on("notification", function(params)
  draining = params.state == "draining"
end, "server/state")

return M
