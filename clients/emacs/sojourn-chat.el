;;; sojourn-chat.el --- Talking with an agent  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: MIT

;; This file is not part of GNU Emacs.

;;; Commentary:

;; A chat buffer follows one agent: what was said is replayed, what is
;; being said is streamed, and below is room for what you want to say.
;;
;; The buffer keeps the number of the last event that it has drawn.
;; Numbers have no gaps, so after a lost connection it attaches from there:
;; nothing twice, nothing missing.  Everything is drawn from events, by
;; `sojourn-event-draw', whether they are old or new.

;;; Code:

(require 'cl-lib)
(require 'ring)
(require 'sojourn-agents)
(require 'sojourn-approvals)
(require 'sojourn-context)
(require 'sojourn-draw)
(require 'sojourn-events)
(require 'sojourn-rpc)

(defcustom sojourn-replay-limit 5000
  "How many events a chat replays when it is opened.
What is older can be asked for with a button on top."
  :type 'integer
  :group 'sojourn)

(defvar sojourn-chat-attached-hook nil
  "Hook run in a chat buffer after it has attached to its agent.")

(defvar sojourn--chats (make-hash-table :test #'equal) "Chat buffers by agent id.")

(defvar sojourn--last-chat nil "The chat buffer that was used last.")

(defvar-local sojourn-chat--id nil "The id of the chat's agent.")

(defvar-local sojourn-chat--seq nil "The number of the last event that was drawn.")

(defvar-local sojourn-chat--store nil "The store that `sojourn-chat--seq' counts in.")

(defvar-local sojourn-chat--replay-end 0 "The number of the last event that is replayed.")

(defvar-local sojourn-chat--streaming nil "What was being streamed where the replay ends.")

(defvar-local sojourn-chat--attaching nil "Non-nil while an attach is not answered.")

(defvar-local sojourn-chat--held nil
  "Events that wait for a snapshot, newest first, or the symbol `none'.")

(defvar-local sojourn-chat--hole nil "After which event something was missing.")

(defvar-local sojourn-chat--history nil "A ring of what was sent.")

(defvar-local sojourn-chat--history-index nil "Where in the history the input is.")

;;; The mode

