;;; sojourn-rpc.el --- The connection to the Sojourn daemon  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: MIT

;; This file is not part of GNU Emacs.

;;; Commentary:

;; One connection for the whole of Emacs: `sojourn connect' as a
;; subprocess, which bridges to the daemon that all of a user's editors
;; share, and starts it if none runs.
;;
;; Rules: nothing here waits.  Requests are asynchronous, messages are
;; handled in slices of a few milliseconds, and a lost connection is made
;; again by itself.  A request that was not answered by then is sent again
;; with the same `requestId', so it happens once.
;;
;; The messages are jsonrpc.el's; its own transport is not used because it
;; reads `{}' and null as the same thing, and arguments of a tool must
;; come back from an approval as they were.

;;; Code:

(require 'cl-lib)
(require 'eieio)
(require 'json)
(require 'jsonrpc)
(require 'subr-x)

(defgroup sojourn nil
  "Agents of the Sojourn daemon."
  :group 'tools
  :prefix "sojourn-")

(defcustom sojourn-command '("sojourn" "connect")
  "The program and its arguments that bridge to the daemon.
Options such as \"--socket\" or \"--state-dir\" may follow."
  :type '(repeat string))

(defcustom sojourn-client-id "emacs"
  "The name by which the daemon knows this Emacs.
It stands beside what you cause and decide, and owns the tools that
Emacs offers.  Letters, digits, dots, underscores and dashes."
  :type 'string)

(defcustom sojourn-reconnect t
  "Whether a lost connection is made again by itself."
  :type 'boolean)

(defcustom sojourn-log-messages nil
  "Whether all messages are written into the log, for finding faults.
The command `sojourn-show-log' shows it."
  :type 'boolean)

(defvar sojourn-connected-hook nil
  "Hook run when the daemon has answered to our greeting.")

(defvar sojourn-before-change-hook nil
  "Hook run before a request that changes something is sent.")

(defvar sojourn-disconnected-hook nil
  "Hook run when the connection is lost or closed.")

(defvar sojourn-notification-functions nil
  "Functions called with METHOD (a symbol) and PARAMS (a plist).")

(defvar sojourn-tool-function nil
  "Function that runs a `tool/execute' from its params, and answers a plist.")

(defvar sojourn-edit-function nil
  "Function that does a `workspace/applyEdit' from its params, and answers a plist.")

(defclass sojourn-connection (jsonrpc-connection)
  ((process :initarg :process :accessor sojourn-connection-process
            :documentation "The bridge, `sojourn connect'."))
  :documentation "A connection whose messages are lines of JSON.")

(cl-defstruct (sojourn-call (:constructor sojourn-call--make) (:copier nil))
  "A request that has not been answered yet."
  method params success failure bound sent)

(defvar sojourn--connection nil "The `sojourn-connection', or nil.")

(defvar sojourn--state 'closed
  "One of the symbols `closed', `connecting' and `ready'.")

(defvar sojourn--server nil
  "What the daemon said of itself in its answer to `initialize', a plist.")

(defvar sojourn--calls nil "Requests without an answer, oldest first.")

(defvar sojourn--wanted nil "Non-nil while there should be a connection.")

(defvar sojourn--failure nil "Why there is no connection, as a sentence.")

(defvar sojourn--attempts 0 "How often connecting has failed in a row.")

(defvar sojourn--timer nil "The timer of the next attempt to connect.")

(defvar sojourn--partial nil "Pieces of an unfinished line, newest first.")

(defvar sojourn--lines nil "Lines that are to be handled, oldest first.")

(defvar sojourn--new-lines nil "Lines that came after those, newest first.")

(defvar sojourn--draining nil "Non-nil while lines are being handled.")

(defvar sojourn--drain-timer nil "The timer that goes on with the lines.")

(defvar sojourn--request-count 0 "How many request ids were made.")

(defconst sojourn--slice 0.02
  "For how many seconds lines are handled before Emacs looks around.")

