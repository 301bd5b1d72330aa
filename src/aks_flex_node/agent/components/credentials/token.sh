#!/bin/sh
# $mark
# Gives the kubelet a token of this node's Azure identity. What is secret is in $identity, which root alone reads.
for agent in $launcher $program; do
    [ -x "$$agent" ] && exec "$$agent" token kubernetes --identity $identity
done
echo "there is no aks-flex-node at $program" >&2
exit 1
