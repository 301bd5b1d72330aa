//go:build commands

package commands

import (
	_ "github.com/opencontainers/runc"
)
