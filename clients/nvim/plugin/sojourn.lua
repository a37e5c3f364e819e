-- What Neovim reads at startup: one command and three <Plug> mappings. Everything else is loaded when it is used.
if vim.g.loaded_sojourn then
  return
end
vim.g.loaded_sojourn = true

vim.api.nvim_create_user_command("Sojourn", function(command)
  require("sojourn.commands").run(command)
end, {
  nargs = "*",
  range = true,
  bang = true,
  desc = "Talk to agents of the Sojourn daemon",
  complete = function(lead, line, position)
    return require("sojourn.commands").complete(lead, line, position)
  end,
})

vim.keymap.set("n", "<Plug>(sojourn-chat)", "<Cmd>Sojourn chat<CR>", { desc = "Sojourn: open a chat" })
vim.keymap.set({ "n", "x" }, "<Plug>(sojourn-prompt)", ":Sojourn prompt<CR>", { desc = "Sojourn: ask about this" })
vim.keymap.set("n", "<Plug>(sojourn-review)", "<Cmd>Sojourn review<CR>", { desc = "Sojourn: decide what waits" })