(defvar sojourn-chat-mode-map
  (let ((map (make-sparse-keymap)))
    (define-key map (kbd "RET") #'sojourn-chat-return)
    (define-key map (kbd "C-j") #'newline)
    (define-key map (kbd "C-c C-c") #'sojourn-chat-send)
    (define-key map (kbd "C-c C-n") #'sojourn-chat-push)
    (define-key map (kbd "C-c C-k") #'sojourn-chat-stop)
    (define-key map (kbd "C-c C-r") #'sojourn-chat-resume)
    (define-key map (kbd "C-c C-y") #'sojourn-chat-decide)
    (define-key map (kbd "C-c C-p") #'sojourn-chat-answer-call)
    (define-key map (kbd "C-c C-f") #'sojourn-chat-add-file)
    (define-key map (kbd "C-c C-b") #'sojourn-chat-add-buffer)
    (define-key map (kbd "C-c C-d") #'sojourn-chat-drop-context)
    (define-key map (kbd "C-c C-t") #'sojourn-chat-toggle-reasoning)
    (define-key map (kbd "C-c C-l") #'sojourn-list)
    (define-key map (kbd "TAB") #'forward-button)
    (define-key map (kbd "<backtab>") #'backward-button)
    (define-key map (kbd "M-p") #'sojourn-chat-previous-input)
    (define-key map (kbd "M-n") #'sojourn-chat-next-input)
    map)
  "Keys of a chat.")

(easy-menu-define sojourn-chat-menu sojourn-chat-mode-map "Menu of a chat."
  '("Sojourn"
    ["Send" sojourn-chat-send]
    ["Leave a Note for the Agent" sojourn-chat-push]
    ["Stop" sojourn-chat-stop]
    ["Resume" sojourn-chat-resume]
    "---"
    ["Decide About a Call" sojourn-chat-decide]
    ["Hand In a Result" sojourn-chat-answer-call]
    "---"
    ["Add a File" sojourn-chat-add-file]
    ["Add a Buffer" sojourn-chat-add-buffer]
    ["Drop What Was Added" sojourn-chat-drop-context]
    "---"
    ["Agents" sojourn-list]
    ["Health" sojourn-health]))

(define-derived-mode sojourn-chat-mode nil "Sojourn-Chat"
  "A chat with an agent of the Sojourn daemon.

Write at the end.  \\<sojourn-chat-mode-map>\\[sojourn-chat-return] sends, \\[newline] begins a new line;
\\[sojourn-chat-previous-input] and \\[sojourn-chat-next-input] bring back what you sent before.  While the
agent is at work, what you send is read before it thinks again.
\\[sojourn-chat-push] leaves a note that starts no run.

\\[sojourn-chat-stop] stops the run, \\[sojourn-chat-resume] carries on from where the
conversation stands, e.g. after a result was handed in or after a crash.

\\[sojourn-chat-decide] decides about a call that waits for your approval,
\\[sojourn-chat-answer-call] hands in the result of a pending call.

\\[sojourn-chat-add-file] and \\[sojourn-chat-add-buffer] add a file or a buffer to what you send
next (elsewhere: \\[sojourn-add-region]), \\[sojourn-chat-drop-context] drops them again.

\\[forward-button] goes to the next button, RET presses it: they unfold reasoning
and long output.  \\[sojourn-chat-toggle-reasoning] folds or unfolds all reasoning.

\\[sojourn-list] shows all agents.

\\{sojourn-chat-mode-map}"
  (setq-local scroll-conservatively 1000)
  (setq-local truncate-lines nil)
  (setq-local word-wrap t)
  (setq-local revert-buffer-function (lambda (&rest _) (sojourn-chat--restart 0)))
  (setq-local bookmark-make-record-function #'sojourn-chat--bookmark)
  (setq header-line-format '(:eval (sojourn-chat--header)))
  (setq mode-line-process '(:eval (sojourn-chat--mode-line)))
  (setq sojourn-chat--history (make-ring 100))
  (buffer-disable-undo)
  (sojourn-draw-setup #'sojourn-chat--status)
  (buffer-enable-undo)
  (add-hook 'kill-buffer-hook #'sojourn-chat--killed nil t)
  (add-hook 'window-selection-change-functions #'sojourn-chat--selected nil t))

(defun sojourn-chat--agent ()
  "The agent of this chat as it is known, a plist."
  (sojourn-agent sojourn-chat--id))

(defun sojourn-chat--header ()
  "What stands above the chat."
  (let* ((agent (sojourn-chat--agent))
         (usage (plist-get agent :usage))
         (cost (sojourn-get usage :cost)))
    (concat " " (if agent (sojourn-agent-name agent) (or sojourn-chat--id ""))
            (when-let ((model (sojourn-get agent :config :model))) (concat "   " model))
            (when usage
              (format "   %s tokens" (+ (or (sojourn-get usage :inputTokens) 0)
                                        (or (sojourn-get usage :outputTokens) 0))))
            (when cost (format "   cost %.4f" cost))
            (when-let ((directory (sojourn-get agent :config :cwd)))
              (concat "   " (abbreviate-file-name directory))))))

(defun sojourn-chat--mode-line ()
  "The agent's state, for the mode line of its chat."
  (let ((agent (sojourn-chat--agent)))
    (if (sojourn-ready-p)
        (concat ":" (propertize (or (plist-get agent :state) "?")
                                'face (if (and agent (sojourn-agent-needs-you-p agent))
                                          'sojourn-needs-you
                                        'sojourn-quiet)))
      (sojourn-connection-words))))

(defun sojourn-chat--status ()
  "The line above the room for input."
  (let* ((agent (sojourn-chat--agent))
         (state (plist-get agent :state)))
    (cond
     ((eq sojourn-chat--seq 'gone) (propertize "This agent was deleted" 'face 'sojourn-needs-you))
     ((not (sojourn-ready-p))
      (propertize "Not connected; what you send waits" 'face 'sojourn-needs-you))
     ((null agent) (propertize "…" 'face 'sojourn-quiet))
     ((sojourn-agent-needs-you-p agent)
      (propertize (format "%s: waits for %s  (%s)" state (sojourn-agent-waits-for agent)
                          (sojourn-chat--advice agent))
                  'face 'sojourn-needs-you))
     ((equal state "idle")
      (let ((waits (sojourn-agent-waits-for agent)))
        (propertize (if (string-empty-p waits) "idle" (format "idle: waits for %s" waits))
                    'face 'sojourn-quiet)))
     (t (propertize (format "%s, C-c C-k stops it" state) 'face 'sojourn-running)))))

(defun sojourn-chat--advice (agent)
  "Which keys help AGENT on."
  (cond ((sojourn-agent-asks-p agent) "C-c C-y decides")
        ((equal (plist-get agent :state) "interrupted") "C-c C-r resumes")
        (t "C-c C-p hands in a result, C-c C-r resumes")))

;;; Opening, leaving

(defun sojourn-chat-open (agent-id &optional quiet)
  "Show the chat with the agent AGENT-ID; with QUIET, only make its buffer.
Returns the buffer."
  (sojourn-connect)
  (let ((buffer (sojourn-chat-buffer agent-id)))
    (unless buffer
      (setq buffer (generate-new-buffer (format "*sojourn: %s*" agent-id)))
      (puthash agent-id buffer sojourn--chats)
      (with-current-buffer buffer
        (sojourn-chat-mode)
        (setq sojourn-chat--id agent-id)
        (when-let ((directory (sojourn-get (sojourn-chat--agent) :config :cwd)))
          (setq default-directory (file-name-as-directory directory)))
        (sojourn-chat--restart nil)))
    (setq sojourn--last-chat buffer)
    (unless quiet
      (pop-to-buffer buffer)
      (goto-char (point-max)))
    buffer))

(defun sojourn-chat-buffer (agent-id)
  "The chat with the agent AGENT-ID, nil when there is none."
  (let ((buffer (gethash agent-id sojourn--chats)))
    (and (buffer-live-p buffer) buffer)))

(defun sojourn-chat-visible-p (agent-id)
  "Whether the chat with the agent AGENT-ID is on the screen."
  (let ((buffer (sojourn-chat-buffer agent-id)))
    (and buffer (get-buffer-window buffer 'visible) t)))

(defun sojourn-chat-ids ()
  "The ids of the agents whose chats are open."
  (cl-remove-if-not #'sojourn-chat-buffer (hash-table-keys sojourn--chats)))

(defmacro sojourn-chat--with (agent-id &rest body)
  "In the chat with the agent AGENT-ID, if there is one, do BODY."
  (declare (indent 1) (debug t))
  (let ((buffer (make-symbol "buffer")))
    `(when-let ((,buffer (sojourn-chat-buffer ,agent-id)))
       (with-current-buffer ,buffer ,@body))))

(defun sojourn-chat--killed ()
  "The chat buffer is being killed: events are no longer needed."
  (remhash sojourn-chat--id sojourn--chats)
  (when (sojourn-ready-p)
    (sojourn-request 'agent/detach (list :agentId sojourn-chat--id) :bound t :failure #'ignore)))

(defun sojourn-chat--selected (window)
  "WINDOW was selected: remember the chat in it."
  (setq sojourn--last-chat (window-buffer window)))

(defun sojourn-chat--bookmark ()
  "A bookmark of this chat."
  `(,(format "Sojourn: %s" sojourn-chat--id)
    (agent-id . ,sojourn-chat--id)
    (handler . sojourn-chat-open-bookmark)))

;;;###autoload
(defun sojourn-chat-open-bookmark (bookmark)
  "Open the chat that BOOKMARK leads to."
  (set-buffer (sojourn-chat-open (alist-get 'agent-id (cdr bookmark)) t)))

;;; Attaching

(defun sojourn-chat--restart (after)
  "Draw everything anew, from the event AFTER on; nil for the newest ones."
  (sojourn-draw-clear)
  (setq sojourn-chat--seq nil
        sojourn-chat--held 'none)
  (if after
      (sojourn-chat--attach after)
    (let ((id sojourn-chat--id))
      (sojourn-request
       'agent/get (list :agentId id) :bound t
       :failure (lambda (trouble) (sojourn-chat--with id (sojourn-chat--not-attached trouble)))
       :success (lambda (agent)
                  (sojourn-chat--with id
                    (sojourn-chat--attach
                     (max 0 (- (plist-get agent :seq) sojourn-replay-limit)))))))))

(defun sojourn-chat--attach (after)
  "Ask for the events after the number AFTER."
  (let ((id sojourn-chat--id))
    (when (and (null sojourn-chat--seq) (> after 0)) (sojourn-chat--earlier))
    (setq sojourn-chat--seq after
          sojourn-chat--attaching t)
    (sojourn-request
     'agent/attach (list :agentId id :afterSeq after) :bound t
     :success (lambda (answer) (sojourn-chat--with id (sojourn-chat--attached answer)))
     :failure (lambda (trouble) (sojourn-chat--with id (sojourn-chat--not-attached trouble))))))

(defun sojourn-chat--attached (answer)
  "Take in the daemon's ANSWER to an attach."
  (setq sojourn-chat--attaching nil
        sojourn-chat--store (plist-get sojourn--server :storeId)
        sojourn-chat--replay-end (plist-get answer :seq)
        sojourn-chat--streaming (append (plist-get answer :streaming) nil))
  (sojourn-agents--put sojourn-chat--id (plist-get answer :agent))
  (when (equal (plist-get answer :mode) "snapshot")
    (sojourn-draw-clear)
    (setq sojourn-chat--seq sojourn-chat--replay-end
          sojourn-chat--held nil)
    (sojourn-chat--read-messages nil))
  (seq-do #'sojourn-approvals-note (plist-get answer :approvals))
  (sojourn-chat--after-replay)
  (sojourn-draw-status)
  (run-hooks 'sojourn-chat-attached-hook))

(defun sojourn-chat--not-attached (trouble)
  "Attaching failed for TROUBLE."
  (setq sojourn-chat--attaching nil)
  (pcase (sojourn-error-kind trouble)
    ("seqAhead" (sojourn-chat--restart 0))
    ("agentNotFound" (setq sojourn-chat--seq 'gone) (sojourn-draw-status))
    (_ (unless (eql (plist-get trouble :code) -1) (sojourn-show-error trouble)))))

(defun sojourn-chat--connected ()
  "Attach all chats over the new connection, from where they are."
  (dolist (id (sojourn-chat-ids))
    (sojourn-chat--with id
      (cond ((not (integerp sojourn-chat--seq)) (sojourn-chat--restart nil))
            ((not (equal sojourn-chat--store (plist-get sojourn--server :storeId)))
             (sojourn-chat--restart nil))
            ((consp sojourn-chat--held) (sojourn-chat--restart nil))
            (t (sojourn-chat--attach sojourn-chat--seq))))))

(defun sojourn-chat--disconnected ()
  "Say in all chats that there is no connection."
  (dolist (id (sojourn-chat-ids))
    (sojourn-chat--with id (sojourn-draw-status))))

(defun sojourn-chat--agent-changed (old new)
  "Show what is known of an agent in its chat: OLD became NEW."
  (sojourn-chat--with (plist-get (or new old) :agentId)
    (unless new (setq sojourn-chat--seq 'gone))
    (sojourn-draw-status)))

(add-hook 'sojourn-connected-hook #'sojourn-chat--connected)
(add-hook 'sojourn-disconnected-hook #'sojourn-chat--disconnected)
(add-hook 'sojourn-agents-changed-functions #'sojourn-chat--agent-changed)
(add-hook 'sojourn-notification-functions #'sojourn-chat--notified)

(defun sojourn-chat--read-messages (cursor)
  "Draw the stored messages from CURSOR on; events wait meanwhile."
  (let ((id sojourn-chat--id))
    (sojourn-request
     'agent/messages (append (list :agentId id :limit 200) (when cursor (list :cursor cursor)))
     :bound t
     :failure #'ignore
     :success
     (lambda (page)
       (sojourn-chat--with id
         (seq-do (lambda (message)
                   (sojourn-event-draw nil (list :type "messageEnd" :message message)))
                 (plist-get page :messages))
         (if (sojourn-get page :nextCursor)
             (sojourn-chat--read-messages (plist-get page :nextCursor))
           (let ((held (nreverse sojourn-chat--held)))
             (setq sojourn-chat--held 'none)
             (mapc #'sojourn-chat--event held))))))))

(defun sojourn-chat--earlier ()
  "Draw a button that brings what is older."
  (sojourn-draw-note nil "earlier"
                     (sojourn-print-button "[what was said before]" "Replay the whole conversation"
                                          (lambda () (sojourn-chat--restart 0)))))

;;; Events

(defun sojourn-chat--notified (method params)
  "Take in a notification METHOD with PARAMS, if it concerns a chat."
  (pcase method
    ('agent/event (sojourn-chat--with (plist-get params :agentId) (sojourn-chat--event params)))
    ('agent/resync (sojourn-chat--with (plist-get params :agentId)
                     (when (integerp sojourn-chat--seq)
                       (sojourn-chat--attach sojourn-chat--seq))))))

(defun sojourn-chat--event (params)
  "Draw the event in PARAMS if it is the next one."
  (let ((seq (sojourn-get params :seq))
        (event (plist-get params :event)))
    (cond
     ((listp sojourn-chat--held) (push params sojourn-chat--held))
     ((not (integerp sojourn-chat--seq)) nil)
     ((null seq) (unless sojourn-chat--attaching (sojourn-event-draw nil event)))
     ((= seq (1+ sojourn-chat--seq))
      (setq sojourn-chat--seq seq)
      (sojourn-event-draw nil event (sojourn-true-p (plist-get params :replayed))
                           (sojourn-get params :origin :clientId))
      (sojourn-chat--after-replay))
     ((and (> seq sojourn-chat--seq) (not sojourn-chat--attaching))
      (sojourn-chat--hole params seq)))))

(defun sojourn-chat--hole (params seq)
  "The event in PARAMS has the number SEQ, and those before it did not come.
Attach again from where the hole is; when that does not fill it, an
event cannot be read, and the chat goes on without it."
  (sojourn-log "%s: event %d came after %d" sojourn-chat--id seq sojourn-chat--seq)
  (if (not (eql sojourn-chat--hole sojourn-chat--seq))
      (sojourn-chat--attach (setq sojourn-chat--hole sojourn-chat--seq))
    (sojourn-draw-note nil nil (propertize "Something that was said here cannot be shown" 'face 'warning))
    (setq sojourn-chat--seq (1- seq))
    (sojourn-chat--event params)))

(defun sojourn-chat--after-replay ()
  "When the replay is over, draw what was being streamed by then."
  (when (and sojourn-chat--streaming (integerp sojourn-chat--seq)
             (>= sojourn-chat--seq sojourn-chat--replay-end))
    (dolist (piece sojourn-chat--streaming)
      (sojourn-draw-text (mapcar (lambda (step) (plist-get step :callId)) (plist-get piece :path))
                         (plist-get piece :messageId) (plist-get piece :part)
                         (plist-get piece :kind) nil (plist-get piece :text)))
    (setq sojourn-chat--streaming nil)))

;;; Saying something

(defun sojourn-chat-return ()
  "Press the button at point, or send what was written."
  (interactive)
  (cond ((button-at (point)) (push-button))
        ((< (point) (sojourn-draw-input-start)) (goto-char (point-max)))
        (t (sojourn-chat-send))))

(defun sojourn-chat-send ()
  "Send what was written, with what was added, to the agent.
While it is at work it reads this before it thinks again."
  (interactive)
  (let ((text (string-trim (sojourn-draw-input))))
    (when (and (string-empty-p text) (null (sojourn-draw-contexts)))
      (user-error "There is nothing to send"))
    (unless (string-empty-p text)
      (ring-insert sojourn-chat--history text)
      (setq sojourn-chat--history-index nil))
    (let ((contexts (sojourn-draw-contexts)))
      (sojourn-draw-set-input "")
      (sojourn-draw-set-contexts nil)
      (sojourn-chat-say sojourn-chat--id text contexts))))

(defun sojourn-chat-say (agent-id text &optional contexts)
  "Say TEXT to the agent AGENT-ID, with CONTEXTS, resource parts.
When the daemon refuses, they come back as the chat's input."
  (sojourn-request
   'agent/prompt
   (list :agentId agent-id :content (sojourn-context-content text contexts)
         :ifBusy "queue" :wait :json-false)
   :mutating t
   :failure (lambda (trouble)
              (sojourn-show-error trouble)
              (sojourn-chat--with agent-id
                (when (string-empty-p (sojourn-draw-input)) (sojourn-draw-set-input text))
                (sojourn-draw-set-contexts (append contexts (sojourn-draw-contexts)))))))

(defun sojourn-chat-push (text)
  "Leave TEXT in the agent's inbox: it is read in a run, and starts none."
  (interactive "sNote for the agent: ")
  (sojourn-request 'inbox/push (list :agentId sojourn-chat--id :content text) :mutating t))

(defun sojourn-chat-stop ()
  "Stop the agent's run, its tools and its children."
  (interactive)
  (sojourn-stop sojourn-chat--id))

(defun sojourn-chat-resume ()
  "Carry on from where the conversation stands."
  (interactive)
  (sojourn-resume sojourn-chat--id))

(defun sojourn-chat-decide ()
  "Decide about a call of this agent, or of its children, that waits for you."
  (interactive)
  (sojourn-decide-about sojourn-chat--id))

(defun sojourn-chat-answer-call ()
  "Hand in the result of a pending call of this agent, or say that it failed."
  (interactive)
  (sojourn-answer-call sojourn-chat--id))

(defun sojourn-chat-toggle-reasoning ()
  "Fold all reasoning in this chat, or unfold it."
  (interactive)
  (sojourn-draw-toggle-reasoning))

(defun sojourn-chat-previous-input ()
  "Bring back what was sent before."
  (interactive)
  (sojourn-chat--recall 1))

(defun sojourn-chat-next-input ()
  "Bring back what was sent after that."
  (interactive)
  (sojourn-chat--recall -1))

(defun sojourn-chat--recall (step)
  "Go STEP entries back in what was sent."
  (when (ring-empty-p sojourn-chat--history) (user-error "Nothing was sent yet"))
  (setq sojourn-chat--history-index
        (if sojourn-chat--history-index (+ sojourn-chat--history-index step) 0))
  (sojourn-draw-set-input (ring-ref sojourn-chat--history sojourn-chat--history-index))
  (goto-char (point-max)))

(provide 'sojourn-chat)
;;; sojourn-chat.el ends here
