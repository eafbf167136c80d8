//go:build !crashpoints

package app

import (
	"github.com/evenkeel-gpu/evenkeel/rebalancer"
	nodeactuator "github.com/evenkeel-gpu/evenkeel/rebalancer/actuator/node"
)

// crashPoints are the ports as they are; see crash.go for the test build.
type crashPoints struct{}

func newCrashPoints() (crashPoints, error) { return crashPoints{}, nil }

func (crashPoints) journal(j rebalancer.Journal) rebalancer.Journal    { return j }
func (crashPoints) lease(l rebalancer.Lease) rebalancer.Lease          { return l }
func (crashPoints) actuator(a rebalancer.Actuator) rebalancer.Actuator { return a }
func (crashPoints) orders(o nodeactuator.Orders) nodeactuator.Orders   { return o }
