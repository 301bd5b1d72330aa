// Podnet is the network plugin of the lab's cluster, in the manner of kindnetd: it runs on every node, writes the CNI
// configuration for the node's pod CIDR, and adds routes to the pod CIDRs of the nodes on the same link. The routers
// of the lab know the way to the others.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

var version = "unknown"

const (
	network  = "podnet"
	protocol = 74 // marks the routes of this program, so that it removes only its own
	resync   = time.Minute
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "--version" {
		fmt.Println("podnet", version)
		return
	}
	if err := run(os.Getenv("NODE_NAME"), os.Getenv("CNI_CONF_DIR")); err != nil {
		log.Fatal(err)
	}
}

func run(node, directory string) error {
	if node == "" || directory == "" {
		return errors.New("NODE_NAME and CNI_CONF_DIR must be set")
	}
	config, err := rest.InClusterConfig()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(client, resync)
	nodes := factory.Core().V1().Nodes()
	plugin := &plugin{node: node, directory: directory, list: func() []any { return nodes.Informer().GetStore().List() }}
	changed := func(any) { plugin.reconcile() }
	_, err = nodes.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    changed,
		UpdateFunc: func(_, _ any) { plugin.reconcile() },
		DeleteFunc: changed,
	})
	if err != nil {
		return err
	}
	factory.StartWithContext(context.Background())
	factory.WaitForCacheSyncWithContext(context.Background())
	plugin.synced()
	select {}
}

type plugin struct {
	node      string
	directory string
	list      func() []any
	lock      sync.Mutex
	ready     bool
}

// synced begins with the changes, once all nodes are known: a route must not be removed because its node is not yet.
func (p *plugin) synced() {
	p.lock.Lock()
	p.ready = true
	p.lock.Unlock()
	p.reconcile()
}

func (p *plugin) reconcile() {
	p.lock.Lock()
	defer p.lock.Unlock()
	if !p.ready {
		return
	}
	routes := map[string]net.IP{}
	for _, each := range p.list() {
		node := each.(*v1.Node)
		switch {
		case node.Spec.PodCIDR == "":
		case node.Name == p.node:
			if err := writeConfig(p.directory, node.Spec.PodCIDR); err != nil {
				log.Printf("CNI configuration: %v", err)
			}
		default:
			if address := internalAddress(node); address != nil {
				routes[node.Spec.PodCIDR] = address
			}
		}
	}
	if err := setRoutes(routes); err != nil {
		log.Printf("routes: %v", err)
	}
}

func internalAddress(node *v1.Node) net.IP {
	for _, address := range node.Status.Addresses {
		if address.Type == v1.NodeInternalIP {
			return net.ParseIP(address.Address)
		}
	}
	return nil
}

// writeConfig writes the CNI configuration in one step, because containerd reads it as soon as it exists.
func writeConfig(directory, cidr string) error {
	document := map[string]any{
		"cniVersion": "1.0.0",
		"name":       network,
		"plugins": []any{
			map[string]any{
				"type":   "ptp",
				"ipMasq": false,
				"ipam": map[string]any{
					"type":   "host-local",
					"ranges": []any{[]any{map[string]any{"subnet": cidr}}},
					"routes": []any{map[string]any{"dst": "0.0.0.0/0"}},
				},
			},
			map[string]any{"type": "portmap", "capabilities": map[string]any{"portMappings": true}},
		},
	}
	content, err := json.MarshalIndent(document, "", "  ")
	if err != nil {
		return err
	}
	path := filepath.Join(directory, "10-"+network+".conflist")
	if present, err := os.ReadFile(path); err == nil && string(present) == string(content) {
		return nil
	}
	if err := os.WriteFile(path+".new", content, 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// setRoutes adds the missing routes to nodes on the same link, and removes those of nodes that are gone.
func setRoutes(desired map[string]net.IP) error {
	present, err := netlink.RouteListFiltered(
		netlink.FAMILY_V4, &netlink.Route{Protocol: protocol}, netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return err
	}
	for _, route := range present {
		if gateway, ok := desired[route.Dst.String()]; !ok || !gateway.Equal(route.Gw) {
			if err := netlink.RouteDel(&route); err != nil && !errors.Is(err, syscall.ESRCH) {
				return err
			}
		}
	}
	for cidr, gateway := range desired {
		_, subnet, err := net.ParseCIDR(cidr)
		if err != nil {
			return err
		}
		if !onLink(gateway) {
			continue
		}
		route := &netlink.Route{Dst: subnet, Gw: gateway, Protocol: protocol}
		if err := netlink.RouteReplace(route); err != nil {
			return fmt.Errorf("%s via %s: %w", cidr, gateway, err)
		}
	}
	return nil
}

// onLink tells whether an address is reached without a router.
func onLink(address net.IP) bool {
	routes, err := netlink.RouteGet(address)
	return err == nil && len(routes) > 0 && routes[0].Gw == nil
}
