;;; sojourn-tools.el --- What agents may do in Emacs  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: MIT

;; This file is not part of GNU Emacs.

;;; Commentary:

;; Tools that Emacs offers to agents: which buffers are open, what is in
;; them, what is selected, what flymake says; to edit a file as you would,
;; in its buffer; to show a place.
;;
;; Rules: a tool answers at once and asks nothing (the daemon has asked for
;; approval before, where that is the policy).  An edit can be undone, and
;; never writes over what you have not saved.

;;; Code:

(require 'cl-lib)
(require 'pulse)
(require 'sojourn-agents)
(require 'sojourn-approvals)
(require 'sojourn-chat)
(require 'sojourn-rpc)

(declare-function flymake-diagnostics "flymake" (&optional beg end))
(declare-function flymake-diagnostic-beg "flymake" (diag))
(declare-function flymake-diagnostic-text "flymake" (diag))
(declare-function flymake-diagnostic-type "flymake" (diag))

(defcustom sojourn-tools-for 'chats
  "Which agents are offered the tools of this Emacs.
`chats' are those whose chats you open here, `all' are all agents of
the daemon, nil is none."
  :type '(choice (const chats) (const all) (const :tag "none" nil))
  :group 'sojourn)

(defcustom sojourn-save-edits 'if-unmodified
  "Whether a buffer is saved after an agent has edited it.
`if-unmodified' saves it unless it had unsaved changes of yours."
  :type '(choice (const if-unmodified) (const :tag "never" nil))
  :group 'sojourn)

(defconst sojourn-tools--limit 60000
  "How many characters of a buffer a tool gives at once.")

(defconst sojourn-tools--path
  '(:type "string" :description "Absolute, or from the agent's working directory."))

(defconst sojourn-tools
  `((:name "editor_apply_edit"
     :description "Replaces old_text by new_text in a file, in the user's editor, where it can be undone. old_text must stand there exactly once, unless replace_all is true; an empty old_text makes a new file. The file is saved, unless the user has unsaved changes in it."
     :properties (:path ,sojourn-tools--path
                  :old_text (:type "string"
                             :description "Exactly as in the file, with enough around it to be unique.")
                  :new_text (:type "string")
                  :replace_all (:type "boolean" :description "Replace every place where it stands."))
     :required ["path" "old_text" "new_text"] :approval "ask" :function sojourn-tools--apply-edit)
    (:name "editor_diagnostics"
     :description "Tells the errors and warnings that the user's editor shows, of one file or of all open ones."
     :properties (:path ,sojourn-tools--path) :approval "allow" :function sojourn-tools--diagnostics)
    (:name "editor_open_buffers"
     :description "Lists the files that are open in the user's editor, with unsaved ones marked."
     :properties nil :approval "allow" :function sojourn-tools--open-buffers)
    (:name "editor_open_location"
     :description "Shows the user a place in a file, in their editor."
     :properties (:path ,sojourn-tools--path
                  :line (:type "integer" :minimum 1) :column (:type "integer" :minimum 1))
     :required ["path"] :approval "allow" :function sojourn-tools--open-location)
    (:name "editor_read_buffer"
     :description "Reads a file as it is in the user's editor, unsaved changes included."
     :properties (:path ,sojourn-tools--path
                  :line (:type "integer" :minimum 1 :description "The first line.")
                  :lines (:type "integer" :minimum 1 :description "How many lines."))
     :required ["path"] :approval "allow" :function sojourn-tools--read-buffer)
    (:name "editor_selection"
     :description "Tells what the user has selected in their editor."
     :properties nil :approval "allow" :function sojourn-tools--selection))
  "The tools that Emacs offers, named as in every editor.
The arguments of the edit are those of the daemon's own `edit'.
`:function' gets the arguments and the agent's directory, and returns
what the model reads; an error's message is read as a failure.")

;;; Offering and running them

(defun sojourn-tools--register (agent-id)
  "Offer the tools to the agent AGENT-ID; nil offers them to all."
  (sojourn-request
   'tool/register
   (append (list :tools (vconcat (mapcar #'sojourn-tools--registration sojourn-tools)))
           (when agent-id (list :agentId agent-id)))
   :mutating t :bound t
   :failure (lambda (trouble) (sojourn-log "Tools: %s" (plist-get trouble :message)))))

(defun sojourn-tools--registration (tool)
  "TOOL as the daemon wants it."
  (list :name (plist-get tool :name)
        :description (plist-get tool :description)
        :inputSchema (append (list :type "object" :properties (plist-get tool :properties)
                                   :additionalProperties :json-false)
                             (when (plist-get tool :required)
                               (list :required (plist-get tool :required))))
        :approval (plist-get tool :approval)))

(defun sojourn-tools--connected ()
  "Offer the tools to all agents, if they are for all."
  (when (eq sojourn-tools-for 'all) (sojourn-tools--register nil)))

(defun sojourn-tools--attached ()
  "Offer the tools to the agent of this chat."
  (when (eq sojourn-tools-for 'chats) (sojourn-tools--register sojourn-chat--id)))

(defun sojourn-tools-execute (params)
  "Run the call of a tool in PARAMS; returns the answer for the daemon."
  (let* ((name (plist-get params :name))
         (tool (cl-find name sojourn-tools :test #'equal :key (lambda (one) (plist-get one :name))))
         (agent (sojourn-agent (plist-get params :agentId)))
         (directory (file-name-as-directory (or (sojourn-get agent :config :cwd) "~"))))
    (condition-case problem
        (let ((inhibit-interaction t)
              (enable-local-variables :safe))
          (unless tool (error "Emacs has no tool %s" name))
          (list :content (funcall (plist-get tool :function) (plist-get params :arguments)
                                directory)))
      ((error quit) (list :content (error-message-string problem) :isError t)))))

(setq sojourn-tool-function #'sojourn-tools-execute)
(add-hook 'sojourn-connected-hook #'sojourn-tools--connected)
(add-hook 'sojourn-chat-attached-hook #'sojourn-tools--attached)

;;; Looking

(defun sojourn-tools--buffers ()
  "The buffers that a user works in, the one used last first."
  (cl-remove-if (lambda (buffer)
                  (with-current-buffer buffer
                    (or (string-prefix-p " " (buffer-name))
                        (and (not buffer-file-name)
                             (or (derived-mode-p 'special-mode 'sojourn-chat-mode 'sojourn-arguments-mode
                                                 'tabulated-list-mode)
                                 (string-prefix-p "*sojourn" (buffer-name)))))))
                (buffer-list)))

(defun sojourn-tools--name (buffer)
  "What BUFFER is called for a model: its file, or its name."
  (or (buffer-file-name buffer) (buffer-name buffer)))

(defun sojourn-tools--open-buffers (_arguments _directory)
  "Say which buffers are open."
  (mapconcat (lambda (buffer)
               (format "%s  (%s%s)" (sojourn-tools--name buffer)
                       (buffer-local-value 'major-mode buffer)
                       (if (and (buffer-file-name buffer) (buffer-modified-p buffer)) ", unsaved changes" "")))
             (sojourn-tools--buffers) "\n"))

(defun sojourn-tools--file (arguments directory)
  "The file that ARGUMENTS name, relative to DIRECTORY."
  (let ((path (sojourn-get arguments :path)))
    (unless (and (stringp path) (not (string-empty-p path))) (error "No path was given"))
    (expand-file-name path directory)))

(defun sojourn-tools--buffer (arguments directory)
  "The buffer of what ARGUMENTS name, relative to DIRECTORY; opened if need be."
  (let ((file (sojourn-tools--file arguments directory)))
    (or (find-buffer-visiting file)
        (get-buffer (plist-get arguments :path))
        (if (and (file-readable-p file) (not (file-directory-p file)))
            (find-file-noselect file t)
          (error "There is no file %s that can be read" file)))))

(defun sojourn-tools--read-buffer (arguments directory)
  "Read a buffer; see `sojourn-tools' for ARGUMENTS and DIRECTORY."
  (with-current-buffer (sojourn-tools--buffer arguments directory)
    (save-excursion
      (save-restriction
        (widen)
        (let* ((first (max 1 (or (sojourn-get arguments :line) 1)))
               (count (sojourn-get arguments :lines))
               (last (if count (+ first count -1) most-positive-fixnum))
               (number first) (size 0) lines)
          (goto-char (point-min))
          (forward-line (1- first))
          (while (and (not (eobp)) (<= number last) (< size sojourn-tools--limit))
            (push (format "%6d\t%s" number
                          (buffer-substring-no-properties (line-beginning-position) (line-end-position)))
                  lines)
            (cl-incf size (length (car lines)))
            (cl-incf number)
            (forward-line 1))
          (concat (string-join (nreverse lines) "\n")
                  (if (and (not (eobp)) (<= number last))
                      (format "\n[cut here; ask for lines from %d on]" number)
                    "")))))))

(defun sojourn-tools--selection (_arguments _directory)
  "Say what is selected and where the cursor is."
  (let ((buffer (or (cl-find-if (lambda (one) (or (buffer-file-name one) (get-buffer-window one)))
                                (sojourn-tools--buffers))
                    (error "No buffer is in use"))))
    (with-current-buffer buffer
      (let* ((window (get-buffer-window buffer t))
             (point (if window (window-point window) (point)))
             (place (format "%s, line %d, column %d" (sojourn-tools--name buffer)
                            (line-number-at-pos point t)
                            (save-excursion (goto-char point) (current-column)))))
        (if (and mark-active (mark t) (/= (mark t) point))
            (let ((start (min (mark t) point)) (end (max (mark t) point)))
              (format "%s\nSelected, lines %d to %d:\n%s" place
                      (line-number-at-pos start t)
                      ;; The line that a selection ends before is not in it.
                      (line-number-at-pos (if (eq (char-before end) ?\n) (1- end) end) t)
                      (truncate-string-to-width (buffer-substring-no-properties start end)
                                                sojourn-tools--limit nil nil "…")))
          (format "%s\nNothing is selected." place))))))

(defun sojourn-tools--diagnostics (arguments directory)
  "Say what flymake says; see `sojourn-tools' for ARGUMENTS and DIRECTORY."
  (let* ((buffers (if (sojourn-get arguments :path)
                      (list (sojourn-tools--buffer arguments directory))
                    (sojourn-tools--buffers)))
         (checked (cl-remove-if-not (lambda (buffer) (buffer-local-value 'flymake-mode buffer))
                                    (if (boundp 'flymake-mode) buffers nil)))
         (lines (mapcan #'sojourn-tools--diagnostics-of checked)))
    (cond (lines (string-join lines "\n"))
          (checked "Emacs shows no errors or warnings.")
          (t "No open file is being checked (flymake is off)."))))

(defun sojourn-tools--diagnostics-of (buffer)
  "What flymake says of BUFFER, as lines."
  (with-current-buffer buffer
    (mapcar (lambda (one)
              (format "%s:%d: %s: %s" (sojourn-tools--name buffer)
                      (line-number-at-pos (flymake-diagnostic-beg one) t)
                      (string-remove-prefix ":" (format "%s" (flymake-diagnostic-type one)))
                      (flymake-diagnostic-text one)))
            (flymake-diagnostics))))

;;; Acting

(defun sojourn-tools--apply-edit (arguments directory)
  "Edit a file in its buffer; see `sojourn-tools' for ARGUMENTS and DIRECTORY."
  (let* ((file (sojourn-tools--file arguments directory))
         (old (plist-get arguments :old_text))
         (new (plist-get arguments :new_text))
         (create (string-empty-p old)))
    (when (and create (or (file-exists-p file) (find-buffer-visiting file)))
      (error "%s exists already; old_text must be a text in it" file))
    (unless (or create (find-buffer-visiting file) (file-readable-p file))
      (error "There is no file %s that can be read" file))
    (with-current-buffer (or (find-buffer-visiting file) (find-file-noselect file t))
      (sojourn-tools--check-writable)
      (let ((unsaved (and (buffer-modified-p) (not create)))
            (line (sojourn-tools--replace
                   old new (sojourn-true-p (sojourn-get arguments :replace_all)))))
        (concat (format "%s line %d of %s" (if create "Wrote" "Edited") line file)
                (sojourn-tools--save unsaved))))))

(defun sojourn-tools--check-writable ()
  "Signal an error unless this buffer may be edited; read it anew if it is old."
  (when buffer-read-only (error "%s is read-only in Emacs" (buffer-name)))
  (unless (or (verify-visited-file-modtime (current-buffer)) (not (file-exists-p buffer-file-name)))
    (when (buffer-modified-p)
      (error "%s has unsaved changes in Emacs, and the file has changed on disk; the user has to mend that"
             (buffer-name)))
    (revert-buffer t t t)))

(defun sojourn-tools--replace (old new everywhere)
  "Replace OLD, which must be here once or EVERYWHERE, by NEW.
That is one step that can be undone.  Returns the number of its line."
  (save-excursion
    (save-restriction
      (widen)
      (let ((case-fold-search nil) (create (string-empty-p old)) line)
        (goto-char (point-min))
        (unless (search-forward old nil t) (error "The old_text is not in %s" (buffer-name)))
        (let ((start (- (point) (length old))))
          (unless (or create everywhere)
            (when (save-excursion (goto-char (1+ start)) (search-forward old nil t))
              (error "The old_text is more than once in %s; give more of what is around it" (buffer-name))))
          (setq line (line-number-at-pos start))
          (undo-boundary)
          (atomic-change-group
            (goto-char start)
            (if create
                (insert new)
              (while (search-forward old nil t)
                (delete-region (- (point) (length old)) (point))
                (insert new)))))
        (undo-boundary)
        line))))

(defun sojourn-tools--save (unsaved)
  "Save this buffer, if that is wanted; UNSAVED: it had other changes before."
  (cond ((null sojourn-save-edits) "; it is not saved yet.")
        (unsaved "; the buffer had unsaved changes of the user's and was not saved.")
        (t (let ((inhibit-message t)) (save-buffer))
           " and saved it.")))

(defun sojourn-tools--open-location (arguments directory)
  "Show a place; see `sojourn-tools' for ARGUMENTS and DIRECTORY."
  (let* ((buffer (sojourn-tools--buffer arguments directory))
         (line (or (sojourn-get arguments :line) 1))
         (window (display-buffer buffer '((display-buffer-reuse-window display-buffer-use-some-window
                                           display-buffer-pop-up-window)
                                          (inhibit-same-window . t)))))
    (with-current-buffer buffer
      (let ((place (save-excursion
                     (save-restriction
                       (widen)
                       (goto-char (point-min))
                       (forward-line (1- line))
                       (move-to-column (max 0 (1- (or (sojourn-get arguments :column) 1))))
                       (point)))))
        (goto-char place)
        (when window
          (set-window-point window place)
          (with-selected-window window (recenter)))
        (unless noninteractive (pulse-momentary-highlight-one-line place))))
    (format "Emacs shows %s, line %d." (sojourn-tools--name buffer) line)))

(provide 'sojourn-tools)
;;; sojourn-tools.el ends here
