#!/bin/sh
# $mark
# Prints a token of this node's Azure identity for the kubelet. Secrets are in $identity, which only root can read.
for agent in $launcher $program; do
    [ -x "$$agent" ] && exec "$$agent" token kubernetes --identity $identity
done
echo "aks-flex-node not found at $program" >&2
exit 1
