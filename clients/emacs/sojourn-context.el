;;; sojourn-context.el --- What goes along with a prompt  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: MIT

;; This file is not part of GNU Emacs.

;;; Commentary:

;; A region, a buffer or a file as a part of the next message, with the
;; place that it is from.

;;; Code:

(require 'cl-lib)
(require 'sojourn-diff)
(require 'sojourn-documents)
(require 'sojourn-draw)
(require 'url-util)

(defun sojourn-chat-context (buffer start end)
  "The text of BUFFER from START to END as a part of a message, with a label."
  (with-current-buffer buffer
    (save-restriction
      (widen)
      (let* ((whole (and (= start (point-min)) (= end (point-max))))
             (lines (unless whole
                      (format "#L%d-L%d" (line-number-at-pos start)
                              (line-number-at-pos (if (and (> end start) (eq (char-before end) ?\n))
                                                      (1- end)
                                                    end))))))
        (list :type "resource"
              :uri (concat (if buffer-file-name
                               (sojourn-file-uri buffer-file-name)
                             (concat "buffer:///" (url-hexify-string (buffer-name) (cons ?/ url-unreserved-chars))))
                           lines)
              :mimeType "text/plain"
              :text (buffer-substring-no-properties start end)
              :label (concat (buffer-name) lines))))))

(defun sojourn-chat-add (context)
  "Add CONTEXT, a part of a message with a label, to what is sent next."
  (sojourn-draw-set-contexts (append (sojourn-draw-contexts) (list context))))

(defun sojourn-chat-add-file (file)
  "Add FILE to what is sent next, as it is in Emacs or on the disk."
  (interactive "fAdd the file: ")
  (let ((text (or (sojourn-file-text (expand-file-name file))
                  (user-error "%s cannot be read" file))))
    (sojourn-chat-add (list :type "resource"
                            :uri (sojourn-file-uri (expand-file-name file))
                            :mimeType "text/plain" :text text
                            :label (file-name-nondirectory file)))))

(defun sojourn-chat-add-buffer (buffer)
  "Add the text of BUFFER to what is sent next."
  (interactive "bAdd the buffer: ")
  (let ((chat (current-buffer)))
    (with-current-buffer buffer
      (let ((context (save-restriction (widen)
                                       (sojourn-chat-context (current-buffer) (point-min) (point-max)))))
        (with-current-buffer chat (sojourn-chat-add context))))))

(defun sojourn-chat-drop-context ()
  "Send nothing but what is written."
  (interactive)
  (sojourn-draw-set-contexts nil))

(defun sojourn-context-content (text contexts)
  "TEXT and CONTEXTS as parts of a message."
  (vconcat (mapcar (lambda (context)
                     (cl-loop for (key value) on context by #'cddr
                              unless (eq key :label) append (list key value)))
                   contexts)
           (unless (string-empty-p text) (list (list :type "text" :text text)))))

(provide 'sojourn-context)
;;; sojourn-context.el ends here
