;;; sojourn-health.el --- Whether everything works  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: MIT

;; This file is not part of GNU Emacs.

;;; Commentary:

;; M-x sojourn-health: a page of checks, each with what to do about it.

;;; Code:

(require 'sojourn-agents)
(require 'sojourn-approvals)
(require 'sojourn-rpc)

(defface sojourn-ok '((t :inherit success))
  "For a check that is well."
  :group 'sojourn)

(defface sojourn-bad '((t :inherit error))
  "For a check that is not."
  :group 'sojourn)

(defvar sojourn-health-done-hook nil
  "Hook run in the page when all checks have been made.")

(define-derived-mode sojourn-health-mode special-mode "Sojourn-Health"
  "Whether Emacs and the daemon work together."
  (setq-local revert-buffer-function (lambda (&rest _) (sojourn-health))))

;;;###autoload
(defun sojourn-health ()
  "Check whether Emacs and the daemon work together, and say what to do.
The page is shown in a buffer, which is returned."
  (interactive)
  (let ((buffer (get-buffer-create "*sojourn health*")))
    (with-current-buffer buffer
      (sojourn-health-mode)
      (let ((inhibit-read-only t)) (erase-buffer))
      (sojourn-health--line t "Emacs" (format "%s, jsonrpc.el, JSON %s" emacs-version
                                              (if (fboundp 'json-parse-string) "built in" "missing")))
      (let ((program (executable-find (car sojourn-command))))
        (sojourn-health--line program "Program"
                              (or program
                                  (format "%s is not in `exec-path'; see `sojourn-command'"
                                          (car sojourn-command)))))
      (sojourn-health--line (executable-find "diff") "diff"
                            (if (executable-find "diff") "found" "missing: edits are shown without one")))
    (sojourn-connect)
    (if (sojourn-ready-p)
        (sojourn-health--ask buffer)
      (sojourn-health--wait buffer 100))
    (unless noninteractive (pop-to-buffer buffer))
    buffer))

(defun sojourn-health--wait (buffer rounds)
  "Ask the daemon, for BUFFER, as soon as it has answered.
Give up after ROUNDS of 0.1 seconds."
  (cond ((not (buffer-live-p buffer)) nil)
        ((sojourn-ready-p) (sojourn-health--ask buffer))
        ((> rounds 0) (run-at-time 0.1 nil #'sojourn-health--wait buffer (1- rounds)))
        (t (with-current-buffer buffer
             (sojourn-health--line nil "Daemon" (or sojourn--failure "it does not answer"))
             (sojourn-health--line nil "Try" (string-join sojourn-command " "))
             (run-hooks 'sojourn-health-done-hook)))))

(defun sojourn-health--ask (buffer)
  "Ask the daemon how it is, for BUFFER."
  (sojourn-request
   'server/status nil :bound t
   :failure (lambda (trouble) (sojourn-health--failed buffer trouble))
   :success
   (lambda (status)
     (sojourn-request
      'model/list nil :bound t
      :failure (lambda (trouble) (sojourn-health--failed buffer trouble))
      :success (lambda (answer) (sojourn-health--tell buffer status (plist-get answer :models)))))))

(defun sojourn-health--failed (buffer trouble)
  "Say in BUFFER that the daemon answered with TROUBLE."
  (when (buffer-live-p buffer)
    (with-current-buffer buffer
      (sojourn-health--line nil "Daemon" (plist-get trouble :message))
      (run-hooks 'sojourn-health-done-hook))))

(defun sojourn-health--tell (buffer status models)
  "Say in BUFFER what STATUS and MODELS of the daemon are."
  (when (buffer-live-p buffer)
    (with-current-buffer buffer
      (let ((state (plist-get status :state))
            (default (seq-find (lambda (model) (sojourn-true-p (plist-get model :default))) models)))
        (sojourn-health--line (equal state "ready") "Daemon"
                              (format "Sojourn %s, protocol %s, %s, %d agents, %d runs, %d clients"
                                      (plist-get status :version)
                                      (plist-get sojourn--server :protocolVersion) state
                                      (plist-get status :agents) (plist-get status :activeRuns)
                                      (plist-get status :clients)))
        (sojourn-health--line t "Store" (sojourn-get status :store :path))
        (sojourn-health--line default "Models"
                              (concat (mapconcat (lambda (model) (plist-get model :name)) models ", ")
                                      (if default (format " (default: %s)" (plist-get default :name)) "")))
        (sojourn-health--line t "This Emacs" (format "is known as %s" sojourn-client-id))
        (sojourn-health--line (null (sojourn-approvals)) "Approvals"
                              (format "%d open%s" (length (sojourn-approvals))
                                      (if (sojourn-approvals) " (M-x sojourn-decide)" ""))))
      (run-hooks 'sojourn-health-done-hook))))

(defun sojourn-health--line (good name text)
  "Say of the check NAME whether it is GOOD, and TEXT."
  (let ((inhibit-read-only t))
    (goto-char (point-max))
    (insert (if good (propertize "ok   " 'face 'sojourn-ok) (propertize "look " 'face 'sojourn-bad))
            (format "%-11s %s\n" name text))))

(provide 'sojourn-health)
;;; sojourn-health.el ends here
