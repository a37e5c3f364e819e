#!/bin/sh
# Asks an agent and prints its answer, with a shell and socat (or OpenBSD's nc): one JSON message a line.
#
#     sh examples/ask.sh "What is the time?" [AGENT]
#
# Without AGENT a new one is made, which works in the current directory. A call that needs a decision pauses it:
# `sojourn approvals`, `sojourn approve`.
set -eu

question=$(printf '%s' "${1:?usage: ask.sh QUESTION [AGENT]}" | sed 's/\\/\\\\/g; s/"/\\"/g' | tr '\n\t' '  ')
agent=${2:-ask-$$}
socket=$(sojourn socket)
# Whether the socket's file is there says nothing: a killed daemon leaves it behind.
sojourn pid >/dev/null 2>&1 || sojourn serve --detach
here=$(printf '%s' "$PWD" | sed 's/%/%25/g; s/ /%20/g; s/"/%22/g; s/#/%23/g; s/?/%3F/g; s/\\/%5C/g')

requests() {
    printf '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"rootUri":"file://%s","capabilities":{"experimental":{"sojourn":{"clientId":"ask-sh"}}}}}\n' "$here"
    [ $# -gt 0 ] ||
        printf '{"jsonrpc":"2.0","id":2,"method":"agent/create","params":{"agentId":"%s","config":{"tools":["*"]}}}\n' "$agent"
    printf '{"jsonrpc":"2.0","id":3,"method":"agent/prompt","params":{"agentId":"%s","content":"%s","onApproval":"pause"}}\n' \
        "$agent" "$question"
}

# The end of our input does not end the answers: they come until the last request is answered.
if command -v socat >/dev/null; then
    wire() { socat -t 600 - "UNIX-CONNECT:$socket"; }
else
    wire() { nc -N -U "$socket"; }
fi

shift
shift $(($# > 1 ? 1 : 0))
answer=$(requests "$@" | wire | grep '"id":3[,}]')

case $answer in
*'"error":{'*) printf '%s\n' "$answer" | sed 's/.*"message":"\(\([^"\\]\|\\.\)*\)".*/\1/' >&2 && exit 1 ;;
*'"reason":"paused"'*) echo "($agent is paused: see sojourn ps)" ;;
*) printf '%s\n' "$answer" | sed 's/.*"output":"\(\([^"\\]\|\\.\)*\)".*/\1/; s/\\n/\n/g; s/\\"/"/g; s/\\\\/\\/g' ;;
esac
