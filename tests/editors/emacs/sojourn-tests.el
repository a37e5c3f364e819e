;;; sojourn-tests.el --- The Emacs plugin against a real daemon  -*- lexical-binding: t; -*-

;;; Commentary:

;; Run by tests/editors/test_emacs_plugin.py, which starts a daemon with
;; script.yaml as its model and says where it is in the environment.

;;; Code:

(require 'cl-lib)
(require 'ert)
(require 'sojourn)

;; Compiling a trampoline for each function that a test replaces takes seconds.
(defvar comp-enable-subr-trampolines)
(setq comp-enable-subr-trampolines nil)

(setq sojourn-command (list (getenv "SOJOURN_TEST_PYTHON") "-m" "sojourn" "connect"))

(defvar tests-notified nil "What `sojourn-notify-function' was told, newest first.")
(setq sojourn-notify-function (lambda (_agent text) (push text tests-notified)))

;;; Waiting and looking

(defun tests-wait (what condition)
  "Wait until CONDITION holds, at most 40 seconds; WHAT is it, in words."
  (let ((end (+ (float-time) 40)) value)
    (while (not (setq value (funcall condition)))
      (when (> (float-time) end)
        (error "Waited in vain for %s; the buffer is:\n%s\nlog:\n%s" what (buffer-substring-no-properties (point-min) (point-max))
               (if (get-buffer "*sojourn log*")
                   (with-current-buffer "*sojourn log*" (buffer-string)) "")))
      (accept-process-output nil 0.02))
    value))

(defmacro tests-until (&rest condition)
  "Wait until CONDITION holds."
  `(tests-wait ,(format "%S" condition) (lambda () ,@condition)))

(defun tests-shows (text)
  "Whether the buffer shows TEXT."
  (string-search text (buffer-string)))

(defun tests-await (text)
  "Wait until the buffer shows TEXT."
  (tests-wait (format "%S" text) (lambda () (tests-shows text))))

(defun tests-count (text)
  "How often the buffer shows TEXT."
  (how-many (regexp-quote text) (point-min) (point-max)))

(defun tests-state ()
  "The state of the agent of this chat."
  (plist-get (sojourn-agent sojourn-chat--id) :state))

(defun tests-await-state (state)
  "Wait until the agent of this chat is in STATE and everything is drawn."
  (tests-wait state (lambda ()
                      (let ((agent (tests-answer 'agent/get (list :agentId sojourn-chat--id))))
                        (and (equal (plist-get agent :state) state)
                             (equal (tests-state) state)
                             (null sojourn-draw--dirty)
                             (integerp sojourn-chat--seq)
                             (>= sojourn-chat--seq (plist-get agent :seq)))))))

(defun tests-say (text)
  "Write TEXT into this chat and send it; wait until it is accepted, if it can be."
  (let ((before sojourn-chat--seq))
    (goto-char (point-max))
    (insert text)
    (sojourn-chat-send)
    (when (sojourn-ready-p)
      (tests-until (> sojourn-chat--seq before)))))

(defun tests-press (label)
  "Press the last button with LABEL in this buffer."
  (goto-char (point-max))
  (search-backward label)
  (push-button (point)))

(defun tests-chat (id &rest config)
  "Make the agent ID with CONFIG and return its chat, attached."
  (let ((sojourn-agent-config (append config '(:tools ["*"]))))
    (sojourn-new id nil "/tmp"))
  (tests-until (sojourn-chat-buffer id))
  (with-current-buffer (sojourn-chat-buffer id)
    (tests-until (and (integerp sojourn-chat--seq) (not sojourn-chat--attaching)))
    (current-buffer)))

(defmacro tests-with-chat (id &rest body)
  "In the chat with a new agent ID do BODY."
  (declare (indent 1))
  `(with-current-buffer (tests-chat ,id)
     ,@body))

(defun tests-story ()
  "What this chat shows, without its last lines (state and input)."
  (buffer-substring-no-properties (point-min) (ewoc-location sojourn-draw--bottom)))

(defun tests-same-when-replayed ()
  "Check that a chat which replays everything shows what this one shows."
  (let ((live (tests-story)))
    (revert-buffer)
    (tests-until (and (integerp sojourn-chat--seq) (not sojourn-chat--attaching)
                      (>= sojourn-chat--seq sojourn-chat--replay-end)))
    (should (equal live (tests-story)))))

(defun tests-kill-daemon ()
  "Kill the daemon without a word."
  (let ((file (expand-file-name "daemon.json" (getenv "SOJOURN_STATE_DIR"))))
    (signal-process (plist-get (with-temp-buffer
                                 (insert-file-contents file)
                                 (json-parse-buffer :object-type 'plist))
                               :pid)
                    'KILL)
    (tests-until (not (sojourn-ready-p)))))

(defun tests-answer (method params)
  "The daemon's answer to METHOD with PARAMS."
  (let ((answer 'none))
    (sojourn-request method params :success (lambda (result) (setq answer result))
                     :failure (lambda (trouble) (setq answer (list :error trouble))))
    (tests-until (not (eq answer 'none)))
    answer))

(defun tests-messages (id role)
  "The texts of the messages of ROLE of the agent ID."
  (cl-loop for message across (plist-get (tests-answer 'agent/messages (list :agentId id)) :messages)
           when (equal (plist-get message :role) role)
           collect (sojourn-content-text (plist-get message :content))))

;;; A conversation

(ert-deftest a-build-is-started-and-its-result-handed-in-by-hand ()
  (tests-with-chat "build"
    (tests-say "Please build the website")
    (tests-await-state "idle")
    (should (string-match-p (rx "You\nPlease build the website\n" (* anything) "Agent\n▸ Reasoning, 11 words\n"
                                "• demo_build {\"target\":\"website\"}  its result will follow\n"
                                "    Started build job " (+ digit) " of website. Its result will follow.\n"
                                "  [hand in its result]\n\nAgent\nI have **started** the build.\n")
                            (tests-story)))
    (tests-await "idle: waits for 1 result")
    (cl-letf (((symbol-function 'read-multiple-choice) (lambda (&rest _) '(?r "result")))
              ((symbol-function 'read-string) (lambda (&rest _) "built in 42 s")))
      (tests-press "[hand in its result]"))
    (tests-await "a result of msg-2-call-1 has arrived: built in 42 s")
    (sojourn-chat-resume)
    (tests-await "The build is over: built in 42 s")
    (tests-await-state "idle")
    (should (tests-shows "  later: built in 42 s"))
    (should-not (tests-shows "has arrived"))
    (should-not (tests-shows "its result will follow\n"))
    (tests-same-when-replayed)))

(ert-deftest a-pending-call-is-rejected-by-hand ()
  (tests-with-chat "reject"
    (tests-say "Please build the shed")
    (tests-await-state "idle")
    (cl-letf (((symbol-function 'read-multiple-choice) (lambda (&rest _) '(?f "failure")))
              ((symbol-function 'read-string) (lambda (&rest _) "no wood")))
      (sojourn-chat-answer-call)
      (tests-await "has arrived: no wood"))
    (sojourn-chat-resume)
    (tests-await "The build is over: ")
    (tests-await-state "idle")
    (should (tests-shows "  later: "))
    (tests-same-when-replayed)))

(ert-deftest reasoning-is-folded-until-its-button-is-pressed ()
  (tests-with-chat "reasoning"
    (tests-say "Please build the house")
    (tests-await-state "idle")
    (should-not (tests-shows "so I start it and go on"))
    (tests-press "▸ Reasoning")
    (should (tests-shows "▾ Reasoning, 11 words\nA build takes long, so I start it and go on.\n"))
    (tests-press "▾ Reasoning")
    (should-not (tests-shows "so I start it and go on"))
    (sojourn-chat-toggle-reasoning)
    (should (tests-shows "so I start it and go on"))))

(ert-deftest text-is-shown-while-it-is-streamed ()
  (tests-with-chat "stream"
    (tests-say "write long")
    (tests-await "three")
    (should-not (tests-shows "forty"))
    (tests-await-state "idle")
    (should (= 1 (tests-count "thirty-nine forty")))
    (tests-same-when-replayed)))

(ert-deftest what-is-written-meanwhile-stays-and-history-is-read-only ()
  (tests-with-chat "input"
    (tests-say "write long")
    (insert "a new thought")
    (backward-char 7)
    (tests-await-state "idle")
    (should (equal (sojourn-draw-input) "a new thought"))
    (should (looking-at-p "thought\\'"))
    (should-error (save-excursion (goto-char (point-min)) (insert "x")) :type 'text-read-only)
    (should-error (save-excursion (goto-char (sojourn-draw-input-start)) (delete-char -1))
                  :type 'text-read-only)
    (sojourn-draw-set-input "")
    (sojourn-chat-previous-input)
    (should (equal (sojourn-draw-input) "write long"))
    (beginning-of-line)
    (should (= (point) (sojourn-draw-input-start)))))

(ert-deftest markdown-gets-faces-and-stays-as-it-was-written ()
  (tests-with-chat "markdown"
    (tests-say "show markdown")
    (tests-await-state "idle")
    (should (tests-shows "# Heading\n\nSome **bold**, *slanted* and `code`."))
    (cl-flet ((face (text) (goto-char (point-min)) (search-forward text)
                (flatten-list (get-text-property (match-beginning 0) 'face))))
      (should (memq 'sojourn-heading (face "# Heading")))
      (should (memq 'bold (face "bold*")))
      (should (memq 'italic (face "slanted*")))
      (should (memq 'sojourn-code (face "`code")))
      (should (memq 'sojourn-code (face "return 1")))
      (should (memq 'font-lock-keyword-face (face "def f")))
      (should-not (face "The end")))))

(ert-deftest a-failure-is-told-in-the-models-own-words ()
  (tests-with-chat "failure"
    (tests-say "fail")
    (tests-await "The model is unwell")
    (tests-same-when-replayed)))

(ert-deftest what-is-added-goes-along-as-a-resource ()
  (tests-with-chat "context"
    (let ((chat (current-buffer)))
      (with-temp-buffer
        (rename-buffer "notes" t)
        (insert "one\ntwo\nthree\n")
        (setq sojourn--last-chat chat)
        (sojourn-add-region 5 9))
      (should (tests-shows "+ notes#L2-L2  [drop]"))
      (tests-say "what is this?")
      (should-not (tests-shows "[drop]"))
      (tests-await "[buffer:///notes#L2-L2]")
      (tests-await-state "idle")
      (let ((message (aref (plist-get (tests-answer 'agent/messages '(:agentId "context")) :messages) 0)))
        (should (equal (aref (plist-get message :content) 0)
                       '(:type "resource" :uri "buffer:///notes#L2-L2" :mimeType "text/plain" :text "two\n"))))
      (insert-file-contents-literally (progn (write-region "abc" nil "/tmp/sojourn-emacs-test.txt" nil 'silent)
                                             null-device))
      (sojourn-chat-add-file "/tmp/sojourn-emacs-test.txt")
      (should (tests-shows "+ sojourn-emacs-test.txt"))
      (tests-press "[drop]")
      (should-not (sojourn-draw-contexts))
      (delete-file "/tmp/sojourn-emacs-test.txt"))))

(ert-deftest a-prompt-from-any-buffer-takes-the-region-along ()
  (tests-with-chat "elsewhere"
    (with-temp-buffer
      (insert "first\nsecond\n")
      (sojourn-prompt "elsewhere" "look at this" 1 7))
    (tests-await "You said: ")
    (should (tests-shows "#L1-L1]\nlook at this\n"))))

;;; Busy agents

(ert-deftest what-is-sent-to-a-busy-agent-waits-in-its-inbox-and-stop-stops ()
  (tests-with-chat "busy"
    (tests-say "sleep")
    (tests-await "demo_sleep {\"seconds\":30}  0% Sleeping for 30 s.")
    (tests-say "are you there?")
    (tests-await "waits in the inbox: are you there?")
    (sojourn-chat-push "a note")
    (tests-await "waits in the inbox: a note")
    (sojourn-chat-stop)
    (tests-await "You said: ")
    (tests-await-state "idle")
    (should-not (tests-shows "waits in the inbox"))
    (should (tests-shows "• demo_sleep {\"seconds\":30}  ✗\n    Stopped by the user.\n"))
    (should (tests-shows "\nstopped\n"))
    (tests-same-when-replayed)))

;;; Approvals

(defun tests-approval (text)
  "Say TEXT in this chat; the approval that is asked for."
  (tests-say text)
  (tests-await "waits for your approval")
  (tests-until (cl-find sojourn-chat--id (sojourn-approvals) :test #'equal
                        :key (lambda (approval) (plist-get approval :agentId)))))

(ert-deftest a-call-is-approved-at-its-button ()
  (tests-with-chat "approve"
    (tests-approval "deploy website")
    (should (tests-shows "• demo_deploy {\"target\":\"website\"}  waits for your approval
  [look] [yes] [no] [edit] [answer] [always] [stop]\n"))
    (tests-await "waiting: waits for 1 approval")
    (tests-press "[look]")
    (with-current-buffer "*sojourn approval*"
      (should (tests-shows "demo_deploy   asked by approve\n\ntarget: website\n\n\"Always\" would make the rule: demo_deploy\n")))
    (tests-press "[yes]")
    (tests-await "Done: Deployed website.")
    (tests-await-state "idle")
    (should (tests-shows "✓  approved by emacs\n    Deployed website."))
    (should-not (tests-shows "[yes]"))
    (tests-same-when-replayed)))

(ert-deftest a-refusal-tells-the-model-why ()
  (tests-with-chat "deny"
    (tests-approval "deploy website")
    (cl-letf (((symbol-function 'read-multiple-choice) (lambda (&rest _) '(?n "no")))
              ((symbol-function 'read-string) (lambda (&rest _) "not on a Friday")))
      (sojourn-chat-decide))
    (tests-await "refused by emacs")
    (tests-await-state "idle")
    (should (tests-shows "not on a Friday"))
    (tests-same-when-replayed)))

(ert-deftest arguments-are-changed-as-json-before-the-call-runs ()
  (tests-with-chat "edit"
    (sojourn-edit-arguments (tests-approval "deploy website"))
    (with-current-buffer "*sojourn arguments*"
      (should (equal (buffer-string) "{\n  \"target\": \"website\"\n}"))
      (erase-buffer)
      (insert "{\"target\": ")
      (should-error (sojourn-arguments-commit) :type 'user-error)
      (goto-char (point-max))
      (insert "\"staging\"}")
      (sojourn-arguments-commit))
    (tests-await "Done: Deployed staging.")
    (tests-await-state "idle")
    (should (tests-shows "• demo_deploy {\"target\":\"staging\"}  ✓  changed and approved by emacs"))
    (tests-same-when-replayed)))

(ert-deftest of-two-calls-the-first-is-shown-and-offered-then-the-other ()
  (tests-with-chat "twins"
    (save-window-excursion
      (switch-to-buffer (current-buffer))
      (let ((noninteractive nil) prompts)
        (tests-say "deploy one and two")
        (tests-until (= (length (sojourn-approvals-of "twins")) 2))
        (let ((first (car (sojourn-approvals-of "twins")))
              (second (cadr (sojourn-approvals-of "twins"))))
          (should (equal (sojourn-approval--on-screen) first))
          (cl-letf (((symbol-function 'completing-read)
                     (lambda (prompt _ _ _ _ _ default) (push prompt prompts) default))
                    ((symbol-function 'read-multiple-choice)
                     (lambda (&rest _)
                       (sojourn-approval-announce second) ; as if it came just now
                       (should (equal (sojourn-approval--on-screen) first))
                       '(?y))))
            (sojourn-chat-decide))
          (should (string-search "(default 1  twins: demo_deploy {\"target\":\"one\"})" (car prompts)))
          (tests-await "Deployed one.")
          (tests-until (equal (sojourn-approval--on-screen) second))
          (sojourn-approve second)
          (tests-await "Deployed two.")
          (tests-until (null (sojourn-approval--on-screen))))))))

(ert-deftest a-call-is-answered-in-the-place-of-its-tool ()
  (tests-with-chat "answer"
    (sojourn-answer (tests-approval "deploy website") "I did it myself")
    (tests-await "Done: I did it myself")
    (tests-await-state "idle")
    (tests-same-when-replayed)))

(ert-deftest the-second-to-decide-is-told-who-was-first ()
  (tests-with-chat "second"
    (let ((approval (tests-approval "deploy website")))
      (sojourn-approve approval)
      (tests-await "Done: ")
      (let (said)
        (cl-letf (((symbol-function 'message) (lambda (&rest words) (push (apply #'format words) said))))
          (sojourn-abort approval)
          (tests-until said))
        (should (equal (car said) "Sojourn: emacs was first (approve)"))))))

(ert-deftest arguments-come-back-as-they-were ()
  (let ((json "{\"a\":{},\"b\":[],\"c\":null,\"d\":false,\"e\":true,\"f\":1.0,\"g\":[{\"h\":\"ü\\\"\"}],\"i\":12345678901234567890}"))
    (should (equal (sojourn-encode (sojourn-decode json)) json))
    (with-temp-buffer
      (insert json)
      (json-pretty-print-buffer)
      (should (equal (sojourn-encode (sojourn-arguments--read)) json)))))

(ert-deftest a-childs-question-is-shown-inside-its-parents-call ()
  (tests-with-chat "parent"
    (tests-say "ask a worker")
    (tests-await "waits for your approval")
    (tests-await "an approval of its child")
    (goto-char (point-min))
    (search-forward "• demo_deploy")
    (should (equal (substring-no-properties (get-text-property (1- (point)) 'line-prefix)) "  │ "))
    (search-backward "• delegate")
    (should-not (get-text-property (point) 'line-prefix))
    (let ((sojourn-agent-known (sojourn-agents--ordered)))
      (should (cl-find "parent" sojourn-agent-known :test #'equal
                       :key (lambda (agent) (sojourn-get agent :parent :agentId)))))
    (cl-letf (((symbol-function 'read-multiple-choice) (lambda (&rest _) '(?y "yes"))))
      (sojourn-chat-decide))
    (tests-await "The worker says: Done: Deployed staging.")
    (tests-await-state "idle")
    (tests-same-when-replayed)))

(ert-deftest the-daemons-own-preview-of-an-edit-is-shown ()
  (tests-with-chat "preview"
    (tests-approval "change the file")
    (tests-press "[look]")
    (with-current-buffer "*sojourn approval*"
      (should (tests-shows "sojourn-emacs-new.txt"))
      (search-forward "+made by an agent")
      (should (memq 'diff-added (flatten-list (get-text-property (1- (point)) 'face))))
      (call-interactively (key-binding "x")))
    (tests-await-state "idle")
    (should-not (file-exists-p "/tmp/sojourn-emacs-new.txt"))))

(ert-deftest an-edit-is-shown-as-a-diff ()
  (let* ((file (make-temp-file "sojourn-emacs" nil ".txt" "alpha\nbeta\ngamma\n"))
         (approval (list :approvalId "none" :agentId "nobody" :toolName "edit" :path []
                         :args (list :path file :old_text "beta\n" :new_text "BETA\n"))))
    (unwind-protect
        (with-current-buffer (sojourn-approval-show approval)
          (should (string-match-p "^-beta\n\\+BETA\n gamma\n" (buffer-string)))
          (search-forward "+BETA")
          (should (memq 'diff-added (flatten-list (get-text-property (1- (point)) 'face))))
          (should (tests-shows (concat "path: " file)))
          (sojourn-approval-show
           (append '(:preview (:type "diff" :path "a" :text "--- a\n+++ b\n@@ -1 +1 @@\n-x\n+y\n" :truncated t))
                   approval))
          (should (tests-shows "-x\n+y\n\n[the diff goes on]"))
          (should-not (tests-shows "-beta")))
      (kill-buffer "*sojourn approval*")
      (delete-file file))))

;;; Losing the connection

(ert-deftest a-lost-bridge-in-the-middle-of-a-message-costs-and-repeats-nothing ()
  (tests-with-chat "bridge"
    (tests-say "write long")
    (tests-await "three")
    (delete-process (sojourn-connection-process sojourn--connection))
    (tests-until (not (sojourn-ready-p)))
    (should (tests-shows "Not connected; what you send waits"))
    (tests-until (sojourn-ready-p))
    (tests-await-state "idle")
    (should (= 1 (tests-count "one two three four")))
    (should (= 1 (tests-count "thirty-nine forty")))
    (tests-same-when-replayed)))

(ert-deftest a-daemon-killed-in-the-middle-of-a-message-comes-back-and-is-resumed ()
  (tests-with-chat "killed"
    (tests-say "write long")
    (tests-await "three")
    (tests-kill-daemon)
    (tests-until (sojourn-ready-p))
    (tests-await-state "interrupted")
    (should-not (tests-shows "one two three"))
    (should (tests-shows "interrupted: waits for a resume  (C-c C-r resumes)"))
    (sojourn-chat-resume)
    (tests-await-state "idle")
    (should (= 1 (tests-count "one two three four")))
    (should (= 1 (tests-count "thirty-nine forty")))
    (tests-same-when-replayed)))

(ert-deftest an-approval-outlives-a-killed-daemon-and-what-was-sent-meanwhile-arrives-once ()
  (tests-with-chat "outlives"
    (let ((approval (tests-approval "deploy website")))
      (tests-kill-daemon)
      (tests-say "and then rest")
      (tests-until (sojourn-ready-p))
      (tests-await "waits in the inbox: and then rest")
      (should (tests-until (cl-find (plist-get approval :approvalId) (sojourn-approvals) :test #'equal
                                    :key (lambda (one) (plist-get one :approvalId)))))
      (tests-press "[yes]")
      (tests-await-state "idle")
      (should (= 1 (tests-count "    Deployed website.")))
      (should (equal (cl-count "and then rest" (tests-messages "outlives" "user") :test #'equal) 1))
      (tests-same-when-replayed))))

(ert-deftest events-that-were-dropped-for-slowness-are-replayed ()
  (tests-with-chat "slow"
    (tests-say "write long")
    (tests-await "three")
    (sojourn-chat--notified 'agent/resync (list :agentId "slow" :seq 1))
    (tests-await-state "idle")
    (should (= 1 (tests-count "one two three four")))
    (should (= 1 (tests-count "thirty-nine forty")))
    (tests-same-when-replayed)))

(ert-deftest another-store-means-that-everything-is-read-anew ()
  (tests-with-chat "store"
    (tests-say "hello")
    (tests-await-state "idle")
    (let ((live (tests-story)))
      (setq sojourn-chat--store "another one"
            sojourn-chat--seq 100000)
      (delete-process (sojourn-connection-process sojourn--connection))
      (tests-until (not (sojourn-ready-p)))
      (tests-until (sojourn-ready-p))
      (tests-await-state "idle")
      (should (equal live (tests-story))))))

(ert-deftest a-number-ahead-of-the-daemons-means-that-everything-is-read-anew ()
  (tests-with-chat "ahead"
    (tests-say "hello")
    (tests-await-state "idle")
    (let ((live (tests-story)))
      (sojourn-chat--attach 100000)
      (tests-await-state "idle")
      (should (equal live (tests-story))))))

(ert-deftest a-snapshot-is-drawn-from-the-messages-and-live-events-follow ()
  (tests-with-chat "snapshot"
    (tests-say "deploy website")
    (tests-await "waits for your approval")
    (tests-press "[yes]")
    (tests-await-state "idle")
    (let ((agent (tests-answer 'agent/get '(:agentId "snapshot"))))
      (sojourn-chat--attached (list :seq (plist-get agent :seq) :oldestSeq (plist-get agent :seq)
                                    :mode "snapshot" :agent agent :streaming [])))
    (tests-await "Done: Deployed website.")
    (should (tests-shows "• demo_deploy {\"target\":\"website\"}  ✓\n    Deployed website."))
    (tests-say "and now?")
    (tests-await-state "idle")
    (should (= 1 (tests-count "You said: and now?")))))

(ert-deftest an-answer-to-the-daemon-names-no-method ()
  (let (sent)
    (cl-letf (((symbol-function 'process-send-string) (lambda (_ line) (push line sent))))
      (let ((connection (sojourn-connection :name "none" :process nil)))
        (jsonrpc-connection-send connection :id 7 :method 'tool/execute :result '(:content "x"))
        (jsonrpc-connection-send connection :id 8 :method 'agent/get :params '(:agentId "a"))))
    (should (equal (nreverse sent)
                   '("{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{\"content\":\"x\"}}\n"
                     "{\"jsonrpc\":\"2.0\",\"method\":\"agent/get\",\"id\":8,\"params\":{\"agentId\":\"a\"}}\n")))))

(ert-deftest a-program-that-does-not-start-is-told-and-tried-again ()
  (sojourn-disconnect)
  (unwind-protect
      (let ((sojourn-command '("/nonexistent/sojourn" "connect")))
        (sojourn-connect)
        (should (string-prefix-p "/nonexistent/sojourn does not start" sojourn--failure))
        (should sojourn--timer)
        (with-current-buffer (let ((waits 0)) (ignore waits) (sojourn-health))
          (should (tests-shows "look Program     /nonexistent/sojourn is not in `exec-path'"))))
    (sojourn-connect)
    (tests-until (sojourn-ready-p))))

(ert-deftest old-events-are-replayed-on-request ()
  (with-current-buffer (tests-chat "older")
    (tests-say "first words")
    (tests-await-state "idle")
    (tests-say "second words")
    (tests-await-state "idle")
    (let ((whole (tests-story)) (kill-buffer-query-functions nil))
      (kill-buffer)
      (let ((sojourn-replay-limit 5))
        (with-current-buffer (sojourn-chat-open "older" t)
          (tests-await-state "idle")
          (should (tests-shows "[what was said before]"))
          (should-not (tests-shows "first words"))
          (should (tests-shows "You said: second words"))
          (tests-press "[what was said before]")
          (tests-await "first words")
          (tests-await-state "idle")
          (should (equal whole (tests-story))))))))

(ert-deftest an-event-that-was-missed-is-asked-for-again ()
  (tests-with-chat "hole"
    (let* ((missed nil)
           (miss (lambda (draw params)
                   (if (and (eql (sojourn-get params :seq) 3) (not missed))
                       (setq missed t)
                     (funcall draw params)))))
      (advice-add 'sojourn-chat--event :around miss)
      (unwind-protect
          (progn (tests-say "is anything missing?")
                 (tests-await-state "idle"))
        (advice-remove 'sojourn-chat--event miss))
      (should missed)
      (should (= 1 (tests-count "\nis anything missing?")))
      (should (= 1 (tests-count "You said: is anything missing?")))
      (tests-same-when-replayed))))

(ert-deftest an-event-that-cannot-be-read-leaves-a-word-in-its-place ()
  (tests-with-chat "unreadable"
    (let ((miss (lambda (draw params)
                  (unless (eql (sojourn-get params :seq) 3) (funcall draw params)))))
      (advice-add 'sojourn-chat--event :around miss)
      (unwind-protect
          (progn (tests-say "is anything missing?")
                 (tests-await-state "idle"))
        (advice-remove 'sojourn-chat--event miss))
      (should (= 1 (tests-count "Something that was said here cannot be shown")))
      (should (= 1 (tests-count "You said: is anything missing?"))))))

;;; Agents

(ert-deftest the-list-says-what-agents-wait-for ()
  (tests-with-chat "listed"
    (let ((approval (tests-approval "deploy website")))
      (sojourn-list)
      (with-current-buffer "*sojourn agents*"
        (tests-until (goto-char (point-min)) (re-search-forward "^ listed +waiting +1 approval " nil t))
        (should (equal (tabulated-list-get-id) "listed"))
        (sojourn-agents-title "The lister")
        (tests-await "The lister")
        (sojourn-abort approval)
        (tests-until (goto-char (point-min)) (re-search-forward "^ listed +idle " nil t))
        (cl-letf (((symbol-function 'yes-or-no-p) (lambda (_) t)))
          (sojourn-agents-delete))
        (tests-until (not (tests-shows "The lister")))))
    (tests-await "This agent was deleted")))

(ert-deftest you-hear-of-an-agent-in-the-background-and-the-mode-line-counts-it ()
  (tests-answer 'agent/create '(:agentId "background" :config (:tools ["*"])))
  (sojourn-mode-line-mode 1)
  (unwind-protect
      (progn
        (setq tests-notified nil)
        (tests-answer 'agent/prompt '(:agentId "background" :content "deploy website" :wait :json-false))
        (tests-until (member "background asks for your approval (M-x sojourn-decide)" tests-notified))
        (should (string-match-p "\\` Soj\\[.*[0-9]!\\]" sojourn-mode-line-string))
        (let ((sojourn--agents (copy-hash-table sojourn--agents)) (before sojourn-mode-line-string))
          (puthash "a-child" '(:agentId "a-child" :approvals 1 :state "waiting" :updatedAt "2"
                               :parent (:agentId "background"))
                   sojourn--agents)
          (should (equal (concat (sojourn-mode-line--text)) before)))
        (tests-until (cl-find "background" (sojourn-approvals) :test #'equal
                              :key (lambda (approval) (plist-get approval :agentId))))
        (sojourn-approve (cl-find "background" (sojourn-approvals) :test #'equal
                                  :key (lambda (approval) (plist-get approval :agentId))))
        (tests-until (member "background has finished" tests-notified)))
    (sojourn-mode-line-mode -1)))

(ert-deftest an-agent-on-the-screen-is-not-announced ()
  (tests-with-chat "onscreen"
    (save-window-excursion
      (switch-to-buffer (current-buffer))
      (setq tests-notified nil)
      (tests-say "hello")
      (tests-await-state "idle")
      (should-not (cl-find "onscreen" tests-notified :test #'string-search)))))

(ert-deftest health-tells-of-the-daemon-and-its-models ()
  (with-current-buffer (sojourn-health)
    (tests-await "Approvals")
    (should (string-match-p "^ok   Daemon      Sojourn .*, protocol 1, ready, " (buffer-string)))
    (should (tests-shows "(default: scripted)"))
    (should-not (string-match-p "^look Program" (buffer-string)))))

;;; Tools

(ert-deftest an-agent-reads-what-is-selected ()
  (tests-with-chat "selected"
    (let ((file (make-temp-file "sojourn-emacs" nil ".txt" "one\ntwo\nthree\n")))
      (save-window-excursion
        (switch-to-buffer (find-file-noselect file))
        (goto-char (point-min))
        (forward-line 1)
        (push-mark (point) t t)
        (forward-line 1)
        (with-current-buffer (sojourn-chat-buffer "selected")
          (sojourn-chat-say "selected" "what is selected")
          (tests-await (concat "You have selected: " file ", line 3, column 0\nSelected, lines 2 to 2:\ntwo\n")))
        (kill-buffer))
      (delete-file file))))

(defmacro tests-with-file (variable content &rest body)
  "With VARIABLE bound to a file of CONTENT do BODY."
  (declare (indent 2))
  `(let ((,variable (make-temp-file "sojourn-emacs" nil ".txt" ,content)))
     (unwind-protect (progn ,@body)
       (when-let ((buffer (find-buffer-visiting ,variable)))
         (with-current-buffer buffer (set-buffer-modified-p nil))
         (kill-buffer buffer))
       (delete-file ,variable))))

(defun tests-tool (name &rest arguments)
  "Run the tool NAME with ARGUMENTS; (CONTENT . FAILED)."
  (let ((answer (sojourn-tools-execute (list :agentId "nobody" :callId "c" :name name :arguments arguments))))
    (cons (plist-get answer :content) (plist-get answer :isError))))

(defun tests-disk (file)
  "What is in FILE on the disk."
  (with-temp-buffer (insert-file-contents file) (buffer-string)))

(ert-deftest an-agents-edit-is-approved-saved-and-can-be-undone ()
  (tests-with-chat "editor"
    (tests-with-file file "alpha\nbeta\ngamma\n"
      (tests-approval (concat "edit " file))
      (tests-press "[yes]")
      (tests-await (format "Emacs says: Edited line 2 of %s and saved it." file))
      (should (equal (tests-disk file) "alpha\nBETA\ninserted\ngamma\n"))
      (with-current-buffer (find-buffer-visiting file)
        (should-not (buffer-modified-p))
        (undo)
        (should (equal (buffer-string) "alpha\nbeta\ngamma\n"))))))

(ert-deftest every-place-can-be-replaced-and-a-new-file-be-made ()
  (tests-with-file file "a b a\n"
    (should-not (cdr (tests-tool "editor_apply_edit" :path file :old_text "a" :new_text "aa" :replace_all t)))
    (should (equal (tests-disk file) "aa b aa\n"))
    (with-current-buffer (find-buffer-visiting file)
      (undo)
      (should (equal (buffer-string) "a b a\n"))
      (set-buffer-modified-p nil)
      (kill-buffer))
    (delete-file file)
    (should-not (cdr (tests-tool "editor_apply_edit" :path file :old_text "" :new_text "new\n")))
    (should (equal (tests-disk file) "new\n"))))

(ert-deftest an-edit-respects-what-is-not-saved ()
  (tests-with-file file "alpha\nbeta\n"
    (with-current-buffer (find-file-noselect file)
      (goto-char (point-max))
      (insert "mine\n")
      (should (string-suffix-p "was not saved." (car (tests-tool "editor_apply_edit" :path file :old_text "alpha"
                                                                 :new_text "ALPHA"))))
      (should (equal (buffer-string) "ALPHA\nbeta\nmine\n"))
      (should (buffer-modified-p))
      (should (equal (tests-disk file) "alpha\nbeta\n"))
      (set-file-times file (time-add nil 100))
      (should (equal (tests-tool "editor_apply_edit" :path file :old_text "beta" :new_text "x")
                     (cons (format "%s has unsaved changes in Emacs, and the file has changed on disk; the user has to mend that"
                                   (buffer-name))
                           t)))
      (should (equal (buffer-string) "ALPHA\nbeta\nmine\n")))))

(ert-deftest an-edit-of-a-file-that-changed-on-disk-begins-with-what-is-there ()
  (tests-with-file file "alpha\n"
    (with-current-buffer (find-file-noselect file)
      (write-region "new\nalpha\n" nil file nil 'silent)
      (set-file-times file (time-add nil 100))
      (should-not (cdr (tests-tool "editor_apply_edit" :path file :old_text "alpha" :new_text "beta")))
      (should (equal (tests-disk file) "new\nbeta\n")))))

(ert-deftest edits-that-cannot-be-made-say-why ()
  (tests-with-file file "twice twice\n"
    (pcase-dolist (`(,path ,old ,words)
                   `((,file "never" "The old_text is not in")
                     (,file "twice" "The old_text is more than once in")
                     (,file "" "exists already")
                     ("/nonexistent/file" "x" "There is no file /nonexistent/file")
                     ("" "x" "No path was given")))
      (let ((answer (tests-tool "editor_apply_edit" :path path :old_text old :new_text "new")))
        (should (cdr answer))
        (should (string-search words (car answer)))))
    (should (equal (tests-disk file) "twice twice\n")))
  (should (equal (tests-tool "no_such_tool") '("Emacs has no tool no_such_tool" . t))))

(ert-deftest buffers-diagnostics-and-places-are-for-agents-to-see ()
  (tests-with-file file "one\ntwo\nthree\n"
    (with-current-buffer (find-file-noselect file)
      (goto-char (point-max))
      (insert "four\n"))
    (should (string-search (concat file "  (text-mode, unsaved changes)") (car (tests-tool "editor_open_buffers"))))
    (should (equal (car (tests-tool "editor_read_buffer" :path file :line 3 :lines 2))
                   "     3\tthree\n     4\tfour"))
    (should (equal (car (tests-tool "editor_open_location" :path file :line 2 :column 3))
                   (format "Emacs shows %s, line 2." file)))
    (with-current-buffer (find-buffer-visiting file)
      (should (equal (point) 7))
      (should (get-buffer-window))
      (should (string-search "flymake is off" (car (tests-tool "editor_diagnostics"))))
      (let ((warned nil))
        (setq-local flymake-diagnostic-functions
                    (list (lambda (report &rest _)
                            (funcall report (list (flymake-make-diagnostic (current-buffer) 5 8 :error "No two")))
                            (setq warned t))))
        (flymake-mode 1)
        (flymake-start)
        (tests-until warned))
      (should (equal (car (tests-tool "editor_diagnostics" :path file))
                     (format "%s:2: error: No two" file))))))

;;; Unsaved files

(ert-deftest the-daemons-own-tools-see-and-change-what-is-not-saved ()
  (with-current-buffer (tests-chat "unsaved" :approvals '(:* "allow"))
    (tests-with-file file "alpha\nbeta\n"
      (let ((chat (current-buffer)))
        (with-current-buffer (find-file-noselect file)
          (goto-char (point-min))
          (insert "mine 𝒳\n")
          (narrow-to-region (point-min) (point))
          (with-current-buffer chat
            (tests-say (concat "read " file))
            (tests-await "It says: mine 𝒳\nalpha\nbeta")
            (tests-say (format "replace in %s 𝒳 𝒴 and\nmore" file))
            (tests-await "It says: Edited"))
          (widen)
          (should (equal (buffer-string) "mine 𝒴 and\nmore\nalpha\nbeta\n"))
          (should (buffer-modified-p))
          (should (equal (tests-disk file) "alpha\nbeta\n"))
          (let ((last-command nil)) (undo))
          (should (equal (buffer-string) "mine 𝒳\nalpha\nbeta\n"))
          ;; While the request is under way, the user types.
          (let* ((buffer (current-buffer))
                 (sojourn-edit-function (lambda (params)
                                          (with-current-buffer buffer
                                            (goto-char (point-max))
                                            (insert "typed\n"))
                                          (sojourn-documents-edit params))))
            (with-current-buffer chat
              (tests-say (format "replace in %s mine yours" file))
              (tests-await "the user has changed it meanwhile")))
          (should (equal (buffer-string) "mine 𝒳\nalpha\nbeta\ntyped\n"))
          (let ((inhibit-message t)) (save-buffer))
          (should-not sojourn-documents--told)
          (with-current-buffer chat
            (tests-say (format "replace in %s mine ours" file))
            (tests-until (= (tests-count "It says: Edited") 2)))
          (should (equal (tests-disk file) "ours 𝒳\nalpha\nbeta\ntyped\n")))))))

;;; sojourn-tests.el ends here
