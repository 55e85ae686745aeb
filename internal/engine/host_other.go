//go:build !linux

package engine

import (
	"context"

	"github.com/glovebox-dev/glovebox/backend"
)

func (e *Engine) local(context.Context, Info) bool { return false }

func notHere(op string) error {
	return &backend.Error{Op: op, Kind: backend.ErrUnsupported, Fix: "containers run on this host on Linux only"}
}

// FindRemains is unsupported here.
func FindRemains(...string) ([]Remains, error) { return nil, notHere("remains") }

// Clean is unsupported here.
func (r Remains) Clean(context.Context) error { return notHere("clean") }

// Kill is unsupported here.
func (p HostProcess) Kill() error { return notHere("kill") }

// HostGroups is unsupported here.
func HostGroups(string, int) (Groups, error) { return Groups{}, notHere("control groups") }
