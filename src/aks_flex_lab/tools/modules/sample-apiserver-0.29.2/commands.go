//go:build commands

package commands

import (
	_ "k8s.io/sample-apiserver"
)
