--- JSON that keeps what an agent's tool calls hold: nulls, `{}` and `[]` apart, and integers of any length.
---
--- A person decides about the arguments that they see, so what is shown and sent back must be what came in. Integers
--- that a Lua number cannot hold are kept as marked strings; the mark is drawn at random for each process.
local M = {}

local MARK = "\0int" .. vim.uv.random(8):gsub(".", function(byte)
  return ("%02x"):format(byte:byte())
end) .. ":"
local ESCAPED_MARK = MARK:gsub("%z", "\\u0000")

--- Puts the mark around every integer of `text` that has more than 15 digits.
local function keep_long_integers(text)
  local out, at = {}, 1
  while true do
    local quote = text:find('"', at, true)
    local outside = text:sub(at, (quote or #text + 1) - 1)
    out[#out + 1] = outside:gsub("%-?%d[%d%.eE+-]*", function(number)
      if #number > 15 and number:match("^%-?%d+$") then
        return '"' .. ESCAPED_MARK .. number .. '"'
      end
    end)
    if not quote then
      return table.concat(out)
    end
    local close = text:find('["\\]', quote + 1)
    while close and text:byte(close) == 92 do
      close = text:find('["\\]', close + 2)
    end
    out[#out + 1] = text:sub(quote, close or #text)
    at = (close or #text) + 1
  end
end

--- The value of a JSON text. Raises an error when it is none. Nulls are `vim.NIL`.
---@param text string
---@return any
function M.decode(text)
  if text:find(("%d"):rep(16)) then
    text = keep_long_integers(text)
  end
  return vim.json.decode(text)
end

local function number(value)
  if value == math.floor(value) and math.abs(value) < 2 ^ 53 then
    return ("%d"):format(value)
  end
  for digits = 15, 17 do
    local text = ("%." .. digits .. "g"):format(value)
    if tonumber(text) == value then
      return text
    end
  end
  error("JSON has no number " .. tostring(value))
end

local SOUND = {
  "^[\194-\223][\128-\191]",
  "^\224[\160-\191][\128-\191]",
  "^[\225-\236\238\239][\128-\191][\128-\191]",
  "^\237[\128-\159][\128-\191]",
  "^\240[\144-\191][\128-\191][\128-\191]",
  "^[\241-\243][\128-\191][\128-\191][\128-\191]",
  "^\244[\128-\143][\128-\191][\128-\191]",
}

local function clean_run(run)
  local out, at = {}, 1
  while at <= #run do
    local sound
    for _, pattern in ipairs(SOUND) do
      sound = sound or run:match(pattern, at)
    end
    out[#out + 1] = sound or "\239\191\189"
    at = at + (sound and #sound or 1)
  end
  return table.concat(out)
end

--- Text that is UTF-8 for certain: bytes that are not become U+FFFD, each.
---@param text string
---@return string
function M.clean(text)
  local seen = {}
  return (
    text:gsub("[\128-\255]+", function(run)
      seen[run] = seen[run] or clean_run(run)
      return seen[run]
    end)
  )
end

local function scalar(value)
  if value == nil or value == vim.NIL then
    return "null"
  elseif type(value) == "number" then
    return number(value)
  elseif type(value) == "string" then
    if vim.startswith(value, MARK) then
      return value:sub(#MARK + 1)
    end
    return (vim.json.encode(M.clean(value)):gsub("\\/", "/"))
  end
  return tostring(value)
end

local function is_array(value)
  if next(value) == nil then
    return getmetatable(value) ~= getmetatable(vim.empty_dict())
  end
  return vim.islist(value)
end

local function keys_of(value)
  local keys = vim.tbl_keys(value)
  table.sort(keys)
  return keys
end

local function write(value, out, indent, level)
  if type(value) ~= "table" then
    out[#out + 1] = scalar(value)
    return
  end
  local array = is_array(value)
  local keys = array and value or keys_of(value)
  out[#out + 1] = array and "[" or "{"
  local gap = indent and "\n" .. indent:rep(level + 1) or ""
  for index, key in ipairs(keys) do
    out[#out + 1] = (index > 1 and (indent and "," or ", ") or "") .. gap
    if not array then
      out[#out + 1] = scalar(key) .. ": "
    end
    write(array and key or value[key], out, indent, level + 1)
  end
  out[#out + 1] = (indent and #keys > 0 and "\n" .. indent:rep(level) or "") .. (array and "]" or "}")
end

--- A value as one line of JSON, keys in alphabetical order.
---@param value any
---@return string
function M.encode(value)
  local out = {}
  write(value, out, nil, 0)
  return table.concat(out)
end

--- A value as JSON for people: indented, keys in alphabetical order.
---@param value any
---@return string
function M.pretty(value)
  local out = {}
  write(value, out, "  ", 0)
  return table.concat(out)
end

return M
