;;; sojourn.el --- Agents that live in a daemon  -*- lexical-binding: t; -*-

;; Author: The Sojourn authors
;; Version: 0.1.0
;; Package-Requires: ((emacs "28.1"))
;; Keywords: tools, convenience, processes
;; SPDX-License-Identifier: MIT

;; This file is not part of GNU Emacs.

;;; Commentary:

;; Sojourn is a daemon for LLM agents, built like a language server.  Agents
;; live in the daemon: they go on while Emacs is closed, survive crashes,
;; and can be followed from several editors at once.
;;
;; M-x sojourn opens a chat with an agent, M-x sojourn-list shows all of
;; them.  C-h m in either tells the keys.  To reach the rest by a key:
;;
;;     (global-set-key (kbd "C-c j") sojourn-prefix-map)
;;     (sojourn-mode-line-mode)
;;
;; M-x sojourn-health says whether everything works.

;;; Code:

(require 'cl-lib)
(require 'project)
(require 'sojourn-agents)
(require 'sojourn-approvals)
(require 'sojourn-chat)
(require 'sojourn-documents)
(require 'sojourn-draw)
(require 'sojourn-health)
(require 'sojourn-rpc)
(require 'sojourn-tools)

(defcustom sojourn-agent-config '(:tools ["*"])
  "The config of agents that are made here, a plist as of the protocol.
For example (:model \"gpt\" :tools [\"*\"] :systemPrompt \"Be brief.\")."
  :type 'plist
  :group 'sojourn)

;;;###autoload
(defun sojourn (&optional ask)
  "Go to the chat that was used last; with ASK (\\[universal-argument]), name an agent.
Without any chat, name one; a name that no agent has makes a new one."
  (interactive "P")
  (sojourn-connect)
  (if (and (not ask) (sojourn--chat-p sojourn--last-chat))
      (progn (pop-to-buffer sojourn--last-chat)
             (goto-char (point-max)))
    (sojourn-chat (sojourn-read-agent "Agent"))))

;;;###autoload
(defun sojourn-chat (agent-id)
  "Open the chat with the agent AGENT-ID; an unknown one is made."
  (interactive (progn (sojourn-connect) (list (sojourn-read-agent "Chat with"))))
  (if (or (sojourn-agent agent-id) (sojourn-chat-buffer agent-id))
      (sojourn-chat-open agent-id)
    (let ((here (current-buffer)))
      (sojourn-request 'agent/get (list :agentId agent-id)
                       :success (lambda (_) (sojourn-chat-open agent-id))
                       :failure (lambda (_)
                                  (when (buffer-live-p here)
                                    (with-current-buffer here (sojourn-new agent-id))))))))

;;;###autoload
(defun sojourn-new (&optional agent-id preset directory)
  "Make an agent and open its chat.
AGENT-ID is its name; the daemon makes one when it is empty or nil.
PRESET names a section of the daemon's config, asked for with a prefix
argument, as is the DIRECTORY, which is else the project's."
  (interactive (list (read-string "Name of the new agent (may be empty): ")
                     (when current-prefix-arg (read-string "Preset (may be empty): "))
                     (when current-prefix-arg (read-directory-name "Directory: "))))
  (let ((config (append (if (member preset '(nil "")) sojourn-agent-config (list :preset preset))
                        (list :cwd (expand-file-name (or directory (sojourn--directory)))))))
    (sojourn-request 'agent/create
                     (append (unless (member agent-id '(nil "")) (list :agentId agent-id))
                             (list :config config))
                     :mutating t
                     :success (lambda (agent)
                                (sojourn-agents--put (plist-get agent :agentId) agent)
                                (sojourn-chat-open (plist-get agent :agentId))))))

(defun sojourn--directory ()
  "The directory that a new agent works in: the project's, or this one."
  (let ((project (project-current)))
    (directory-file-name (expand-file-name (if project (project-root project) default-directory)))))

(defun sojourn--chat-p (buffer)
  "Whether BUFFER is a chat."
  (and (buffer-live-p buffer) (buffer-local-value 'sojourn-chat--id buffer) t))

(defun sojourn--target (ask)
  "The id of the agent that is spoken to; ASK, or no chat yet: ask for it."
  (if (and (not ask) (sojourn--chat-p sojourn--last-chat))
      (buffer-local-value 'sojourn-chat--id sojourn--last-chat)
    (sojourn-read-agent "Agent")))

;;;###autoload
(defun sojourn-prompt (agent-id text &optional start end)
  "Say TEXT to the agent AGENT-ID, with the region from START to END, if active.
It goes to the chat that was used last; a prefix argument asks."
  (interactive
   (progn
     (sojourn-connect)
     (let ((id (sojourn--target current-prefix-arg)))
       (list id
             (read-string (format "Say to %s%s: " id (if (use-region-p) " about the region" "")))
             (when (use-region-p) (region-beginning))
             (when (use-region-p) (region-end))))))
  (let ((contexts (when start (list (sojourn-chat-context (current-buffer) start end)))))
    (sojourn-chat-open agent-id t)
    (display-buffer (sojourn-chat-buffer agent-id))
    (sojourn-chat-say agent-id text contexts)))

;;;###autoload
(defun sojourn-add-region (start end)
  "Add the text from START to END to what you send next in the last chat."
  (interactive "r")
  (sojourn--add (sojourn-chat-context (current-buffer) start end)))

;;;###autoload
(defun sojourn-add-buffer ()
  "Add this buffer to what you send next in the last chat."
  (interactive)
  (sojourn--add (save-restriction
                  (widen)
                  (sojourn-chat-context (current-buffer) (point-min) (point-max)))))

(defun sojourn--add (context)
  "Add CONTEXT to what is sent next in the last chat."
  (let ((id (sojourn--target current-prefix-arg)))
    (with-current-buffer (sojourn-chat-open id t)
      (sojourn-chat-add context))
    (message "Sojourn: %s goes to %s with your next message" (plist-get context :label) id)))

;;;###autoload (autoload 'sojourn-prefix-map "sojourn" nil nil 'keymap)
(defvar sojourn-prefix-map
  (let ((map (make-sparse-keymap)))
    (define-key map "j" #'sojourn)
    (define-key map "l" #'sojourn-list)
    (define-key map "+" #'sojourn-new)
    (define-key map "p" #'sojourn-prompt)
    (define-key map "r" #'sojourn-add-region)
    (define-key map "b" #'sojourn-add-buffer)
    (define-key map "y" #'sojourn-decide)
    (define-key map "s" #'sojourn-stop)
    (define-key map "?" #'sojourn-health)
    map)
  "Keys for Sojourn, to be bound to a prefix of your own.")
(fset 'sojourn-prefix-map sojourn-prefix-map)

(provide 'sojourn)
;;; sojourn.el ends here
