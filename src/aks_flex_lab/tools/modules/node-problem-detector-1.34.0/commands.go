//go:build commands

package commands

import (
	_ "k8s.io/node-problem-detector/cmd/nodeproblemdetector"
	_ "k8s.io/node-problem-detector/cmd/healthchecker"
)
