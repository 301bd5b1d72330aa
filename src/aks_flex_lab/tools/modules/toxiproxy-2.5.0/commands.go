//go:build commands

package commands

import (
	_ "github.com/Shopify/toxiproxy/v2/cmd/server"
)
