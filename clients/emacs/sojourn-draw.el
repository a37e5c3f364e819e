;;; sojourn-draw.el --- What a chat looks like  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: MIT

;; This file is not part of GNU Emacs.

;;; Commentary:

;; A chat is a list of nodes (messages, calls, notes), each with the calls
;; that lead to its agent as its path: what a child says is drawn indented,
;; below the call that it works for.  A node is changed in memory and then
;; printed anew as a whole; what is streamed is printed a few times a
;; second.  Below the nodes are a line of state and the room for input,
;; which drawing never touches.

;;; Code:

(require 'cl-lib)
(require 'ewoc)
(require 'sojourn-print)
(require 'sojourn-rpc)

(defface sojourn-prompt '((t :inherit minibuffer-prompt))
  "For the sign before what you write."
  :group 'sojourn)

(defvar-local sojourn-draw--ewoc nil "The nodes of this chat.")

(defvar-local sojourn-draw--nodes nil "Nodes of the list by path and id.")

(defvar-local sojourn-draw--tails nil "By path: the last node at it or below.")

(defvar-local sojourn-draw--bottom nil "The node that shows the state.")

(defvar-local sojourn-draw--status nil "The function that says the state.")

(defvar-local sojourn-draw--input nil "Where the input begins, a marker.")

(defvar-local sojourn-draw--contexts nil "What is added to the next message.")

(defvar-local sojourn-draw--dirty nil "Nodes that are to be printed anew.")

(defvar-local sojourn-draw--unfinished nil "Nodes that the end of a pass may cut off.")

(defvar-local sojourn-draw--timer nil "The timer that prints them.")

(defvar-local sojourn-draw--unfolded nil "Whether reasoning is unfolded from the start.")

;;; The buffer

(defun sojourn-draw-setup (status)
  "Prepare the current buffer; the function STATUS says the agent's state."
  (setq sojourn-draw--status status
        sojourn-print-again-function #'sojourn-draw--again
        sojourn-print-bottom-function #'sojourn-draw--insert-bottom)
  (sojourn-draw-clear))

(defun sojourn-draw-clear ()
  "Remove everything that was drawn; the input stays."
  (let ((input (if sojourn-draw--input (sojourn-draw-input) ""))
        (inhibit-read-only t)
        (buffer-undo-list t))
    (erase-buffer)
    (setq sojourn-draw--nodes (make-hash-table :test #'equal)
          sojourn-draw--tails (make-hash-table :test #'equal)
          sojourn-draw--dirty nil
          sojourn-draw--unfinished nil
          sojourn-draw--ewoc (ewoc-create #'sojourn-print-node nil nil t)
          sojourn-draw--bottom (ewoc-enter-last sojourn-draw--ewoc (make-sojourn-node :kind 'bottom)))
    (goto-char (point-max))
    (setq sojourn-draw--input (point-marker))
    (insert input))
  (sojourn-draw--forget-undo))

(defun sojourn-draw-input-start ()
  "Where the input begins."
  (marker-position sojourn-draw--input))

(defun sojourn-draw-input ()
  "What was written and not sent yet."
  (buffer-substring-no-properties sojourn-draw--input (point-max)))

(defun sojourn-draw-set-input (text)
  "Put TEXT in the place of the input."
  (delete-region sojourn-draw--input (point-max))
  (save-excursion (goto-char (point-max)) (insert text))
  (goto-char (point-max)))

(defun sojourn-draw-contexts ()
  "What is added to the next message, as parts with labels."
  sojourn-draw--contexts)

(defun sojourn-draw-set-contexts (contexts)
  "Let CONTEXTS be what is added to the next message."
  (setq sojourn-draw--contexts contexts)
  (sojourn-draw-status))

(defun sojourn-draw-status ()
  "Print the line of state anew."
  (when sojourn-draw--bottom (sojourn-draw--redraw sojourn-draw--bottom)))

(defun sojourn-draw--forget-undo ()
  "Forget what could be undone: the places in it are no longer true."
  (unless (eq buffer-undo-list t) (setq buffer-undo-list nil)))

(defmacro sojourn-draw--drawing (&rest body)
  "Change what is drawn by BODY; points and the input stay where they are."
  (declare (indent 0) (debug t))
  (let ((points (make-symbol "points")) (length (make-symbol "length")))
    `(let ((,points (sojourn-draw--points))
           (,length (- (point-max) sojourn-draw--input))
           (inhibit-read-only t))
       (let ((buffer-undo-list t))
         ,@body)
       (set-marker sojourn-draw--input (- (point-max) ,length))
       (sojourn-draw--forget-undo)
       (sojourn-draw--restore-points ,points))))

(defun sojourn-draw--points ()
  "Where the buffer and its windows are, as distances that drawing keeps."
  (cons (cons nil (sojourn-draw--place (point)))
        (mapcar (lambda (window) (cons window (sojourn-draw--place (window-point window))))
                (get-buffer-window-list nil nil t))))

(defun sojourn-draw--place (position)
  "POSITION as (NODE . OFFSET), or as the distance from the buffer's end."
  (if (>= position sojourn-draw--input)
      (- (point-max) position)
    (let ((node (ewoc-locate sojourn-draw--ewoc position)))
      (cons node (- position (ewoc-location node))))))

(defun sojourn-draw--restore-points (points)
  "Put the buffer and its windows back to POINTS."
  (pcase-dolist (`(,window . ,place) points)
    (let ((position (if (consp place)
                        (min (+ (sojourn-draw--node-start (car place)) (cdr place))
                             (sojourn-draw--node-end (car place)))
                      (- (point-max) place))))
      (cond ((null window) (goto-char position))
            ((window-live-p window) (set-window-point window position))))))

(defun sojourn-draw--node-start (node)
  "Where NODE, an element of the list, begins.
The buffer's beginning if it is gone."
  (let ((location (ewoc-location node)))
    (or (if (markerp location) (marker-position location) location) (point-min))))

(defun sojourn-draw--node-end (node)
  "The last place of NODE, an element of the list."
  (let ((next (and (> (sojourn-draw--node-start node) (point-min))
                   (ewoc-next sojourn-draw--ewoc node))))
    (max (point-min)
         (1- (if next (sojourn-draw--node-start next) (marker-position sojourn-draw--input))))))

;;; The nodes

(defun sojourn-draw--find (path id)
  "The element of the list with the node ID at PATH, or nil."
  (and id (gethash (cons id path) sojourn-draw--nodes)))

(defun sojourn-draw--add (node)
  "Draw NODE after what is there at its path; returns its element."
  (let* ((path (sojourn-node-path node))
         (before (sojourn-draw--tail path))
         element)
    (sojourn-draw--drawing
      (setq element (if before
                        (ewoc-enter-after sojourn-draw--ewoc before node)
                      (ewoc-enter-before sojourn-draw--ewoc sojourn-draw--bottom node))))
    (when (sojourn-node-id node)
      (puthash (cons (sojourn-node-id node) path) element sojourn-draw--nodes))
    (sojourn-draw--moved-tail path before element)
    element))

(defun sojourn-draw--tail (path)
  "The last node at PATH or below; nil for the end of the list."
  (when path
    (or (gethash path sojourn-draw--tails)
        (let ((parent (butlast path)) (call (car (last path))))
          (or (sojourn-draw--find parent call)
              (sojourn-draw--add (make-sojourn-node :kind 'call :path parent :id call)))))))

(defun sojourn-draw--moved-tail (path before element)
  "ELEMENT was drawn at PATH after BEFORE: it may be the last in more places."
  (when path
    (puthash path element sojourn-draw--tails)
    (let ((parent (butlast path)))
      (while parent
        (when (eq (gethash parent sojourn-draw--tails) before)
          (puthash parent element sojourn-draw--tails))
        (setq parent (butlast parent))))))

(defun sojourn-draw--redraw (element)
  "Print the node of ELEMENT anew."
  (setq sojourn-draw--dirty (delq element sojourn-draw--dirty))
  (sojourn-draw--drawing (ewoc-invalidate sojourn-draw--ewoc element)))

(defun sojourn-draw--again (node)
  "Print NODE anew, if it is still there."
  (when-let ((element (sojourn-draw--find (sojourn-node-path node) (sojourn-node-id node))))
    (sojourn-draw--redraw element)))

(defun sojourn-draw--soon (element)
  "Print the node of ELEMENT anew, with others, in a moment."
  (cl-pushnew element sojourn-draw--dirty)
  (unless sojourn-draw--timer
    (setq sojourn-draw--timer
          (run-at-time 0.08 nil #'sojourn-draw--flush (current-buffer)))))

(defun sojourn-draw--flush (buffer)
  "Print what has changed in BUFFER."
  (when (buffer-live-p buffer)
    (with-current-buffer buffer
      (setq sojourn-draw--timer nil)
      (dolist (element sojourn-draw--dirty) (sojourn-draw--redraw element)))))

(defun sojourn-draw-remove (path id)
  "Remove the node ID at PATH, if it is there."
  (when-let ((element (sojourn-draw--find path id)))
    (remhash (cons id path) sojourn-draw--nodes)
    (setq sojourn-draw--dirty (delq element sojourn-draw--dirty))
    (maphash (lambda (place tail)
               (when (eq tail element)
                 (puthash place (ewoc-prev sojourn-draw--ewoc element) sojourn-draw--tails)))
             sojourn-draw--tails)
    (sojourn-draw--drawing (ewoc-delete sojourn-draw--ewoc element))))

;;; What happens

(defun sojourn-draw-note (path id text)
  "Draw TEXT at PATH as a line of its own; ID is for removing it again."
  (unless (sojourn-draw--find path id)
    (sojourn-draw--add (make-sojourn-node :kind 'note :path path :id id :text text))))

(defun sojourn-draw-begin (path id)
  "The assistant's message ID begins at PATH; returns its element."
  (or (sojourn-draw--find path id)
      (let ((element (sojourn-draw--add (make-sojourn-node :kind 'assistant :path path :id id
                                                           :open sojourn-draw--unfolded))))
        (push element sojourn-draw--unfinished)
        element)))

(defun sojourn-draw-text (path id part kind offset text)
  "TEXT was streamed to the message ID at PATH: part number PART, of KIND.
OFFSET says behind how many characters it belongs; nil: it is all of the
part.  What is there already is left out; what does not fit is, too,
since the whole message will come."
  (let* ((element (sojourn-draw-begin path id))
         (node (ewoc-data element))
         (known (or (cddr (assq part (sojourn-node-parts node))) ""))
         (offset (or offset 0))
         (fresh (- (+ offset (length text)) (length known))))
    (when (and (null (sojourn-node-message node)) (<= offset (length known)) (> fresh 0))
      (setf (alist-get part (sojourn-node-parts node))
            (cons kind (concat known (substring text (- (length text) fresh)))))
      (sojourn-draw--soon element))))

(defun sojourn-draw-reset (path id)
  "What was streamed of the message ID at PATH is void."
  (when-let ((element (sojourn-draw--find path id)))
    (unless (sojourn-node-message (ewoc-data element))
      (setf (sojourn-node-parts (ewoc-data element)) nil)
      (sojourn-draw--redraw element))))

(defun sojourn-draw-message (path message client)
  "MESSAGE is in the conversation at PATH; CLIENT caused it, if known."
  (let ((id (plist-get message :messageId)))
    (pcase (plist-get message :role)
      ("assistant" (sojourn-draw--assistant path id message))
      ("toolResult" (sojourn-draw-result
                     path (plist-get message :callId) (plist-get message :toolName) message nil))
      ("lateResult" (sojourn-draw-result
                     path (plist-get message :callId) (plist-get message :toolName) message t))
      ((and role (or "user" "system" "summary"))
       (unless (sojourn-draw--find path id)
         (sojourn-draw--add (make-sojourn-node :kind 'user :path path :id id :message message
                                               :name role :client client)))))))

(defun sojourn-draw--assistant (path id message)
  "Draw MESSAGE, the assistant's with ID at PATH, and its calls."
  (let* ((element (sojourn-draw-begin path id))
         (node (ewoc-data element)))
    (setf (sojourn-node-message node) message)
    (sojourn-draw--redraw element)
    (seq-do (lambda (part)
              (when (equal (plist-get part :type) "toolCall")
                (sojourn-draw-call path (plist-get part :id) (plist-get part :name) nil
                                   :args (plist-get part :arguments))))
            (plist-get message :content))))

(cl-defun sojourn-draw-call (path id name status &key (args nil args-p) approval progress)
  "The call ID of the tool NAME at PATH has STATUS, unless nil.
ARGS, APPROVAL and PROGRESS are what is new of it."
  (let* ((element (or (sojourn-draw--find path id)
                      (sojourn-draw--add (make-sojourn-node :kind 'call :path path :id id))))
         (node (ewoc-data element)))
    (when name (setf (sojourn-node-name node) name))
    (when status (setf (sojourn-node-status node) status))
    (when (eq status 'running) (push element sojourn-draw--unfinished))
    (when args-p (setf (sojourn-node-args node) (or args 'none)))
    (when approval (setf (sojourn-node-approval node) approval))
    (if progress
        (progn (setf (sojourn-node-progress node) progress)
               (sojourn-draw--soon element))
      (sojourn-draw--redraw element))))

(defun sojourn-draw-result (path id name result late)
  "The call ID of the tool NAME at PATH has a RESULT; LATE: after a placeholder."
  (sojourn-draw-call path id name nil)
  (let* ((element (sojourn-draw--find path id))
         (node (ewoc-data element))
         (text (sojourn-content-text (plist-get result :content))))
    (setf (sojourn-node-failed node) (sojourn-true-p (plist-get result :isError))
          (sojourn-node-progress node) nil)
    (if late
        (setf (sojourn-node-late node) text
              (sojourn-node-pending node) nil
              (sojourn-node-status node) 'resolved)
      (unless (sojourn-node-late node)
        (setf (sojourn-node-output node) text
              (sojourn-node-pending node) (sojourn-true-p (plist-get result :pending))
              (sojourn-node-status node) (if (eq (sojourn-node-status node) 'decided) 'decided 'ended))))
    (sojourn-draw--redraw element)))

(defun sojourn-draw-end (path)
  "The pass at PATH is over: what has not ended by now will not."
  (let (others)
    (dolist (element sojourn-draw--unfinished)
      (let ((node (ewoc-data element)))
        (cond ((not (equal (sojourn-node-path node) path)) (push element others))
              ((eq (sojourn-node-kind node) 'assistant)
               (unless (sojourn-node-message node) (sojourn-draw-remove path (sojourn-node-id node))))
              ((eq (sojourn-node-status node) 'running)
               (setf (sojourn-node-status node) 'cut)
               (sojourn-draw--redraw element)))))
    (setq sojourn-draw--unfinished others)))

(defun sojourn-draw-toggle-reasoning ()
  "Fold all reasoning, or unfold it."
  (setq sojourn-draw--unfolded (not sojourn-draw--unfolded))
  (ewoc-map (lambda (node)
              (when (eq (sojourn-node-kind node) 'assistant)
                (setf (sojourn-node-open node) sojourn-draw--unfolded)))
            sojourn-draw--ewoc)
  (sojourn-draw--drawing (ewoc-refresh sojourn-draw--ewoc)))

;;; Below the nodes

(defun sojourn-draw--insert-bottom ()
  "Insert the line of state, what is added to the next message, and the prompt."
  (insert "\n" (funcall sojourn-draw--status) "\n")
  (dolist (context sojourn-draw--contexts)
    (insert (propertize (format "+ %s  " (plist-get context :label)) 'face 'link)
            (sojourn-print-button "[drop]" "Do not send it"
                                  (lambda () (sojourn-draw-set-contexts
                                              (remq context sojourn-draw--contexts))))
            "\n"))
  ;; A field, so that C-a goes to the beginning of the input.
  (insert (propertize "> " 'face 'sojourn-prompt 'field 'sojourn-prompt)))

(provide 'sojourn-draw)
;;; sojourn-draw.el ends here
