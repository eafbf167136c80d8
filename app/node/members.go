package node

import (
	"log/slog"

	"github.com/evenkeel-gpu/evenkeel/config"
	"github.com/evenkeel-gpu/evenkeel/exporter/attribution"
	"github.com/evenkeel-gpu/evenkeel/process"
)

// members tells whose processes hold GPUs, by the rules of this node's agent.
func members(cfg *config.Exporter, log *slog.Logger) *attribution.Attribution {
	at := cfg.Attribution
	return attribution.New(attribution.Options{
		Node: cfg.Node, Kubelet: at.KubeletSocket, PodLogs: at.PodLogs, JobFiles: at.JobFiles, MDev: "/sys/bus/mdev/devices", PCI: "/sys/bus/pci",
		Rules: func() (process.Rules, error) {
			p, err := config.AgentProcesses(cfg.AgentFile)
			return process.Rules{Users: p.Users, Cgroups: p.Cgroups}, err
		},
		Log: log,
	})
}
