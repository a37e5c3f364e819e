;;; checkdoc.el --- What checkdoc says of the files on the command line  -*- lexical-binding: t; -*-

;;; Commentary:

;; Prints nothing when it has nothing to say.

;;; Code:

(require 'checkdoc)

;; It takes verbs of relative clauses for those of the sentence.
(setq checkdoc-verb-check-experimental-flag nil)

(let ((checkdoc-diagnostic-buffer "*said*"))
  (dolist (file command-line-args-left)
    (with-current-buffer (find-file-noselect file)
      (checkdoc-current-buffer t)))
  (with-current-buffer "*said*"
    (goto-char (point-min))
    (while (re-search-forward "^\\S-+:[0-9]+: .*$" nil t)
      (princ (concat (match-string 0) "\n")))))
(setq command-line-args-left nil)

;;; checkdoc.el ends here
