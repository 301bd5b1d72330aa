//go:build commands

package commands

import (
	_ "github.com/containerd/containerd/cmd/containerd"
	_ "github.com/containerd/containerd/cmd/containerd-shim"
	_ "github.com/containerd/containerd/cmd/containerd-shim-runc-v1"
	_ "github.com/containerd/containerd/cmd/containerd-shim-runc-v2"
	_ "github.com/containerd/containerd/cmd/containerd-stress"
	_ "github.com/containerd/containerd/cmd/ctr"
)
