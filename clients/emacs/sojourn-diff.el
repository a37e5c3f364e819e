;;; sojourn-diff.el --- What a call would change  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: MIT

;; This file is not part of GNU Emacs.

;;; Commentary:

;; The unified diff of an edit that waits for approval: the daemon's own
;; preview, or worked out here from the call's arguments.

;;; Code:

(require 'cl-lib)
(require 'diff)
(require 'sojourn-agents)
(require 'sojourn-rpc)

(defun sojourn-approval-diff (approval)
  "What the call of APPROVAL would change, as a unified diff, or nil.
The daemon's own preview goes first; else it is worked out from the
arguments, when they name a file and its new content or a replacement."
  (let ((preview (sojourn-get approval :preview)))
    (cond ((consp preview)
           (concat (sojourn-get preview :text)
                   (when (sojourn-true-p (plist-get preview :truncated)) "\n[the diff goes on]\n")))
          (t (sojourn-approval--own-diff (plist-get approval :args)
                                         (sojourn-get (sojourn-agent (plist-get approval :agentId))
                                                      :config :cwd))))))

(defun sojourn-approval--own-diff (args directory)
  "The diff that a call with ARGS would make below DIRECTORY, or nil."
  (let* ((path (sojourn-approval--any args '(:path :file :filePath :file_path)))
         (content (sojourn-approval--any args '(:content :newContent :new_content)))
         (old (sojourn-approval--any args '(:old :oldText :old_text :oldString :old_string)))
         (new (sojourn-approval--any args '(:new :newText :new_text :newString :new_string)))
         (file (and path (expand-file-name path directory))))
    (when (and file (or content (and old new)))
      (let* ((before (sojourn-file-text file))
             (after (cond (content content)
                          ((not (and before (string-search old before))) nil)
                          ((sojourn-true-p (plist-get args :replace_all)) (string-replace old new before))
                          (t (sojourn-replace-once before old new)))))
        (if after
            (sojourn-diff (or before "") after path)
          (sojourn-diff old new path))))))

(defun sojourn-approval--any (args keys)
  "The first string in ARGS at one of KEYS."
  (cl-loop for key in keys for value = (plist-get args key)
           when (stringp value) return value))

(defun sojourn-replace-once (text old new)
  "TEXT with its first OLD replaced by NEW."
  (let ((at (string-search old text)))
    (concat (substring text 0 at) new (substring text (+ at (length old))))))

(defun sojourn-file-text (file)
  "The text of FILE as Emacs has it: its buffer's, else the disk's; nil if neither."
  (let ((buffer (find-buffer-visiting file)))
    (cond (buffer (with-current-buffer buffer
                    (save-restriction (widen)
                                      (buffer-substring-no-properties (point-min) (point-max)))))
          ((and (file-readable-p file) (file-regular-p file))
           (with-temp-buffer
             (insert-file-contents file)
             (buffer-string))))))

(defun sojourn-diff (before after name)
  "The unified diff of the texts BEFORE and AFTER of the file NAME.
Without the program diff, all of both."
  (if (not (executable-find diff-command))
      (concat "--- " name "\n+++ " name "\n@@\n"
              (replace-regexp-in-string "^" "-" before) "\n"
              (replace-regexp-in-string "^" "+" after) "\n")
    (let ((one (make-temp-file "sojourn-a" nil nil before))
          (other (make-temp-file "sojourn-b" nil nil after)))
      (unwind-protect
          (with-temp-buffer
            (let ((coding-system-for-read 'utf-8))
              (call-process diff-command nil t nil "-u"
                            "--label" (concat "a/" name) "--label" (concat "b/" name) one other))
            (buffer-string))
        (delete-file one)
        (delete-file other)))))

(provide 'sojourn-diff)
;;; sojourn-diff.el ends here
