;;; sojourn-print.el --- What a piece of a chat looks like  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: MIT

;; This file is not part of GNU Emacs.

;;; Commentary:

;; A chat consists of nodes: messages, calls, notes.  Here one is inserted
;; at point as it is now, with its buttons.  Where nodes are and when they
;; are printed anew is the business of sojourn-draw.el.

;;; Code:

(require 'button)
(require 'cl-lib)
(require 'sojourn-approvals)
(require 'sojourn-markdown)
(require 'sojourn-rpc)

(defcustom sojourn-output-lines 6
  "How many lines of a tool's output are shown before you unfold it."
  :type 'integer
  :group 'sojourn)

(defface sojourn-user '((t :inherit font-lock-keyword-face :weight bold))
  "For the name above what you say."
  :group 'sojourn)

(defface sojourn-assistant '((t :inherit font-lock-function-name-face :weight bold))
  "For the name above what the model says."
  :group 'sojourn)

(defface sojourn-tool '((t :inherit font-lock-type-face))
  "For the names of tools."
  :group 'sojourn)

(defface sojourn-reasoning '((t :inherit (italic shadow)))
  "For what the model thinks."
  :group 'sojourn)

(cl-defstruct (sojourn-node (:copier nil))
  "A piece of a chat: KIND is one of `user', `assistant', `call', `note'."
  kind path id
  parts                                 ; of an assistant: alist of number and (KIND . TEXT)
  message                               ; the whole message, once it is known
  text                                  ; of a note
  client                                ; of a user message: who caused it
  name args status output failed pending progress approval late ; of a call
  open)                                 ; whether what can be folded is unfolded

(defvar-local sojourn-print-again-function #'ignore
  "Called with a node that was folded or unfolded, to print it anew.")

(defvar-local sojourn-print-bottom-function #'ignore
  "Called to insert what stands below all nodes.")

(defun sojourn-print-button (label help action)
  "A button with LABEL that calls ACTION without arguments; HELP says what it does."
  (make-text-button (copy-sequence label) nil 'follow-link t 'help-echo help 'face 'button
                    'action (lambda (_button) (funcall action))))

(defun sojourn-print-node (node)
  "Insert NODE."
  (let ((start (point))
        (depth (length (sojourn-node-path node))))
    (pcase (sojourn-node-kind node)
      ('user (sojourn-print--user node))
      ('assistant (sojourn-print--assistant node))
      ('call (sojourn-print--call node))
      ('note (insert (sojourn-node-text node) "\n"))
      ('bottom (funcall sojourn-print-bottom-function)))
    (when (> depth 0)
      (let ((prefix (propertize (apply #'concat (make-list depth "  │ ")) 'face 'sojourn-quiet)))
        (add-text-properties start (point) (list 'line-prefix prefix 'wrap-prefix prefix))))
    (add-text-properties start (point) '(read-only t front-sticky (read-only) rear-nonsticky t))))

(defun sojourn-print--user (node)
  "Insert NODE, something that was said to the agent."
  (let ((client (sojourn-node-client node)))
    (insert "\n"
            (propertize (pcase (sojourn-node-name node)
                          ("system" "System")
                          ("summary" "Summary of what came before")
                          (_ (cond ((sojourn-node-path node) "Task") (t "You"))))
                        'face 'sojourn-user)
            (if (and client (not (equal client sojourn-client-id)))
                (propertize (format "  from %s" client) 'face 'sojourn-quiet)
              "")
            "\n")
    (seq-do #'sojourn-print--part (plist-get (sojourn-node-message node) :content))))

(defun sojourn-print--part (part)
  "Insert PART of a message that was said to the agent."
  (if (equal (plist-get part :type) "text")
      (insert (plist-get part :text) "\n")
    (insert (propertize (format "[%s]" (or (sojourn-get part :uri) (sojourn-get part :mimeType)
                                           (plist-get part :type)))
                        'face 'link)
            "\n")))

(defun sojourn-print--assistant (node)
  "Insert NODE, something that the model says."
  (let ((pieces (sojourn-print--pieces node)))
    (when (or pieces (null (sojourn-node-message node)))
      (insert "\n" (propertize "Agent" 'face 'sojourn-assistant) "\n"))
    (when (and (null pieces) (null (sojourn-node-message node)))
      (insert (propertize "…\n" 'face 'sojourn-quiet)))
    (pcase-dolist (`(,kind . ,text) pieces)
      (pcase kind
        ("reasoning" (sojourn-print--reasoning node text))
        ("toolArguments" (insert (propertize (concat "writes a call: " (sojourn-print--line text) "\n")
                                             'face 'sojourn-quiet)))
        ("refusal" (insert (propertize text 'face 'warning) "\n"))
        (_ (insert (sojourn-markdown (string-trim-right text "\n+")) "\n"))))))

(defun sojourn-print--pieces (node)
  "What NODE, of the model, says: a list of (KIND . TEXT)."
  (if (null (sojourn-node-message node))
      (mapcar #'cdr (sort (copy-sequence (sojourn-node-parts node))
                          (lambda (one other) (< (car one) (car other)))))
    (delq nil
          (mapcar (lambda (part)
                    (let ((text (sojourn-get part :text)))
                      (pcase (plist-get part :type)
                        ("toolCall" nil)
                        ((or "text" "reasoning" "refusal")
                         (unless (string-empty-p (or text "")) (cons (plist-get part :type) text)))
                        (type (cons "text" (format "[%s]" (or (sojourn-get part :uri)
                                                              (sojourn-get part :mimeType) type)))))))
                  (plist-get (sojourn-node-message node) :content)))))

(defun sojourn-print--reasoning (node text)
  "Insert TEXT, reasoning of NODE, or only its head when it is folded."
  (let ((open (sojourn-node-open node)))
    (insert (sojourn-print-button
             (format "%s Reasoning, %d words" (if open "▾" "▸") (length (split-string text)))
             "Fold or unfold"
             (sojourn-print--toggler node))
            "\n")
    (when open (insert (propertize text 'face 'sojourn-reasoning) "\n"))))

(defun sojourn-print--toggler (node)
  "A function that folds or unfolds NODE."
  (lambda ()
    (setf (sojourn-node-open node) (not (sojourn-node-open node)))
    (funcall sojourn-print-again-function node)))

(defun sojourn-print--call (node)
  "Insert NODE, a call of a tool."
  (let ((approval (sojourn-node-approval node))
        (args (sojourn-node-args node)))
    (insert "• " (propertize (or (sojourn-node-name node) "call") 'face 'sojourn-tool) " "
            (propertize (if (or (null args) (eq args 'none)) ""
                          (sojourn-print--line (if (stringp args) args (sojourn-encode args))))
                        'face 'sojourn-quiet)
            "  " (sojourn-print--call-status node) "\n")
    (when (and approval (eq (sojourn-node-status node) 'approval))
      (sojourn-print--choices approval))
    (when (sojourn-node-output node) (sojourn-print--output node (sojourn-node-output node)))
    (when (sojourn-node-pending node) (sojourn-print--pending node))
    (when (sojourn-node-late node)
      (insert (propertize "  later: " 'face 'sojourn-quiet))
      (sojourn-print--output node (sojourn-node-late node)))))

(defun sojourn-print--call-status (node)
  "How the call of NODE is, in words."
  (let ((decision (sojourn-get (sojourn-node-approval node) :decision)))
    (concat
     (cond ((eq (sojourn-node-status node) 'approval)
            (propertize "waits for your approval" 'face 'sojourn-needs-you))
           ((sojourn-node-pending node)
            (propertize "its result will follow" 'face 'sojourn-needs-you))
           ((eq (sojourn-node-status node) 'running)
            (propertize (or (sojourn-node-progress node) "running") 'face 'sojourn-running))
           ((eq (sojourn-node-status node) 'cut) (propertize "✗ interrupted" 'face 'error))
           ((sojourn-node-failed node) (propertize "✗" 'face 'error))
           ((memq (sojourn-node-status node) '(ended resolved)) (propertize "✓" 'face 'sojourn-running))
           (t ""))
     (if decision
         (propertize (format "  %s by %s" (sojourn-print--past (plist-get decision :decision))
                             (plist-get decision :by))
                     'face 'sojourn-quiet)
       ""))))

(defun sojourn-print--past (decision)
  "DECISION, the protocol's word, as what somebody has done."
  (or (cdr (assoc decision '(("approve" . "approved") ("deny" . "refused") ("edit" . "changed and approved")
                             ("answer" . "answered") ("abort" . "refused and stopped"))))
      decision))

(defun sojourn-print--choices (approval)
  "Insert a button for each way to decide about APPROVAL."
  (insert " ")
  (pcase-dolist (`(,label ,help ,action)
                 `(("[look]" "Show the arguments, or the diff" ,#'sojourn-approval-show)
                   ("[yes]" "Run the call" ,#'sojourn-approve)
                   ("[no]" "Refuse the call"
                    ,(lambda (one) (sojourn-deny one (read-string "Why not (may be empty): "))))
                   ("[edit]" "Change the arguments, then run it" ,#'sojourn-edit-arguments)
                   ("[answer]" "Write the result yourself"
                    ,(lambda (one) (sojourn-answer one (read-string "The result: "))))
                   ("[always]" "Run it, and later calls of this tool of this agent"
                    ,#'sojourn-approve-always)
                   ("[stop]" "Refuse it and stop the run" ,#'sojourn-abort)))
    (insert " " (sojourn-print-button label help (lambda () (funcall action approval)))))
  (insert "\n"))

(defun sojourn-print--pending (node)
  "Insert a button to hand in the result of the call of NODE."
  (let ((call (list :callId (sojourn-node-id node) :toolName (sojourn-node-name node))))
    (unless (sojourn-node-path node)
      (insert "  " (sojourn-print-button "[hand in its result]" "Write the result, or say that it failed"
                                        (lambda () (sojourn-answer-call (sojourn-print--agent-id) call)))
              "\n"))))

(defvar sojourn-chat--id)

(defun sojourn-print--agent-id ()
  "The id of this chat's agent."
  sojourn-chat--id)

(defun sojourn-print--output (node text)
  "Insert TEXT, what the call of NODE gave, or its first lines."
  (let* ((lines (split-string (string-trim-right text "\n+") "\n"))
         (many (> (length lines) sojourn-output-lines))
         (shown (if (and many (not (sojourn-node-open node)))
                    (seq-take lines sojourn-output-lines)
                  lines))
         (face (if (sojourn-node-failed node) 'error 'default)))
    (unless (bolp) (insert (propertize (pop shown) 'face face) "\n"))
    (dolist (line shown) (insert "    " (propertize line 'face face) "\n"))
    (when many
      (insert "    "
              (sojourn-print-button (if (sojourn-node-open node) "[less]"
                                     (format "[%d lines more]" (- (length lines) sojourn-output-lines)))
                                   "Fold or unfold" (sojourn-print--toggler node))
              "\n"))))

(defun sojourn-print--line (text)
  "TEXT in one line that is not too long."
  (truncate-string-to-width (replace-regexp-in-string "[\n\t ]+" " " text) 70 nil nil "…"))

(provide 'sojourn-print)
;;; sojourn-print.el ends here
