;;; sojourn-approvals.el --- Deciding what agents may do  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: MIT

;; This file is not part of GNU Emacs.

;;; Commentary:

;; Calls that wait for a decision, of all agents and their children: seen
;; with their arguments or, for edits, as a diff; approved, refused,
;; changed or answered.  And the results of pending calls, handed in by
;; hand.
;;
;; Rule: nothing here takes the keyboard by itself.  A question that comes
;; while you type is shown, and asked when you say so; so no key that was
;; meant for something else approves anything.

;;; Code:

(require 'cl-lib)
(require 'diff-mode)
(require 'json)
(require 'sojourn-agents)
(require 'sojourn-diff)
(require 'sojourn-markdown)
(require 'sojourn-rpc)

(declare-function sojourn-chat-visible-p "sojourn-chat" (agent-id))

(defvar sojourn-approvals-changed-hook nil
  "Hook run when the list of open approvals has changed.")

(defvar sojourn--deciding nil "Non-nil while a decision is asked for: what is shown stays.")

(defcustom sojourn-show-approvals t
  "Whether a call that asks for approval is shown at once.
Only when its chat is on the screen; the window is never selected."
  :type 'boolean
  :group 'sojourn)

(defvar sojourn--approvals nil "Open approvals, oldest first, as plists.")

(defvar sojourn--approvals-asked nil "Non-nil while the list is being read.")

;;; What is open

(defun sojourn-approvals ()
  "The open approvals of all agents and their children, oldest first."
  sojourn--approvals)

(defun sojourn-approvals-refresh ()
  "Read which approvals are open."
  (unless sojourn--approvals-asked
    (setq sojourn--approvals-asked t)
    (sojourn-request 'approval/list nil :bound t
                     :success (lambda (answer)
                                (setq sojourn--approvals-asked nil)
                                (sojourn-approvals--replace (append (plist-get answer :approvals) nil)))
                     :failure (lambda (_) (setq sojourn--approvals-asked nil)))))

(defun sojourn-approvals--replace (approvals)
  "APPROVALS are the open ones."
  (setq sojourn--approvals approvals)
  (run-hooks 'sojourn-approvals-changed-hook))

(defun sojourn-approvals-note (approval)
  "Take in APPROVAL as an event showed it, open or decided."
  (let* ((id (plist-get approval :approvalId))
         (others (cl-remove id sojourn--approvals :test #'equal
                            :key (lambda (one) (plist-get one :approvalId)))))
    (if (sojourn-get approval :decision)
        (progn (sojourn-approvals--replace others)
               (sojourn-approval--close id approval))
      (sojourn-approvals--replace (append others (list approval))))))

(defun sojourn-approvals--agent-changed (old new)
  "Read the approvals again when OLD has others than NEW."
  (unless (equal (or (plist-get old :approvals) 0) (or (plist-get new :approvals) 0))
    (sojourn-approvals-refresh)))

(add-hook 'sojourn-connected-hook #'sojourn-approvals-refresh)
(add-hook 'sojourn-agents-changed-functions #'sojourn-approvals--agent-changed)

(defun sojourn-approval-title (approval)
  "APPROVAL in one line: the agent, the tool and the beginning of the arguments."
  (format "%s: %s %s" (plist-get approval :agentId) (plist-get approval :toolName)
          (truncate-string-to-width (sojourn-encode (plist-get approval :args)) 60 nil nil "…")))

(defun sojourn-approvals-of (agent-id)
  "The open approvals of the agent AGENT-ID and of its children, oldest first."
  (cl-remove-if-not
   (lambda (approval)
     (or (equal (plist-get approval :agentId) agent-id)
         (seq-some (lambda (step) (equal (plist-get step :agentId) agent-id)) (plist-get approval :path))))
   (sojourn-approvals)))

(defun sojourn-read-approval (&optional open)
  "Ask for one of OPEN, by default all open approvals.
The only one is taken unasked; else the one on the screen, or the
oldest, stands for no input."
  (let* ((open (or open (sojourn-approvals)))
         (shown (sojourn-approval--on-screen))
         (titles (cl-loop for approval in open for number from 1
                          collect (cons (format "%d  %s" number (sojourn-approval-title approval)) approval)))
         (default (car (or (rassoc (car (member shown open)) titles) (car titles)))))
    (cond ((null open) (user-error "Nothing waits for your approval"))
          ((null (cdr open)) (car open))
          (t (cdr (assoc (completing-read (format-prompt "Decide about" default) titles nil t nil nil default)
                         titles))))))

;;; Deciding

(defun sojourn-approval-decide (approval decision &rest more)
  "Decide about APPROVAL: DECISION is the protocol's word, MORE its params."
  (sojourn-request
   'approval/decide
   (append (list :approvalId (plist-get approval :approvalId) :decision decision) more)
   :mutating t
   :success (lambda (answer) (sojourn-approvals-note (plist-get answer :approval)))
   :failure (lambda (trouble)
              (sojourn-approvals-refresh)
              (if (equal (sojourn-error-kind trouble) "alreadyDecided")
                  (message "Sojourn: %s was first (%s)" (sojourn-get trouble :data :by)
                           (sojourn-get trouble :data :decision))
                (sojourn-show-error trouble)))))

(defun sojourn-approve (approval &optional always)
  "Let the call of APPROVAL run.
With ALWAYS, its agent's later calls of the same tool, too."
  (interactive (list (sojourn-approval--here) current-prefix-arg))
  (apply #'sojourn-approval-decide approval "approve" (when always '(:scope "agent"))))

(defun sojourn-approve-always (approval)
  "Let the call of APPROVAL run, and its agent's later calls of the same tool."
  (interactive (list (sojourn-approval--here)))
  (sojourn-approve approval t))

(defun sojourn-deny (approval reason)
  "Refuse the call of APPROVAL; the model reads the REASON, unless it is empty."
  (interactive (list (sojourn-approval--here) (read-string "Why not (may be empty): ")))
  (apply #'sojourn-approval-decide approval "deny"
         (unless (string-empty-p reason) (list :reason reason))))

(defun sojourn-answer (approval text)
  "Answer TEXT in the place of the tool of APPROVAL; nothing runs."
  (interactive (list (sojourn-approval--here) (read-string "The result that the model reads: ")))
  (sojourn-approval-decide approval "answer" :content text))

(defun sojourn-abort (approval)
  "Refuse the call of APPROVAL and stop its run."
  (interactive (list (sojourn-approval--here)))
  (sojourn-approval-decide approval "abort"))

;;;###autoload
(defun sojourn-decide (&optional approval)
  "Ask for a decision about APPROVAL, or about one of those that are open.
The arguments, or the diff that the call would make, are shown beside."
  (interactive)
  (let* ((approval (or approval (sojourn-read-approval)))
         (buffer (sojourn-approval-show approval))
         (sojourn--deciding t)
         (answer (read-multiple-choice
                  (format "Run %s? " (plist-get approval :toolName))
                  '((?y "yes" "Run the call with these arguments.")
                    (?n "no" "Refuse the call; you may say why.")
                    (?e "edit" "Change the arguments, then run the call.")
                    (?a "answer" "Write the result yourself; nothing runs.")
                    (?! "always" "Run it, and later calls of this tool of this agent.")
                    (?x "stop" "Refuse the call and stop the run.")
                    (?l "later" "Go and look; the same keys work in the approval's buffer.")))))
    (pcase (car answer)
      (?y (sojourn-approve approval))
      (?n (sojourn-deny approval (read-string "Why not (may be empty): ")))
      (?e (sojourn-edit-arguments approval))
      (?a (sojourn-answer approval (read-string "The result that the model reads: ")))
      (?! (sojourn-approve-always approval))
      (?x (sojourn-abort approval))
      (_ (pop-to-buffer buffer)))))

(defun sojourn-decide-about (agent-id)
  "Ask for a decision about an open approval of the agent AGENT-ID or its children."
  (sojourn-decide (sojourn-read-approval (or (sojourn-approvals-of agent-id)
                                             (user-error "Nothing of %s waits for your approval" agent-id)))))

;;; Looking at one

(defvar-local sojourn-approval--shown nil "The approval that this buffer shows.")

(defvar sojourn-approval-mode-map
  (let ((map (make-sparse-keymap)))
    (define-key map "y" #'sojourn-approve)
    (define-key map "!" #'sojourn-approve-always)
    (define-key map "n" #'sojourn-deny)
    (define-key map "e" #'sojourn-edit-arguments)
    (define-key map "a" #'sojourn-answer)
    (define-key map "x" #'sojourn-abort)
    map)
  "Keys of the buffer that shows a call which waits for approval.")

(define-derived-mode sojourn-approval-mode special-mode "Sojourn-Approval"
  "A call that waits for your decision.

\\<sojourn-approval-mode-map>\\[sojourn-approve] runs it, \\[sojourn-deny] refuses it.
\\[sojourn-edit-arguments] lets you change its arguments first.
\\[sojourn-answer] answers in its place, so that nothing runs.
\\[sojourn-approve-always] runs it and all later calls of this tool of this agent.
\\[sojourn-abort] refuses it and stops the run.

\\{sojourn-approval-mode-map}"
  ;; What is shown is what will run: no character may move another one.
  (setq-local bidi-display-reordering nil)
  (setq header-line-format
        (substitute-command-keys
         "\\<sojourn-approval-mode-map> \\[sojourn-approve] yes  \\[sojourn-deny] no  \\[sojourn-edit-arguments] edit  \\[sojourn-answer] answer  \\[sojourn-approve-always] always  \\[sojourn-abort] stop  \\[quit-window] later")))

(defun sojourn-approval--here ()
  "The approval of this buffer, or the one that the user names."
  (or sojourn-approval--shown (sojourn-read-approval)))

(defun sojourn-approval--on-screen ()
  "The open approval that a window shows, or nil."
  (when-let* ((buffer (get-buffer "*sojourn approval*"))
              (shown (and (get-buffer-window buffer t)
                          (buffer-local-value 'sojourn-approval--shown buffer))))
    (cl-find (plist-get shown :approvalId) (sojourn-approvals) :test #'equal
             :key (lambda (one) (plist-get one :approvalId)))))

(defun sojourn-approval-announce (approval)
  "Show APPROVAL if that is wanted, unless another is on the screen or asked about."
  (when (and sojourn-show-approvals (not noninteractive) (not sojourn--deciding)
             (not (sojourn-approval--on-screen)))
    (sojourn-approval-show approval)))

(defun sojourn-approval--announce-next ()
  "Show the oldest open approval whose chat is on the screen."
  (when-let ((next (cl-find-if
                    (lambda (approval)
                      (cl-some #'sojourn-chat-visible-p
                               (cons (plist-get approval :agentId)
                                     (mapcar (lambda (step) (plist-get step :agentId))
                                             (plist-get approval :path)))))
                    (sojourn-approvals))))
    (sojourn-approval-announce next)))

(defun sojourn-approval-show (approval)
  "Show APPROVAL in a window, without selecting it; returns its buffer."
  (let ((buffer (get-buffer-create "*sojourn approval*")))
    (with-current-buffer buffer
      (let ((inhibit-read-only t))
        (sojourn-approval-mode)
        (setq sojourn-approval--shown approval)
        (erase-buffer)
        (sojourn-approval--insert approval)
        (goto-char (point-min))))
    (display-buffer buffer '((display-buffer-reuse-window display-buffer-below-selected)
                             (window-height . fit-window-to-buffer)))
    buffer))

(defun sojourn-approval--close (id decided)
  "The approval ID was DECIDED: the buffer that shows it says so and leaves."
  (when-let* ((buffer (get-buffer "*sojourn approval*"))
              (shown (buffer-local-value 'sojourn-approval--shown buffer)))
    (when (equal id (plist-get shown :approvalId))
      (with-current-buffer buffer
        (setq sojourn-approval--shown nil
              header-line-format (format " Decided: %s, by %s"
                                         (sojourn-get decided :decision :decision)
                                         (sojourn-get decided :decision :by))))
      (sojourn-approval--hide)
      (sojourn-approval--announce-next))))

(defun sojourn-approval--hide ()
  "Let the window go that shows an approval."
  (when-let ((window (get-buffer-window "*sojourn approval*" t)))
    (quit-restore-window window 'bury)))

(defun sojourn-approval--insert (approval)
  "Insert what APPROVAL is about."
  (let ((args (plist-get approval :args))
        (diff (sojourn-approval-diff approval)))
    (insert (propertize (plist-get approval :toolName) 'face 'bold)
            (format "   asked by %s\n\n" (sojourn-approval--path approval)))
    (when diff (insert (sojourn-fontify diff #'diff-mode) "\n"))
    (unless args (insert "No arguments.\n"))
    (cl-loop for (key value) on args by #'cddr
             do (insert (propertize (substring (symbol-name key) 1) 'face 'font-lock-keyword-face)
                        ": " (sojourn-approval--value value) "\n"))
    (when-let ((covers (sojourn-get approval :covers)))
      (insert (propertize (format "\n\"Always\" would make the rule: %s\n" covers) 'face 'sojourn-quiet)))))

(defun sojourn-approval--path (approval)
  "The agents that APPROVAL has come through, the asking one first."
  (string-join
   (cons (plist-get approval :agentId)
         (mapcar (lambda (step) (plist-get step :agentId)) (reverse (append (plist-get approval :path) nil))))
   ", for "))

(defun sojourn-approval--value (value)
  "VALUE of an argument, as it is: long text on lines of its own."
  (if (and (stringp value) (string-search "\n" value))
      (concat "\n" (replace-regexp-in-string "^" "    " value))
    (if (stringp value) value (sojourn-encode value))))

;;; Editing arguments

(defvar sojourn-arguments-mode-map
  (let ((map (make-sparse-keymap)))
    (define-key map (kbd "C-c C-c") #'sojourn-arguments-commit)
    (define-key map (kbd "C-c C-k") #'sojourn-arguments-cancel)
    map)
  "Keys of the buffer in which arguments are changed.")

(define-derived-mode sojourn-arguments-mode prog-mode "Sojourn-Arguments"
  "The arguments of a call, as JSON, to be changed before it runs.

\\<sojourn-arguments-mode-map>\\[sojourn-arguments-commit] runs the call with them, \\[sojourn-arguments-cancel] leaves it waiting."
  (modify-syntax-entry ?\" "\"")
  (modify-syntax-entry ?\\ "\\")
  (setq-local font-lock-defaults '((("\\(\"[^\"\n]*\"\\) *:" 1 font-lock-keyword-face t))))
  (setq-local bidi-display-reordering nil)
  (setq header-line-format
        (substitute-command-keys
         "\\<sojourn-arguments-mode-map> \\[sojourn-arguments-commit] run the call with these arguments   \\[sojourn-arguments-cancel] leave it waiting")))

(defun sojourn-edit-arguments (approval)
  "Change the arguments of the call of APPROVAL, then let it run."
  (interactive (list (sojourn-approval--here)))
  (unless (sojourn-true-p (plist-get approval :editable))
    (user-error "The arguments of this call cannot be changed"))
  (let ((buffer (generate-new-buffer "*sojourn arguments*")))
    (with-current-buffer buffer
      (insert (sojourn-encode (plist-get approval :args)))
      (json-pretty-print-buffer)
      (goto-char (point-min))
      (sojourn-arguments-mode)
      (setq sojourn-approval--shown approval))
    (sojourn-approval--hide)
    (pop-to-buffer buffer '(display-buffer-below-selected))))

(defun sojourn-arguments-commit ()
  "Let the call run with the arguments in this buffer."
  (interactive)
  (let ((approval sojourn-approval--shown)
        (arguments (sojourn-arguments--read)))
    (quit-window t)
    (sojourn-approval-decide approval "edit" :arguments arguments)))

(defun sojourn-arguments--read ()
  "The object in this buffer; with a fault in it, point goes there."
  (goto-char (point-min))
  (condition-case problem
      (let ((object (json-parse-buffer :object-type 'plist :null-object :null
                                       :false-object :json-false)))
        (skip-chars-forward " \t\n\r")
        (unless (eobp) (user-error "There is something after the end of the arguments"))
        (unless (listp object) (user-error "The arguments must be an object in braces"))
        object)
    (json-parse-error
     (if (string-search "too big" (cadr problem))
         (sojourn-decode (buffer-string))
       (goto-char (min (point-max) (or (car (last problem)) (point-min))))
       (user-error "This is no JSON: %s" (cadr problem))))
    (json-end-of-file (user-error "The JSON ends too early"))))

(defun sojourn-arguments-cancel ()
  "Leave the call waiting as it is."
  (interactive)
  (quit-window t))

;;; Results by hand

(defun sojourn-answer-call (agent-id &optional call)
  "Hand in the result of a pending CALL of the agent AGENT-ID.
CALL is a plist with `:callId' and `:toolName'; without it, you are
asked which of the agent's."
  (interactive (list (sojourn-read-agent "A result for")))
  (if call
      (sojourn--answer-call agent-id call)
    (sojourn-request
     'agent/pendingCalls (list :agentId agent-id)
     :success (lambda (answer)
                (let ((calls (cl-remove-if (lambda (one) (sojourn-true-p (plist-get one :answered)))
                                           (append (plist-get answer :pendingCalls) nil))))
                  (if calls
                      ;; Not here, where messages are being read: asking waits.
                      (run-at-time 0 nil (lambda ()
                                           (sojourn--answer-call agent-id (sojourn--read-call calls))))
                    (message "Sojourn: %s waits for no result" agent-id)))))))

(defun sojourn--read-call (calls)
  "Ask for one of CALLS; the only one is taken unasked."
  (if (null (cdr calls))
      (car calls)
    (let* ((titles (mapcar (lambda (call)
                             (cons (format "%s  %s" (plist-get call :callId) (plist-get call :toolName)) call))
                           calls))
           (default (caar titles)))
      (cdr (assoc (completing-read (format-prompt "Which call" default) titles nil t nil nil default) titles)))))

(defun sojourn--answer-call (agent-id call)
  "Ask for the result of CALL of the agent AGENT-ID, and hand it in."
  (let ((name (format "%s (%s)" (plist-get call :toolName) (plist-get call :callId))))
    (pcase (car (read-multiple-choice
                 (format "%s: " name)
                 '((?r "result" "Write the result.")
                   (?b "buffer" "Take the text of a buffer as the result.")
                   (?f "failure" "Say that it failed, and why."))))
      (?r (sojourn-resolve agent-id (plist-get call :callId) (read-string (format "Result of %s: " name))))
      (?b (sojourn-resolve agent-id (plist-get call :callId)
                           (with-current-buffer (read-buffer "Buffer with the result: " nil t)
                             (buffer-substring-no-properties (point-min) (point-max)))))
      (?f (sojourn-reject agent-id (plist-get call :callId) (read-string (format "Why %s failed: " name)))))))

(defun sojourn-resolve (agent-id call-id text)
  "Hand in TEXT as the result of the call CALL-ID of the agent AGENT-ID."
  (sojourn-request 'inbox/resolve (list :agentId agent-id :callId call-id :content text)
                   :mutating t :success (lambda (_) (sojourn--handed-in agent-id))))

(defun sojourn-reject (agent-id call-id reason)
  "Say that the call CALL-ID of the agent AGENT-ID failed for REASON."
  (sojourn-request 'inbox/reject (list :agentId agent-id :callId call-id :error reason)
                   :mutating t :success (lambda (_) (sojourn--handed-in agent-id))))

(defun sojourn--handed-in (agent-id)
  "Say what will become of a result for the agent AGENT-ID."
  (message (if (sojourn-agent-active-p (sojourn-agent agent-id))
               "Sojourn: %s reads it next"
             "Sojourn: %s reads it at the next prompt or resume")
           agent-id))

(provide 'sojourn-approvals)
;;; sojourn-approvals.el ends here
