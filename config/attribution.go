package config

import (
	"errors"
	"fmt"
	"path/filepath"
)

// Attribution says where this node tells what its GPUs are given to. Which
// processes hold them needs none of it.
type Attribution struct {
	// KubeletSocket is the kubelet's podresources socket; empty to ask no kubelet.
	// A node that never has one is no fault.
	KubeletSocket string `yaml:"kubelet_socket"`
	// PodLogs is where the kubelet keeps pods' logs, in folders that name them.
	PodLogs string `yaml:"pod_logs"`
	// JobFiles is a folder with a file for each GPU that names its jobs, written by
	// a scheduler's prolog and removed by its epilog.
	JobFiles string `yaml:"job_files,omitempty"`
}

// DefaultAttribution is where a kubelet and its pods' logs are by default.
func DefaultAttribution() Attribution {
	return Attribution{KubeletSocket: "/var/lib/kubelet/pod-resources/kubelet.sock", PodLogs: "/var/log/pods"}
}

func (a Attribution) validate() error {
	var errs []error
	for _, p := range []struct{ key, path string }{{"kubelet_socket", a.KubeletSocket}, {"pod_logs", a.PodLogs}, {"job_files", a.JobFiles}} {
		if p.path != "" && !filepath.IsAbs(p.path) {
			errs = append(errs, fmt.Errorf("attribution.%s %q: want a path from the root", p.key, p.path))
		}
	}
	return errors.Join(errs...)
}
