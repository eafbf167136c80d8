//go:build !crashpoints

package node

import (
	"github.com/evenkeel-gpu/evenkeel/agent"
	"github.com/evenkeel-gpu/evenkeel/process"
)

// crashPoints are the ports as they are; see crash.go for the test build.
type crashPoints struct{}

func newCrashPoints() (crashPoints, error) { return crashPoints{}, nil }

func (crashPoints) bus(b agent.Bus) agent.Bus                { return b }
func (crashPoints) writer(w agent.Writer) agent.Writer       { return w }
func (crashPoints) processes(p process.Proc) agent.Processes { return p }
