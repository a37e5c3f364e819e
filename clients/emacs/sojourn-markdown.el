;;; sojourn-markdown.el --- Light faces for markdown  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: MIT

;; This file is not part of GNU Emacs.

;;; Commentary:

;; Faces for the markdown that models write.  The text itself stays as it
;; is, so that what is copied from a chat is what the model wrote.

;;; Code:

(require 'cl-lib)
(require 'sojourn-rpc)

(defface sojourn-code '((t :inherit fixed-pitch-serif))
  "For code in a message."
  :group 'sojourn)

(defface sojourn-heading '((t :inherit bold :underline t))
  "For headings in a message."
  :group 'sojourn)

(defface sojourn-markup '((t :inherit shadow))
  "For the signs of markdown."
  :group 'sojourn)

(defface sojourn-quote '((t :inherit italic))
  "For quoted lines in a message."
  :group 'sojourn)

(defcustom sojourn-code-modes
  '(("python" . python-mode) ("py" . python-mode) ("sh" . sh-mode) ("bash" . sh-mode)
    ("console" . sh-mode) ("elisp" . emacs-lisp-mode) ("emacs-lisp" . emacs-lisp-mode)
    ("lisp" . lisp-mode) ("c" . c-mode) ("c++" . c++-mode) ("cpp" . c++-mode)
    ("java" . java-mode) ("js" . js-mode) ("javascript" . js-mode) ("json" . js-mode)
    ("html" . html-mode) ("css" . css-mode) ("sql" . sql-mode) ("diff" . diff-mode)
    ("ruby" . ruby-mode) ("perl" . perl-mode) ("xml" . nxml-mode))
  "The modes whose faces code blocks get, by the language they name."
  :type '(alist :key-type string :value-type function)
  :group 'sojourn)

(defconst sojourn-markdown--limit 30000
  "Longer messages get no faces: finding them would take too long.")

(defconst sojourn-markdown--rules
  '(("^#\\{1,6\\} .*$" 0 sojourn-heading)
    ("^> ?.*$" 0 sojourn-quote)
    ("^ *\\([-*+]\\|[0-9]+[.)]\\) " 1 sojourn-markup)
    ("\\(\\*\\*\\)\\([^*\n]+\\)\\(\\*\\*\\)" 2 bold 1 sojourn-markup 3 sojourn-markup)
    ("\\(?:^\\|[^*[:alnum:]]\\)\\(\\*\\)\\([^* \n][^*\n]*\\)\\(\\*\\)" 2 italic
     1 sojourn-markup 3 sojourn-markup)
    ("\\(?:^\\|[^_[:alnum:]]\\)\\(_\\)\\([^_ \n][^_\n]*\\)\\(_\\)\\(?:$\\|[^_[:alnum:]]\\)" 2 italic
     1 sojourn-markup 3 sojourn-markup)
    ("\\[\\([^]\n]+\\)\\](\\([^) \n]+\\))" 1 link 2 sojourn-markup))
  "What gets which face outside of code: a regexp, then groups and faces.")

(defun sojourn-markdown (text)
  "TEXT with faces for the markdown in it."
  (if (> (length text) sojourn-markdown--limit)
      text
    (with-temp-buffer
      (insert text)
      (let ((start (point-min)))
        (goto-char start)
        (while (re-search-forward "^[ \t]*```+[ \t]*\\([[:alnum:]+-]*\\).*$" nil t)
          (let ((fence (match-beginning 0))
                (code (min (point-max) (1+ (match-end 0))))
                (language (downcase (match-string 1))))
            (sojourn-markdown--prose start fence)
            (put-text-property fence (match-end 0) 'face 'sojourn-markup)
            (setq start (sojourn-markdown--block code language))
            (goto-char start)))
        (sojourn-markdown--prose start (point-max)))
      (buffer-string))))

(defun sojourn-markdown--block (start language)
  "Give the code block from START on the faces of LANGUAGE.
Return where it is over.  A block without an end, still being written,
ends with the text."
  (goto-char start)
  (let* ((closed (re-search-forward "^[ \t]*```+[ \t]*$" nil t))
         (end (if closed (match-beginning 0) (point-max)))
         (over (if closed (match-end 0) (point-max))))
    (when closed
      (put-text-property end over 'face 'sojourn-markup))
    (let ((code (buffer-substring-no-properties start end))
          (mode (cdr (assoc language sojourn-code-modes))))
      (when (and closed mode (fboundp mode))
        (sojourn-markdown--copy-faces (sojourn-fontify code mode) start)))
    (add-face-text-property start end 'sojourn-code t)
    over))

(defun sojourn-markdown--copy-faces (code start)
  "Put the faces of the string CODE onto the buffer's text from START on."
  (let ((at 0))
    (while (< at (length code))
      (let ((next (next-single-property-change at 'face code (length code)))
            (face (get-text-property at 'face code)))
        (when face
          (put-text-property (+ start at) (+ start next) 'face face))
        (setq at next)))))

(defun sojourn-markdown--prose (start end)
  "Give the text from START to END, which has no code blocks, its faces."
  (save-excursion
    (save-restriction
      (narrow-to-region start end)
      (dolist (rule sojourn-markdown--rules)
        (goto-char (point-min))
        (while (re-search-forward (car rule) nil t)
          (cl-loop for (group face) on (cdr rule) by #'cddr
                   do (add-face-text-property (match-beginning group) (match-end group) face t))))
      (goto-char (point-min))
      (while (re-search-forward "`\\([^`\n]+\\)`" nil t)
        (put-text-property (match-beginning 0) (match-end 0) 'face 'sojourn-code)))))

(defun sojourn-fontify (text mode)
  "TEXT with the faces that MODE gives it."
  ;; A buffer for each mode is kept: turning a mode on takes longer than its faces.
  (condition-case nil
      (with-current-buffer (get-buffer-create (format " *sojourn %s*" mode))
        (let ((inhibit-read-only t)
              (inhibit-message t)
              (buffer-undo-list t))
          (unless (eq major-mode mode) (delay-mode-hooks (funcall mode)))
          (erase-buffer)
          (insert text)
          (font-lock-ensure)
          (prog1 (buffer-string)
            (erase-buffer))))
    (error text)))

(provide 'sojourn-markdown)
;;; sojourn-markdown.el ends here