;;; Reading JSON values

(defmacro sojourn--with-json (&rest body)
  "Do BODY, which uses json.el, with the values that stand for JSON's here.
It is slow, but has no limits: Emacs' own parser refuses long integers."
  (declare (indent 0) (debug t))
  `(let ((json-object-type 'plist)
         (json-array-type 'vector)
         (json-key-type nil)
         (json-null :null)
         (json-false :json-false))
     ,@body))

(defun sojourn-true-p (value)
  "Whether VALUE of a message is true; false and null are not nil."
  (eq value t))

(defun sojourn-get (plist &rest keys)
  "The value in PLIST at the path KEYS, nil for null and for nothing."
  (while keys
    (setq plist (plist-get plist (pop keys))))
  (unless (memq plist '(:null :json-false)) plist))

(defun sojourn-encode (value)
  "VALUE as JSON on one line."
  (let ((text (condition-case nil
                  (json-serialize value :null-object :null :false-object :json-false)
                (error (sojourn--with-json (json-encode value))))))
    (if (multibyte-string-p text) text (decode-coding-string text 'utf-8))))

(defun sojourn-decode (text)
  "The value of the JSON in TEXT: plists, vectors, `:null', `:json-false'."
  (condition-case nil
      (json-parse-string text :object-type 'plist
                         :null-object :null :false-object :json-false)
    (error (sojourn--with-json (json-read-from-string text)))))

(defun sojourn-content-text (content)
  "What there is to read in CONTENT, a vector of parts or a string."
  (if (stringp content)
      content
    (mapconcat (lambda (part)
                 (or (sojourn-get part :text)
                     (and (sojourn-get part :uri) (format "[%s]" (plist-get part :uri)))
                     (and (sojourn-get part :mimeType)
                          (format "[%s]" (plist-get part :mimeType)))
                     ""))
               content "")))

