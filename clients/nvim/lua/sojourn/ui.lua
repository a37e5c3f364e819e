--- Small words to the user.
local M = {}

--- Says something, whatever callback this is called from.
---@param message string
---@param level? integer one of `vim.log.levels`
function M.say(message, level)
  vim.schedule(function()
    vim.notify("sojourn: " .. message, level or vim.log.levels.INFO, { title = "Sojourn" })
  end)
end

--- Says that something went wrong.
---@param problem string|table a sentence, or an error of the daemon's
function M.fail(problem)
  M.say(type(problem) == "table" and (problem.message or vim.inspect(problem)) or problem, vim.log.levels.ERROR)
end

--- A callback for requests: says errors, and calls `go_on` with the result otherwise.
---@param go_on? fun(result: any)
---@return fun(err: table?, result: any)
function M.unless_failed(go_on)
  return function(err, result)
    if err then
      M.fail(err)
    elseif go_on then
      go_on(result)
    end
  end
end

--- The words in a content.
---@param content any[]?
---@return string
function M.text_of(content)
  local words = {}
  for _, part in ipairs(content or {}) do
    if part.type == "text" or part.type == "refusal" then
      words[#words + 1] = part.text
    elseif part.type == "resource" then
      words[#words + 1] = ("[%s]"):format(part.uri)
    elseif part.type == "image" then
      words[#words + 1] = ("[image %s]"):format(part.mimeType)
    end
  end
  return table.concat(words, "\n")
end

--- The first line of a text, at most `width` cells of it.
---@param text string
---@param width integer
---@return string
function M.short(text, width)
  local line = text:gsub("%s*\n.*", " …")
  if vim.fn.strdisplaywidth(line) > width then
    line = vim.fn.strcharpart(line, 0, width - 1) .. "…"
  end
  return line
end

return M
