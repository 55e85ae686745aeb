package engine

import (
	"context"

	"github.com/docker/docker/api/types/network"

	"github.com/glovebox-dev/glovebox/backend"
)

// Network is a bridge network.
type Network struct {
	ID, Name string
	Labels   map[string]string
	// Internal networks have no way out; the host's own addresses are reached
	// from them all the same.
	Internal bool
	// Options are the bridge driver's, such as
	// com.docker.network.bridge.enable_icc.
	Options map[string]string
}

// CreateNetwork makes a bridge network and returns its ID. A name in use is
// conflict.
func (e *Engine) CreateNetwork(ctx context.Context, n Network) (string, error) {
	if err := checkName("create network", "network", n.Name); err != nil {
		return "", err
	}
	if len(n.Labels) == 0 {
		return "", invalid("create network", "labels", errNoLabels)
	}
	if err := checkLabels("create network", n.Labels); err != nil {
		return "", err
	}
	// Engines before 25 have no unique names, so look first.
	if _, err := e.Network(ctx, n.Name); backend.KindOf(err) != backend.ErrNotFound {
		if err != nil {
			return "", err
		}
		return "", &backend.Error{Op: "create network", Kind: backend.ErrConflict, Field: "network", Fix: "choose another name than " + n.Name}
	}
	var made network.CreateResponse
	err := e.do(ctx, call{op: "create network", within: e.limits.normal, changes: true}, func(ctx context.Context) (err error) {
		made, err = e.api.NetworkCreate(ctx, n.Name, network.CreateOptions{
			Driver: "bridge", Internal: n.Internal, Options: n.Options, Labels: n.Labels,
		})
		return err
	})
	return made.ID, err
}

// Network tells about a network, by name or ID.
func (e *Engine) Network(ctx context.Context, name string) (Network, error) {
	if err := checkName("network", "network", name); err != nil {
		return Network{}, err
	}
	var got network.Inspect
	err := e.do(ctx, call{op: "network", within: e.limits.quick, field: "network"}, func(ctx context.Context) (err error) {
		got, err = e.api.NetworkInspect(ctx, name, network.InspectOptions{})
		return err
	})
	if err != nil {
		return Network{}, err
	}
	return asNetwork(got), nil
}

// Networks lists networks that have the label key, with value unless that is
// "".
func (e *Engine) Networks(ctx context.Context, key, value string) ([]Network, error) {
	var got []network.Summary
	err := e.do(ctx, call{op: "networks", within: e.limits.normal}, func(ctx context.Context) (err error) {
		got, err = e.api.NetworkList(ctx, network.ListOptions{Filters: byLabel(key, value)})
		return err
	})
	if err != nil {
		return nil, err
	}
	var out []Network
	for _, n := range got {
		out = append(out, asNetwork(n))
	}
	return out, nil
}

func asNetwork(n network.Inspect) Network {
	return Network{ID: n.ID, Name: n.Name, Labels: n.Labels, Internal: n.Internal, Options: n.Options}
}

// RemoveNetwork removes a network. One that is in use is conflict or denied,
// one that is not there no error.
func (e *Engine) RemoveNetwork(ctx context.Context, name string) error {
	if err := checkName("remove network", "network", name); err != nil {
		return err
	}
	err := e.do(ctx, call{op: "remove network", within: e.limits.normal, changes: true, field: "network"}, func(ctx context.Context) error {
		return e.api.NetworkRemove(ctx, name)
	})
	if backend.KindOf(err) == backend.ErrNotFound {
		return nil
	}
	return err
}
