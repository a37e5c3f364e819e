;;; sojourn-events.el --- Drawing an agent's events  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: MIT

;; This file is not part of GNU Emacs.

;;; Commentary:

;; What each event of an agent does to the chat in the current buffer,
;; whether it is old or new, the agent's own or one of its children.

;;; Code:

(require 'sojourn-approvals)
(require 'sojourn-draw)
(require 'sojourn-rpc)

(defun sojourn-event-draw (path event &optional replayed client)
  "Draw EVENT, which happened inside the calls PATH, outermost first.
REPLAYED is non-nil for old ones; CLIENT is who caused it."
  (let ((message (plist-get event :message))
        (call (plist-get event :toolCallId)))
    (pcase (plist-get event :type)
      ("nested" (sojourn-event-draw (append path (list call)) (plist-get event :event) replayed))
      ("messageStart" (when (equal (plist-get event :role) "assistant")
                        (sojourn-draw-begin path (plist-get event :messageId))))
      ("messageDelta" (sojourn-draw-text path (plist-get event :messageId) (plist-get event :part)
                                         (plist-get event :kind) (plist-get event :offset)
                                         (plist-get event :text)))
      ("messageReset" (sojourn-draw-reset path (plist-get event :messageId)))
      ("messageEnd" (sojourn-draw-message path message client))
      ("toolExecStart" (sojourn-draw-call path call (plist-get event :toolName) 'running
                                          :args (plist-get event :args)))
      ("toolExecProgress" (sojourn-draw-call path call nil nil
                                             :progress (sojourn-event--progress event)))
      ((or "toolExecEnd" "toolResolved")
       (sojourn-draw-result path call (plist-get event :toolName) (plist-get event :result)
                            (equal (plist-get event :type) "toolResolved")))
      ((or "approvalRequested" "approvalResolved")
       (sojourn-event--approval path (plist-get event :approval) replayed))
      ("warning" (sojourn-draw-note path nil (propertize (plist-get event :message) 'face 'warning)))
      ("inboxQueued" (sojourn-event--queued path (plist-get event :item)))
      ("inboxRead" (sojourn-draw-remove path (plist-get event :itemId)))
      ("agentUpdated" (when (sojourn-get event :messagesReplaced)
                        (sojourn-draw-note path nil "The conversation was replaced by another one")))
      ("agentEnd" (sojourn-event--ended path event)))))

(defun sojourn-event--progress (event)
  "What EVENT, a `toolExecProgress', says."
  (let ((fraction (sojourn-get event :fraction)))
    (concat (when fraction (format "%d%% " (round (* 100 fraction))))
            (or (sojourn-get event :text) ""))))

(defun sojourn-event--approval (path approval replayed)
  "Draw APPROVAL at its call inside PATH; show it unless it is REPLAYED."
  (let ((open (null (sojourn-get approval :decision))))
    (sojourn-draw-call path (plist-get approval :callId) (plist-get approval :toolName)
                       (if open 'approval 'decided)
                       :args (or (sojourn-get approval :decision :arguments) (plist-get approval :args))
                       :approval approval)
    (unless replayed
      (sojourn-approvals-note approval)
      (when (and open (get-buffer-window (current-buffer) 'visible))
        (sojourn-approval-announce approval)
        (message "%s asks to run %s (%s decides)" (plist-get approval :agentId) (plist-get approval :toolName)
                 (substitute-command-keys "\\<sojourn-chat-mode-map>\\[sojourn-chat-decide]"))))))

(defun sojourn-event--queued (path item)
  "Draw ITEM, which waits in the inbox of the agent at PATH."
  (sojourn-draw-note
   path (plist-get item :itemId)
   (concat (pcase (plist-get item :kind)
             ("message" "waits in the inbox: ")
             (_ (format "a result of %s has arrived: " (plist-get item :callId))))
           (truncate-string-to-width
            (or (sojourn-get item :error) (sojourn-content-text (plist-get item :content)))
            200 nil nil "…"))))

(defun sojourn-event--ended (path event)
  "Draw that the pass at PATH ended with EVENT."
  (sojourn-draw-end path)
  (let ((reason (plist-get event :reason)))
    (unless (equal reason "done")
      (sojourn-draw-note
       path nil
       (propertize
        (pcase reason
          ("failed" (format "failed: %s" (or (sojourn-get event :error :message) "no reason given")))
          ("maxTurns" "stopped: the turns of this run are used up")
          (_ reason))
        'face (if (equal reason "failed") 'error 'sojourn-quiet))))))

(provide 'sojourn-events)
;;; sojourn-events.el ends here
