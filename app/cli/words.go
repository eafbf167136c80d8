package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// idleWords say why a device is not used.
var idleWords = map[string]string{
	"no_process": "no process holds it", "finished_holding": "finished, still held", "waiting_data": "waiting for data", "waiting_network": "waiting for the network",
	"cpu_starved": "waiting for the CPU", "throttled": "slowed down to nothing", "unknown": "why is not known",
}

var contentionWords = map[string]string{"noisy_neighbour": "others share it and it is never free", "nvlink": "its NVLinks are full", "network": "the node's ports are full"}

var fabricWords = map[string]string{
	"ok": "ok", "degraded": "links are down that should be up", "errors": "links have errors", "not_ready": "the driver has not joined it yet",
	"unconnected": "no link was up since the machine started", "unknown": "not known",
}

// hostWords say what a verdict on a host means, where it holds and where not.
var hostWords = map[string][2]string{
	"storage_stalled": {"storage is stalled", "storage keeps up"}, "cpu_starved": {"the CPU is the bottleneck", "the CPU keeps up"},
	"network_saturated": {"the network is full", "the network has room"}, "network_errors": {"the network has errors", "the network has no errors"},
	"network_down": {"a port of the network is down", "no port of the network is down"},
}

// said is a word's meaning; one that is not known here is said as it is.
func said(words map[string]string, word string) string {
	if text, ok := words[word]; ok {
		return text
	}
	return strings.ReplaceAll(word, "_", " ")
}

// length is a length of time in its two largest units.
func length(d time.Duration) string {
	d = max(0, d).Round(time.Second)
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h %d min", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%d days", int(d.Hours())/24)
}

// lasting is how long something has been so; nothing where that is not known.
func (c *Client) lasting(since time.Time) string {
	if since.IsZero() {
		return ""
	}
	return " for " + length(c.Now().Sub(since))
}

func (c *Client) ago(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return fmt.Sprintf("%s UTC, %s ago", t.UTC().Format("2006-01-02 15:04:05"), length(c.Now().Sub(t)))
}

// figure prints a value with its unit, or a dash.
func figure(v *float64, unit string) string {
	switch {
	case v == nil:
		return "-"
	case unit == "%" || unit == "ratio":
		return fmt.Sprintf("%.0f %%", 100**v)
	case unit == "bytes":
		return fmt.Sprintf("%.1f GiB", *v/(1<<30))
	case unit == "hertz":
		return fmt.Sprintf("%.0f MHz", *v/1e6)
	case unit == "fine":
		return fmt.Sprintf("%.2g", *v)
	}
	return telemetry.Number(*v, unit)
}

// or is the first text that says something.
func or(texts ...string) string {
	for _, t := range texts {
		if t != "" {
			return t
		}
	}
	return "-"
}
