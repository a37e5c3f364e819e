;;; sojourn-documents.el --- Unsaved files, for the daemon's tools  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: MIT

;; This file is not part of GNU Emacs.

;;; Commentary:

;; The daemon's own file tools read a file with unsaved changes as it is
;; in its buffer here, and change it by asking for it.
;;
;; Rules: only unsaved files are told, as the others are on disk.  A
;; change is made only of the text that was told, is one step to undo, and
;; leaves saving to the user.

;;; Code:

(require 'cl-lib)
(require 'sojourn-rpc)
(require 'url-util)

(defvar sojourn-tools-for)

(defconst sojourn-documents--delay 0.15
  "For how many seconds changes are gathered before they are told.")

(defvar-local sojourn-documents--told nil
  "What the daemon knows of this buffer: a cons of its URI and its version.")

(put 'sojourn-documents--told 'permanent-local t)

(defvar-local sojourn-documents--timer nil "The timer that tells what has changed.")

(defun sojourn-file-uri (file)
  "The URI of FILE, an absolute name."
  (concat "file://" (url-hexify-string file (cons ?/ url-unreserved-chars))))

;;; Telling

(defun sojourn-documents--uri ()
  "The URI of the file of this buffer if it is to be told, or nil."
  (and sojourn-tools-for buffer-file-name (buffer-modified-p) (not (buffer-base-buffer))
       (not (file-remote-p buffer-file-name)) enable-multibyte-characters
       (sojourn-file-uri (expand-file-name buffer-file-name))))

(defun sojourn-documents--text ()
  "The whole text of this buffer."
  (save-restriction
    (widen)
    (buffer-substring-no-properties (point-min) (point-max))))

(defun sojourn-documents--forget ()
  "Tell the daemon that this buffer is closed, or as its file is."
  (remove-hook 'after-change-functions #'sojourn-documents--changed t)
  (when sojourn-documents--told
    (sojourn-notify-daemon 'textDocument/didClose
                           `(:textDocument (:uri ,(car sojourn-documents--told))))
    (setq sojourn-documents--told nil)))

(defun sojourn-documents-sync ()
  "Tell the daemon how this buffer is now, when it does not know that."
  (when sojourn-documents--timer
    (cancel-timer sojourn-documents--timer)
    (setq sojourn-documents--timer nil))
  (let ((uri (sojourn-documents--uri))
        (version (buffer-chars-modified-tick)))
    (unless (and uri (equal uri (car sojourn-documents--told))) (sojourn-documents--forget))
    (when (and uri (sojourn-ready-p))
      (cond ((null sojourn-documents--told)
             (add-hook 'after-change-functions #'sojourn-documents--changed nil t)
             (sojourn-notify-daemon 'textDocument/didOpen
                                    `(:textDocument (:uri ,uri :languageId ,(format "%s" major-mode)
                                                     :version ,version
                                                     :text ,(sojourn-documents--text)))))
            ((/= version (cdr sojourn-documents--told))
             (sojourn-notify-daemon 'textDocument/didChange
                                    `(:textDocument (:uri ,uri :version ,version)
                                      :contentChanges [(:text ,(sojourn-documents--text))]))))
      (setq sojourn-documents--told (cons uri version)))))

(defun sojourn-documents--changed (&rest _)
  "Tell soon that this buffer has changed."
  (when (and buffer-file-name (null sojourn-documents--timer))
    (setq sojourn-documents--timer
          (run-at-time sojourn-documents--delay nil #'sojourn-documents--sync-in (current-buffer)))))

(put 'sojourn-documents--changed 'permanent-local-hook t)

(defun sojourn-documents--sync-in (buffer)
  "Tell how BUFFER is, if it still is."
  (when (buffer-live-p buffer)
    (with-current-buffer buffer (sojourn-documents-sync))))

(defun sojourn-documents--sync-all ()
  "Tell how all buffers are."
  (dolist (buffer (buffer-list))
    (when (buffer-file-name buffer) (sojourn-documents--sync-in buffer))))

(defun sojourn-documents--connected ()
  "Tell the daemon, which knows nothing yet, of all buffers."
  (dolist (buffer (buffer-list))
    (when (buffer-local-value 'sojourn-documents--told buffer)
      (with-current-buffer buffer (setq sojourn-documents--told nil))))
  (sojourn-documents--sync-all))

(defun sojourn-documents--notified (method params)
  "Before a model is asked, what has changed is told: METHOD came with PARAMS."
  (when (and (eq method 'agent/event)
             (member (sojourn-get params :event :type) '("agentStart" "turnStart")))
    (sojourn-documents--sync-all)))

(add-hook 'sojourn-connected-hook #'sojourn-documents--connected)
(add-hook 'sojourn-before-change-hook #'sojourn-documents--sync-all)
(add-hook 'sojourn-notification-functions #'sojourn-documents--notified)
(add-hook 'first-change-hook #'sojourn-documents--changed)
(add-hook 'after-save-hook #'sojourn-documents-sync)
(add-hook 'after-revert-hook #'sojourn-documents-sync)
(add-hook 'after-set-visited-file-name-hook #'sojourn-documents-sync)
(add-hook 'kill-buffer-hook #'sojourn-documents--forget)

;;; Changing

(defun sojourn-documents-edit (params)
  "Do the `workspace/applyEdit' in PARAMS; returns the answer for the daemon."
  (let* ((change (seq-first (sojourn-get params :edit :documentChanges)))
         (document (plist-get change :textDocument))
         (buffer (cl-find-if (lambda (one)
                               (equal (car (buffer-local-value 'sojourn-documents--told one))
                                      (plist-get document :uri)))
                             (buffer-list)))
         (trouble (condition-case problem
                      (if (null document)
                          "it names no document"
                        (sojourn-documents--edit-in buffer document (plist-get change :edits)))
                    ((error quit) (error-message-string problem)))))
    (if trouble
        (list :applied :json-false :failureReason trouble)
      (list :applied t))))

(defun sojourn-documents--edit-in (buffer document edits)
  "Make EDITS of DOCUMENT in BUFFER; returns why not, nil when they are made."
  (if (null buffer)
      "it has no unsaved changes in Emacs any more"
    (with-current-buffer buffer
      (cond ((/= (plist-get document :version) (buffer-chars-modified-tick))
             "the user has changed it meanwhile")
            (buffer-read-only "it is read-only in Emacs")
            (t (save-excursion
                 (save-restriction
                   (widen)
                   (undo-boundary)
                   (atomic-change-group
                     (mapc #'sojourn-documents--replace (reverse edits)))
                   (undo-boundary)))
               (sojourn-documents-sync)
               nil)))))

(defun sojourn-documents--replace (edit)
  "Make EDIT, a LSP `TextEdit', here."
  (let ((start (sojourn-documents--point (sojourn-get edit :range :start)))
        (end (sojourn-documents--point (sojourn-get edit :range :end))))
    (goto-char start)
    (delete-region start end)
    (insert (plist-get edit :newText))))

(defun sojourn-documents--point (place)
  "Where PLACE is, a line and a column in UTF-16 units, both from 0."
  (goto-char (point-min))
  (let ((left (plist-get place :character)))
    (when (zerop (forward-line (plist-get place :line)))
      (while (and (> left 0) (not (eolp)))
        (setq left (- left (if (> (char-after) #xffff) 2 1)))
        (forward-char))))
  (point))

(setq sojourn-edit-function #'sojourn-documents-edit)

(provide 'sojourn-documents)
;;; sojourn-documents.el ends here
