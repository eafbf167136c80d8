package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// portsRoot is where the kernel tells of ports of the compute network,
// InfiniBand's and RoCE's alike.
const portsRoot = "/sys/class/infiniband"

// readPorts tells what the counters do not: whether a port is up, and how fast.
func readPorts(root string, to *samples) error {
	devices, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // no such network
	}
	if err != nil {
		return fmt.Errorf("ports: %w", err)
	}
	var errs []error
	for _, d := range devices {
		ports, err := os.ReadDir(filepath.Join(root, d.Name(), "ports"))
		if err != nil {
			errs = append(errs, fmt.Errorf("ports: %w", err))
			continue
		}
		for _, p := range ports {
			dir := filepath.Join(root, d.Name(), "ports", p.Name())
			state, err := word(filepath.Join(dir, "state")) // 4: ACTIVE
			if err != nil {
				errs = append(errs, fmt.Errorf("ports: %w", err))
				continue
			}
			to.put(telemetry.NodeFabricUp, "", boolean(strings.HasPrefix(state, "4")), d.Name(), p.Name())
			rate, err := word(filepath.Join(dir, "rate")) // 400 Gb/sec (4X NDR)
			if err != nil {
				continue // a port that is down may have none
			}
			if gigabits, err := strconv.ParseFloat(rate, 64); err == nil {
				to.put(telemetry.NodeFabricSpeed, "", gigabits*1e9/8, d.Name(), p.Name())
			}
		}
	}
	return errors.Join(errs...)
}

// word is the first of a file.
func word(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	f := strings.Fields(string(text))
	if len(f) == 0 {
		return "", fmt.Errorf("%s is empty", path)
	}
	return f[0], nil
}

// readPressure tells how much the host's tasks wait, and its load. A kernel
// without pressure files has no such series.
func readPressure(proc string, to *samples) error {
	load, err := word(filepath.Join(proc, "loadavg"))
	if err != nil {
		return fmt.Errorf("load: %w", err)
	}
	if v, err := strconv.ParseFloat(load, 64); err == nil {
		to.put(telemetry.NodeHostLoad1, "", v)
	}
	for _, resource := range []string{"cpu", "io", "memory"} {
		text, err := os.ReadFile(filepath.Join(proc, "pressure", resource))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			var share float64
			if n, _ := fmt.Sscanf(line, "some avg10=%f", &share); n == 1 {
				to.put(telemetry.NodeHostPressureRatio, "", share/100, resource)
			}
		}
	}
	return nil
}
