package node

import (
	"log/slog"

	"github.com/evenkeel-gpu/evenkeel/config"
	"github.com/evenkeel-gpu/evenkeel/exporter"
	"github.com/evenkeel-gpu/evenkeel/exporter/attribution"
	"github.com/evenkeel-gpu/evenkeel/process"
)

// members tells whose processes hold GPUs, by the rules of this node's agent.
func members(node, agentFile string, log *slog.Logger) exporter.Members {
	return attribution.New(attribution.Options{
		Node: node,
		Rules: func() (process.Rules, error) {
			p, err := config.AgentProcesses(agentFile)
			return process.Rules{Users: p.Users, Cgroups: p.Cgroups}, err
		},
		Log: log,
	})
}