(defun sojourn-log (format &rest arguments)
  "Write a line into the log buffer: FORMAT with ARGUMENTS."
  (with-current-buffer (get-buffer-create "*sojourn log*")
    (unless (derived-mode-p 'special-mode) (special-mode))
    (let ((inhibit-read-only t))
      (save-excursion
        (goto-char (point-max))
        (insert (format-time-string "%T ") (apply #'format format arguments) "\n")
        (when (> (buffer-size) 200000)
          (delete-region (point-min) (- (point-max) 100000)))))))

;;; Requests

(cl-defun sojourn-request (method params &key success failure mutating bound)
  "Send the request METHOD with PARAMS, connecting first if need be.
SUCCESS is called with the result; FAILURE with the error, a plist of
`:code', `:message' and `:data', which is otherwise shown to the user.
A MUTATING request gets a `requestId'.  A request that is not answered
before the connection is lost is sent again over the next one, unless
it is BOUND to this one: then it fails.  Returns at once."
  (when mutating
    (run-hooks 'sojourn-before-change-hook)
    (setq params (append params (list :requestId (sojourn--request-id)))))
  (let ((call (sojourn-call--make :method method :params params :success success
                                  :failure failure :bound bound)))
    (setq sojourn--calls (nconc sojourn--calls (list call)))
    (if (eq sojourn--state 'ready)
        (sojourn--send call)
      (sojourn-connect))
    nil))

(defun sojourn-notify-daemon (method params)
  "Send the notification METHOD with PARAMS, if there is a connection."
  (when (sojourn-ready-p)
    (condition-case problem
        (jsonrpc-notify sojourn--connection method params)
      (error (sojourn-log "Not sent: %s" (error-message-string problem))))))

(defun sojourn--request-id ()
  "A new request id, that no other Emacs makes."
  (format "%d-%x-%x-%d" (emacs-pid) (floor (float-time)) (random most-positive-fixnum)
          (cl-incf sojourn--request-count)))

(defun sojourn--send (call)
  "Send CALL over the connection."
  (setf (sojourn-call-sent call) t)
  (condition-case problem
      (jsonrpc-async-request
       sojourn--connection (sojourn-call-method call) (sojourn-call-params call)
       :timeout nil
       :success-fn (lambda (result) (sojourn--answered call (sojourn-call-success call) result))
       :error-fn (lambda (trouble)
                   (sojourn--answered call (or (sojourn-call-failure call) #'sojourn-show-error)
                                      trouble)))
    (error (sojourn-log "Not sent: %s" (error-message-string problem)))))

(defun sojourn--answered (call function value)
  "Forget CALL, which was answered, and give FUNCTION the VALUE."
  (setq sojourn--calls (delq call sojourn--calls))
  (when function (funcall function value)))

(defun sojourn-show-error (trouble)
  "Tell the user of TROUBLE, an error of the daemon's."
  (message "Sojourn: %s" (plist-get trouble :message)))

(defun sojourn-error-kind (trouble)
  "The stable name of TROUBLE, an error of the daemon's, as a string."
  (sojourn-get trouble :data :kind))

;;; Connecting

(defun sojourn-ready-p ()
  "Whether the daemon answers."
  (eq sojourn--state 'ready))

(defun sojourn-connect ()
  "Connect to the daemon, which is started if none runs.
Returns at once; `sojourn-connected-hook' runs when it has answered."
  (interactive)
  (setq sojourn--wanted t)
  (when (eq sojourn--state 'closed)
    (sojourn--cancel-timer)
    (sojourn--open)))

(defun sojourn-disconnect ()
  "Close the connection to the daemon.  Agents go on without it."
  (interactive)
  (setq sojourn--wanted nil)
  (sojourn--cancel-timer)
  (when sojourn--connection
    (let ((process (sojourn-connection-process sojourn--connection)))
      (sojourn--closed "You closed the connection; M-x sojourn-connect opens it")
      (delete-process process))))

(defun sojourn-show-log ()
  "Show what went wrong, and all messages if `sojourn-log-messages' is set."
  (interactive)
  (sojourn-log "The log was opened")
  (pop-to-buffer "*sojourn log*"))

(defun sojourn--cancel-timer ()
  "Give up the next attempt to connect."
  (when sojourn--timer
    (cancel-timer sojourn--timer)
    (setq sojourn--timer nil)))

(defun sojourn--open ()
  "Start the bridge and greet the daemon."
  (setq sojourn--state 'connecting
        sojourn--partial nil
        sojourn--lines nil
        sojourn--new-lines nil)
  (condition-case problem
      (let ((process (sojourn--start-bridge)))
        (setq sojourn--connection (sojourn--make-connection process))
        (sojourn--greet process))
    (error
     (sojourn--closed (format "%s does not start: %s" (car sojourn-command)
                                  (error-message-string problem))))))

(defun sojourn--start-bridge ()
  "The subprocess `sojourn-command'."
  (unless (executable-find (car sojourn-command))
    (error "No such program; see `sojourn-command'"))
  (let ((errors (get-buffer-create " *sojourn stderr*"))
        (default-directory (expand-file-name "~/")))
    (with-current-buffer errors (erase-buffer))
    (make-process
     :name "sojourn" :command sojourn-command :connection-type 'pipe :noquery t
     :coding '(utf-8-unix . utf-8-unix)
     :stderr (make-pipe-process :name "sojourn stderr" :buffer errors :noquery t
                                :sentinel #'ignore)
     :filter #'sojourn--filter :sentinel #'sojourn--sentinel)))

(defun sojourn--make-connection (process)
  "A connection over PROCESS."
  (apply #'sojourn-connection
         :name "sojourn" :process process
         :request-dispatcher #'sojourn--serve
         :notification-dispatcher
         (lambda (_connection method params)
           (run-hook-with-args 'sojourn-notification-functions method params))
         (sojourn--log-options)))

(defun sojourn--log-options ()
  "Tell jsonrpc.el to keep no log of its own, as its version wants it."
  (if (memq '-events-buffer-config
            (mapcar #'eieio-slot-descriptor-name (eieio-class-slots 'jsonrpc-connection)))
      '(:events-buffer-config (:size 0 :format full))
    '(:events-buffer-scrollback-size 0)))

(defun sojourn--greet (process)
  "Say `initialize' over PROCESS, then be ready."
  (jsonrpc-async-request
   sojourn--connection 'initialize
   `(:processId :null
     :clientInfo (:name "Emacs")
     :capabilities (:workspace (:applyEdit t :workspaceEdit (:documentChanges t))
                    :experimental
                    (:sojourn (:protocolVersions [1]
                               :clientId ,sojourn-client-id
                               :tools (:execute nil)
                               :deltas (:maxLatencyMs 50)))))
   :timeout nil
   :success-fn (lambda (answer) (sojourn--greeted process answer))
   :error-fn (lambda (trouble)
               (when (sojourn--current-p process)
                 (setq sojourn--wanted nil)
                 (sojourn--closed (plist-get trouble :message))
                 (delete-process process)))))

(defun sojourn--greeted (process answer)
  "Be ready: the daemon's ANSWER came over PROCESS."
  (when (sojourn--current-p process)
    (jsonrpc-notify sojourn--connection 'initialized nil)
    ;; What it said while it started is no reason for a later end.
    (with-current-buffer " *sojourn stderr*" (erase-buffer))
    (setq sojourn--state 'ready
          sojourn--failure nil
          sojourn--attempts 0
          sojourn--server (append (sojourn-get answer :capabilities :experimental :sojourn)
                                  (sojourn-get answer :serverInfo)))
    (let ((left sojourn--calls))
      (run-hooks 'sojourn-connected-hook)
      (dolist (call left)
        (unless (sojourn-call-sent call) (sojourn--send call))))))

(defun sojourn--current-p (process)
  "Whether PROCESS is the bridge of the connection that counts."
  (and sojourn--connection
       (eq process (sojourn-connection-process sojourn--connection))))

(defun sojourn--sentinel (process _change)
  "Notice that PROCESS, the bridge, has ended."
  (when (and (not (process-live-p process)) (sojourn--current-p process))
    (sojourn--closed (or (sojourn--last-error) "The connection was lost"))))

(defun sojourn--last-error ()
  "The last line that the bridge wrote to stderr, or nil."
  (when-let ((buffer (get-buffer " *sojourn stderr*")))
    (with-current-buffer buffer
      (car (last (split-string (buffer-string) "\n" t "[ \t]+"))))))

(defun sojourn--closed (reason)
  "The connection is over for REASON; try again if wanted."
  (let ((lost (cl-remove-if-not (lambda (call) (and (sojourn-call-bound call)
                                                    (sojourn-call-sent call)))
                                sojourn--calls)))
    (setq sojourn--state 'closed
          sojourn--connection nil
          sojourn--failure reason
          sojourn--calls (cl-remove-if (lambda (call) (memq call lost)) sojourn--calls))
    (sojourn-log "%s" reason)
    (dolist (call sojourn--calls) (setf (sojourn-call-sent call) nil))
    (dolist (call lost)
      (when (sojourn-call-failure call)
        (funcall (sojourn-call-failure call) (list :code -1 :message reason))))
    (run-hooks 'sojourn-disconnected-hook)
    (if (and sojourn--wanted sojourn-reconnect)
        (sojourn--try-again)
      (message "Sojourn: %s" reason))))

(defun sojourn--try-again ()
  "Connect again, soon at first, then less and less often."
  (let ((delay (min 15 (* 0.1 (expt 2 (min 10 sojourn--attempts))))))
    (when (= sojourn--attempts 3)
      (message "Sojourn: %s (trying again)" sojourn--failure))
    (cl-incf sojourn--attempts)
    (sojourn--cancel-timer)
    (setq sojourn--timer (run-at-time delay nil (lambda ()
                                                  (setq sojourn--timer nil)
                                                  (when sojourn--wanted (sojourn-connect)))))))

;;; Receiving

(defun sojourn--filter (process text)
  "Take in TEXT from PROCESS: whole lines are queued, then handled."
  (when (sojourn--current-p process)
    (if (not (string-search "\n" text))
        (push text sojourn--partial)
      (let* ((joined (apply #'concat (nreverse (cons text sojourn--partial))))
             (lines (split-string joined "\n"))
             (rest (car (last lines))))
        (setq sojourn--partial (unless (string-empty-p rest) (list rest)))
        (dolist (line (butlast lines)) (push line sojourn--new-lines))
        (unless sojourn--drain-timer (sojourn--drain))))))

(defun sojourn--drain ()
  "Handle lines for a slice of time; what is left waits for a timer."
  (unless sojourn--draining
    (let ((sojourn--draining t)
          (end (+ (float-time) sojourn--slice))
          line)
      (while (and (< (float-time) end) (setq line (sojourn--next-line)))
        (sojourn--handle line)))
    (when (or sojourn--lines sojourn--new-lines)
      (setq sojourn--drain-timer
            (run-at-time 0.001 nil (lambda ()
                                     (setq sojourn--drain-timer nil)
                                     (sojourn--drain)))))))

(defun sojourn--next-line ()
  "Take the next line off the queue, or nil."
  (unless sojourn--lines
    (setq sojourn--lines (nreverse sojourn--new-lines)
          sojourn--new-lines nil))
  (pop sojourn--lines))

(defun sojourn--handle (line)
  "Handle the message in LINE; a fault in one leaves the others alone."
  (unless (or (string-empty-p line) (null sojourn--connection))
    (when sojourn-log-messages (sojourn-log "<- %s" line))
    (condition-case problem
        (with-temp-buffer
          (jsonrpc-connection-receive sojourn--connection (sojourn-decode line)))
      (error (sojourn-log "A message was not handled: %S" problem)))))

(defun sojourn--serve (_connection method params)
  "Answer the daemon's request METHOD with PARAMS."
  (cond ((and (eq method 'tool/execute) sojourn-tool-function)
         (funcall sojourn-tool-function params))
        ((and (eq method 'workspace/applyEdit) sojourn-edit-function)
         (funcall sojourn-edit-function params))
        (t (jsonrpc-error :code -32601 :message (format "This client has no method %s." method)))))

;;; The transport, as jsonrpc.el wants it

(cl-defmethod jsonrpc-connection-send ((connection sojourn-connection) &rest arguments
                                       &key method &allow-other-keys)
  "Send a message of ARGUMENTS, METHOD among them, over CONNECTION."
  ;; Newer versions of jsonrpc.el name the method in answers as well, for their log.
  (let* ((answer (or (plist-member arguments :result) (plist-member arguments :error)))
         (named (and method (not answer) (list :method (format "%s" method))))
         (others (cl-loop for (key value) on arguments by #'cddr
                          unless (eq key :method) append (list key value)))
         (line (sojourn-encode `(:jsonrpc "2.0" ,@named ,@others))))
    (when sojourn-log-messages (sojourn-log "-> %s" line))
    (process-send-string (sojourn-connection-process connection) (concat line "\n"))))

(cl-defmethod jsonrpc-running-p ((connection sojourn-connection))
  "Whether the bridge of CONNECTION is alive."
  (process-live-p (sojourn-connection-process connection)))

(cl-defmethod jsonrpc-shutdown ((connection sojourn-connection) &rest _)
  "End the bridge of CONNECTION."
  (delete-process (sojourn-connection-process connection)))

(provide 'sojourn-rpc)
;;; sojourn-rpc.el ends here
