;;; sojourn-agents.el --- Agents, what they wait for, who needs you  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: MIT

;; This file is not part of GNU Emacs.

;;; Commentary:

;; What Emacs knows of all agents, kept fresh by `agent/watch': the list
;; of agents, the piece of the mode line, and a word when an agent in the
;; background needs you.

;;; Code:

(require 'cl-lib)
(require 'parse-time)
(require 'sojourn-rpc)
(require 'tabulated-list)

(declare-function notifications-notify "notifications" (&rest params))
(declare-function sojourn-chat-open "sojourn-chat" (agent-id &optional quiet))
(declare-function sojourn-chat-visible-p "sojourn-chat" (agent-id))
(declare-function sojourn-decide-about "sojourn-approvals" (agent-id))
(declare-function sojourn-answer-call "sojourn-approvals" (agent-id &optional call))
(declare-function sojourn-new "sojourn" (&optional agent-id preset directory))

(defcustom sojourn-notify '(approval paused interrupted done)
  "About what you hear from agents whose chat is not on the screen.
A list of the symbols `approval' (a call waits for your decision),
`paused' (a run waits for results), `interrupted' (a run was cut off
by a crash) and `done' (a run has ended)."
  :type '(set (const approval) (const paused) (const interrupted) (const done))
  :group 'sojourn)

(defcustom sojourn-notify-function #'sojourn-notify-default
  "Function called with AGENT (a plist) and TEXT when an agent needs you."
  :type 'function
  :group 'sojourn)

(defcustom sojourn-notify-desktop nil
  "Whether the desktop shows these messages as well, where it can."
  :type 'boolean
  :group 'sojourn)

(defface sojourn-needs-you '((t :inherit warning))
  "For what waits for you."
  :group 'sojourn)

(defface sojourn-running '((t :inherit success))
  "For agents at work."
  :group 'sojourn)

(defface sojourn-quiet '((t :inherit shadow))
  "For what matters less."
  :group 'sojourn)

(defvar sojourn-agents-changed-functions nil
  "Functions called with OLD and NEW, an agent before and after; either may be nil.")

(defvar sojourn--agents (make-hash-table :test #'equal)
  "Agents as the daemon showed them last, by id.")

;;; What is known

(defun sojourn-agent (agent-id)
  "The agent AGENT-ID as a plist, nil when it is not known."
  (gethash agent-id sojourn--agents))

(defun sojourn-agents ()
  "All agents that are known, newest activity first."
  (sort (hash-table-values sojourn--agents)
        (lambda (one other) (string> (plist-get one :updatedAt) (plist-get other :updatedAt)))))

(defun sojourn-agent-name (agent)
  "What AGENT is called."
  (let ((title (sojourn-get agent :title)))
    (if title (format "%s (%s)" (plist-get agent :agentId) title) (plist-get agent :agentId))))

(defun sojourn-agent-active-p (agent)
  "Whether a run of AGENT is under way."
  (member (plist-get agent :state) '("running" "waiting")))

(defun sojourn-agent-asks-p (agent)
  "Whether AGENT, or a child of it, waits for an approval."
  (or (> (or (plist-get agent :approvals) 0) 0)
      (equal (plist-get agent :waitingFor) "approval")))

(defun sojourn-agent-needs-you-p (agent)
  "Whether AGENT cannot go on without somebody."
  (or (sojourn-agent-asks-p agent)
      (member (plist-get agent :state) '("paused" "interrupted"))))

(defun sojourn-agent-waits-for (agent)
  "What AGENT waits for, in words; the empty string for nothing."
  (let ((approvals (or (plist-get agent :approvals) 0))
        (pending (or (plist-get agent :pendingCalls) 0))
        (inbox (or (plist-get agent :inbox) 0))
        (state (plist-get agent :state)))
    (string-join
     (delq nil
           (list (cond ((> approvals 0) (sojourn--count approvals "approval"))
                       ((sojourn-agent-asks-p agent) "an approval of its child"))
                 (when (> pending 0) (sojourn--count pending "result"))
                 (when (and (equal state "waiting") (not (sojourn-agent-asks-p agent)))
                   (format "the %s" (or (sojourn-get agent :waitingFor) "tool")))
                 (cond ((equal state "interrupted") "a resume")
                       ((and (equal state "idle") (> inbox 0))
                        (format "a resume (%s unread)" inbox))
                       ((and (equal state "idle") (sojourn-true-p (plist-get agent :needsReply)))
                        "a resume"))))
     ", ")))

(defun sojourn--count (number noun)
  "NUMBER and NOUN, in the plural if need be."
  (format "%d %s%s" number noun (if (= number 1) "" "s")))

(defun sojourn-read-agent (prompt &optional default)
  "Ask with PROMPT for an agent's id; DEFAULT stands for no input."
  (let ((completion-extra-properties
         (list :annotation-function
               (lambda (id)
                 (let ((agent (sojourn-agent id)))
                   (format "  %s  %s" (or (plist-get agent :state) "")
                           (or (sojourn-get agent :title) "")))))))
    (completing-read (format-prompt prompt default)
                     ;; They may become known only while the question is open.
                     (completion-table-dynamic
                      (lambda (_) (mapcar (lambda (agent) (plist-get agent :agentId)) (sojourn-agents))))
                     nil nil nil nil default)))

;;; Keeping it fresh

(defun sojourn-agents--connected ()
  "Follow all agents over the new connection."
  (sojourn-request 'agent/watch nil :bound t)
  (sojourn-agents--read nil nil))

(defun sojourn-agents--read (cursor found)
  "Read the agents from CURSOR on; FOUND are those that were read before."
  (sojourn-request
   'agent/list (append '(:limit 200) (when cursor (list :cursor cursor)))
   :bound t :failure #'ignore
   :success
   (lambda (page)
     (let ((all (append (plist-get page :agents) found)))
       (if (sojourn-get page :nextCursor)
           (sojourn-agents--read (plist-get page :nextCursor) all)
         (sojourn-agents--replace all))))))

(defun sojourn-agents--replace (agents)
  "AGENTS are the roots that there are; children stay as they are known."
  (let ((ids (mapcar (lambda (agent) (plist-get agent :agentId)) agents)))
    (dolist (old (hash-table-values sojourn--agents))
      (unless (or (sojourn-get old :parent) (member (plist-get old :agentId) ids))
        (sojourn-agents--put (plist-get old :agentId) nil))))
  (dolist (agent agents)
    (sojourn-agents--put (plist-get agent :agentId) agent))
  (sojourn-agents--show))

(defun sojourn-agents--notified (method params)
  "Take in a notification METHOD with PARAMS."
  (when (eq method 'agent/changed)
    (let ((agent (sojourn-get params :agent)))
      (sojourn-agents--put (or (sojourn-get agent :agentId) (plist-get params :agentId)) agent))
    (sojourn-agents--show)))

(defun sojourn-agents--put (agent-id new)
  "The agent AGENT-ID is NEW now; nil when it is gone."
  (let ((old (gethash agent-id sojourn--agents)))
    (if new
        (puthash agent-id new sojourn--agents)
      (remhash agent-id sojourn--agents))
    (unless (equal old new)
      (run-hook-with-args 'sojourn-agents-changed-functions old new))))

(defun sojourn-agents--show ()
  "Show what is known wherever it is shown."
  (sojourn-mode-line--update)
  (when-let ((buffer (get-buffer "*sojourn agents*")))
    (with-current-buffer buffer
      (when (derived-mode-p 'sojourn-agents-mode) (sojourn-agents--print)))))

(add-hook 'sojourn-connected-hook #'sojourn-agents--connected)
(add-hook 'sojourn-disconnected-hook #'sojourn-agents--show)
(add-hook 'sojourn-notification-functions #'sojourn-agents--notified)

;;; The list

(defvar sojourn-agents-mode-map
  (let ((map (make-sparse-keymap)))
    (define-key map (kbd "RET") #'sojourn-agents-visit)
    (define-key map "+" #'sojourn-new)
    (define-key map "a" #'sojourn-agents-decide)
    (define-key map "p" #'sojourn-agents-answer-call)
    (define-key map "s" #'sojourn-agents-stop)
    (define-key map "r" #'sojourn-agents-resume)
    (define-key map "f" #'sojourn-agents-fork)
    (define-key map "D" #'sojourn-agents-delete)
    (define-key map "t" #'sojourn-agents-title)
    map)
  "Keys of the list of agents.")

(define-derived-mode sojourn-agents-mode tabulated-list-mode "Sojourn"
  "The agents of the daemon, with their state and what they wait for.

\\<sojourn-agents-mode-map>\\[sojourn-agents-visit] opens an agent's chat, \\[sojourn-new] makes a new agent.
\\[sojourn-agents-decide] decides about calls that wait for approval,
\\[sojourn-agents-answer-call] hands in the result of a pending call.
\\[sojourn-agents-stop] stops a run, \\[sojourn-agents-resume] carries one on.
\\[sojourn-agents-fork] makes an agent with a copy of the conversation,
\\[sojourn-agents-title] gives an agent a title, \\[sojourn-agents-delete] deletes one.

\\{sojourn-agents-mode-map}"
  (setq tabulated-list-format
        [("Agent" 24 t) ("State" 12 t) ("Waits for" 26 t) ("Messages" 9 nil :right-align t)
         ("Activity" 12 t) ("Title" 0 t)]
        tabulated-list-padding 1
        mode-line-process '(:eval (sojourn-connection-words)))
  (setq-local revert-buffer-function (lambda (&rest _) (sojourn-agents--connected)))
  (tabulated-list-init-header))

(defun sojourn-connection-words ()
  "The state of the connection for a mode line, empty when all is well."
  (pcase sojourn--state
    ('ready "")
    ('connecting " connecting")
    (_ (propertize " not connected" 'face 'sojourn-needs-you 'help-echo sojourn--failure))))

;;;###autoload
(defun sojourn-list ()
  "Show the agents of the daemon, their state and what they wait for."
  (interactive)
  (sojourn-connect)
  (with-current-buffer (get-buffer-create "*sojourn agents*")
    (unless (derived-mode-p 'sojourn-agents-mode) (sojourn-agents-mode))
    (sojourn-agents--print)
    (pop-to-buffer (current-buffer))))

(defun sojourn-agents--print ()
  "Print the list anew."
  (setq tabulated-list-entries (mapcar #'sojourn-agents--entry (sojourn-agents--ordered)))
  (tabulated-list-print t)
  (force-mode-line-update))

(defun sojourn-agents--ordered ()
  "Roots by newest activity, active children below their parents."
  (let* ((all (sojourn-agents))
         (children (cl-remove-if-not (lambda (agent) (sojourn-get agent :parent)) all))
         (roots (cl-remove-if (lambda (agent) (sojourn-get agent :parent)) all)))
    (apply #'append
           (mapcar (lambda (root) (cons root (sojourn-agents--below root children))) roots))))

(defun sojourn-agents--below (agent children)
  "Those of CHILDREN that work for AGENT and are not idle, with theirs."
  (let (found)
    (dolist (child children (nreverse found))
      (when (and (equal (sojourn-get child :parent :agentId) (plist-get agent :agentId))
                 (not (equal (plist-get child :state) "idle")))
        (push child found)
        (dolist (grandchild (sojourn-agents--below child children))
          (push grandchild found))))))

(defun sojourn-agents--entry (agent)
  "The line of AGENT in the list."
  (let ((id (plist-get agent :agentId))
        (state (plist-get agent :state)))
    (list id
          (vector (if (sojourn-get agent :parent) (concat "  └ " id) id)
                  (propertize state 'face (cond ((sojourn-agent-needs-you-p agent) 'sojourn-needs-you)
                                                ((equal state "idle") 'sojourn-quiet)
                                                (t 'sojourn-running)))
                  (sojourn-agent-waits-for agent)
                  (format "%d" (or (plist-get agent :messageCount) 0))
                  (sojourn-agents--ago (plist-get agent :updatedAt))
                  (or (sojourn-get agent :title) "")))))

(defun sojourn-agents--ago (time)
  "How long ago TIME was, an ISO 8601 string."
  (let ((seconds (condition-case nil
                     (max 0 (float-time (time-since (parse-iso8601-time-string time))))
                   (error nil))))
    (cond ((null seconds) "")
          ((< seconds 60) "now")
          ((< seconds 3600) (format "%d min ago" (/ seconds 60)))
          ((< seconds 86400) (format "%d h ago" (/ seconds 3600)))
          (t (format "%d d ago" (/ seconds 86400))))))

(defun sojourn-agents--at-point ()
  "The id of the agent at point."
  (or (tabulated-list-get-id) (user-error "No agent on this line")))

(defun sojourn-agents-visit ()
  "Open the chat of the agent at point."
  (interactive)
  (sojourn-chat-open (sojourn-agents--at-point)))

(defun sojourn-agents-decide ()
  "Decide about a call of the agent at point, or of a child of its."
  (interactive)
  (sojourn-decide-about (sojourn-agents--at-point)))

(defun sojourn-agents-answer-call ()
  "Hand in, by hand, the result of a pending call of the agent at point."
  (interactive)
  (sojourn-answer-call (sojourn-agents--at-point)))

(defun sojourn-agents-stop ()
  "Stop the run of the agent at point."
  (interactive)
  (sojourn-stop (sojourn-agents--at-point)))

(defun sojourn-agents-resume ()
  "Carry on the agent at point from where it stands."
  (interactive)
  (sojourn-resume (sojourn-agents--at-point)))

(defun sojourn-agents-fork ()
  "Make a new agent with a copy of the conversation at point."
  (interactive)
  (sojourn-request 'agent/fork (list :agentId (sojourn-agents--at-point)) :mutating t
                   :success (lambda (agent) (sojourn-chat-open (plist-get agent :agentId)))))

(defun sojourn-agents-title (title)
  "Give the agent at point the TITLE; an empty one takes it away."
  (interactive (list (read-string "Title: " (sojourn-get (sojourn-agent (sojourn-agents--at-point)) :title))))
  (sojourn-request 'agent/update
                   (list :agentId (sojourn-agents--at-point)
                         :title (if (string-empty-p title) :null title))
                   :mutating t))

(defun sojourn-agents-delete ()
  "Delete the agent at point and everything of it, after a question."
  (interactive)
  (let* ((id (sojourn-agents--at-point))
         (active (sojourn-agent-active-p (sojourn-agent id))))
    (when (yes-or-no-p (format "Delete %s and all it has said%s? " id
                               (if active ", and stop its run" "")))
      (sojourn-request 'agent/delete
                       (append (list :agentId id) (when active '(:force t))) :mutating t))))

;;; Stopping and carrying on

(defun sojourn-stop (agent-id)
  "Stop the run of the agent AGENT-ID, its tools and its children."
  (interactive (list (sojourn-read-agent "Stop")))
  (sojourn-request 'agent/stop (list :agentId agent-id) :mutating t
                   :success (lambda (answer)
                              (unless (sojourn-true-p (plist-get answer :stopped))
                                (message "Sojourn: nothing was running")))))

(defun sojourn-resume (agent-id)
  "Carry on the agent AGENT-ID from where its conversation stands."
  (interactive (list (sojourn-read-agent "Resume")))
  (sojourn-request 'agent/resume (list :agentId agent-id :wait :json-false) :mutating t))

;;; The mode line

(defvar sojourn-mode-line-string "" "The piece of the mode line.")
(put 'sojourn-mode-line-string 'risky-local-variable t)

(defvar sojourn-mode-line-map
  (let ((map (make-sparse-keymap)))
    (define-key map [mode-line mouse-1] #'sojourn-list)
    map)
  "Keys of the piece of the mode line.")

(defun sojourn-mode-line--text ()
  "What the mode line says of all agents."
  (let* ((all (cl-remove-if (lambda (agent) (sojourn-get agent :parent)) (sojourn-agents)))
         (need (cl-count-if #'sojourn-agent-needs-you-p all))
         (busy (cl-count-if (lambda (agent) (equal (plist-get agent :state) "running")) all)))
    (if (not (eq sojourn--state 'ready))
        (propertize " Soj[-]" 'face 'sojourn-quiet)
      (concat " Soj"
              (if (> (+ need busy) 0) "[" "")
              (if (> busy 0) (propertize (format "%d>" busy) 'face 'sojourn-running) "")
              (if (> need 0) (propertize (format "%d!" need) 'face 'sojourn-needs-you) "")
              (if (> (+ need busy) 0) "]" "")))))

(defun sojourn-mode-line--update ()
  "Say in the mode line what is known."
  (setq sojourn-mode-line-string
        (propertize (sojourn-mode-line--text)
                    'help-echo "Sojourn: agents at work (>), agents that need you (!)
mouse-1: show the agents"
                    'local-map sojourn-mode-line-map
                    'mouse-face 'mode-line-highlight))
  (force-mode-line-update t))

;;;###autoload
(define-minor-mode sojourn-mode-line-mode
  "Show in the mode line how many agents work (>) and how many need you (!)."
  :global t
  :group 'sojourn
  (setq global-mode-string (or (delq 'sojourn-mode-line-string global-mode-string) '("")))
  (when sojourn-mode-line-mode
    (setq global-mode-string (append global-mode-string '(sojourn-mode-line-string)))
    (sojourn-connect))
  (sojourn-mode-line--update))

;;; A word when somebody needs you

(defun sojourn-notify-default (agent text)
  "Say TEXT about AGENT in the echo area, and on the desktop if wanted."
  (message "%s" (propertize text 'face 'sojourn-needs-you))
  (when (and sojourn-notify-desktop (fboundp 'notifications-notify))
    (ignore-errors
      (notifications-notify :title (format "Sojourn: %s" (plist-get agent :agentId)) :body text))))

(defun sojourn-agents--news (old new)
  "Why the user may want to know that OLD became NEW: (KIND . TEXT) or nil."
  (let ((name (sojourn-agent-name new))
        (before (plist-get old :state))
        (now (plist-get new :state)))
    (cond
     ((or (> (or (plist-get new :approvals) 0) (or (plist-get old :approvals) 0))
          (and (sojourn-agent-asks-p new) (not (sojourn-agent-asks-p old))))
      (cons 'approval (format "%s asks for your approval (M-x sojourn-decide)" name)))
     ((equal before now) nil)
     ((equal now "paused")
      (cons 'paused (format "%s is paused; it waits for %s" name (sojourn-agent-waits-for new))))
     ((equal now "interrupted")
      (cons 'interrupted (format "%s was interrupted (M-x sojourn-resume)" name)))
     ((and (equal now "idle") (member before '("running" "waiting")))
      (cons 'done (format "%s has finished" name))))))

(defun sojourn-agents--notify (old new)
  "Tell the user what it means that OLD became NEW, unless it is on the screen."
  (let ((news (and old new
                   (not (sojourn-get new :parent))
                   (sojourn-agents--news old new))))
    (when (and news (memq (car news) sojourn-notify)
               (not (sojourn-chat-visible-p (plist-get new :agentId))))
      (funcall sojourn-notify-function new (cdr news)))))

(add-hook 'sojourn-agents-changed-functions #'sojourn-agents--notify)

(provide 'sojourn-agents)
;;; sojourn-agents.el ends here
