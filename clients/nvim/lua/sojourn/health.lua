--- `:checkhealth sojourn`: looks at everything a chat needs and says what to do about what is missing.
local M = {}

local function check_editor()
  vim.health.start("Neovim")
  if vim.fn.has("nvim-0.11") == 1 then
    vim.health.ok("Neovim " .. tostring(vim.version()))
  else
    vim.health.error("Neovim 0.11 or newer is needed, this is " .. tostring(vim.version()))
  end
  if pcall(vim.treesitter.language.add, "markdown") and vim.treesitter.language.add("markdown") then
    vim.health.ok("the markdown parser is there")
  else
    vim.health.warn("there is no tree-sitter parser for markdown; chats are drawn without markdown highlighting")
  end
end

local function check_command(options)
  vim.health.start("The sojourn command")
  local command = options.cmd[1]
  if vim.fn.executable(command) == 1 then
    vim.health.ok(("%s is %s"):format(command, vim.fn.exepath(command)))
    return true
  end
  vim.health.error(("%q is not in the PATH"):format(command), {
    "Install it: pip install sojourn",
    'Or say where it is: require("sojourn").setup{ cmd = { "/path/to/sojourn", "connect" } }',
  })
  return false
end

local function check_daemon()
  vim.health.start("The daemon")
  local client = require("sojourn.client")
  local done, problem, status = false, nil, nil
  client.connect(function(err, result)
    done, problem, status = true, err, result
  end)
  vim.wait(10000, function()
    return done
  end, 20)
  if not done or problem then
    vim.health.error("The daemon cannot be reached: " .. (problem and problem.message or "no answer within 10 s"), {
      "See what `sojourn doctor` says.",
    })
    return
  end
  vim.health.ok(("Sojourn %s answers, %s, %d agents"):format(status.version, status.state, status.agents))
  vim.health.info(("This editor is the client %q"):format(client.client_id()))
  if status.state ~= "ready" then
    vim.health.warn("The daemon is " .. status.state, { "See what `sojourn doctor` says." })
  end
end

local function check_tools(options)
  vim.health.start("Editor tools")
  if not options.tools.enabled then
    return vim.health.info("switched off (tools.enabled)")
  end
  local refused = package.loaded["sojourn.tools"] and require("sojourn.tools").refused or {}
  for agent_id, why in vim.spairs(refused) do
    vim.health.warn(("%s does not get them: %s"):format(agent_id, why))
  end
  if next(refused) == nil then
    vim.health.ok("offered to every agent whose chat is open here")
  end
end

--- Runs the checks.
function M.check()
  local sound, options = pcall(function()
    return require("sojourn.config").get()
  end)
  check_editor()
  if not sound then
    return vim.health.error(tostring(options))
  end
  if check_command(options) then
    check_daemon()
  end
  check_tools(options)
end

return M
