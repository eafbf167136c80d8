package app

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/collector/store"
	"github.com/evenkeel-gpu/evenkeel/config"
)

// collectorFile reads a file as `evenkeel collector` does.
func collectorFile(t *testing.T, text string) *config.Collector {
	t.Helper()
	cfg := config.DefaultCollector()
	if err := config.Parse("collector.yaml", "Collector", []byte("apiVersion: evenkeel/v1\nkind: Collector\nnats: {url: nats://127.0.0.1:4222}\n"+text), cfg); err != nil {
		t.Fatal(err)
	}
	return cfg
}

func TestStoreOptions(t *testing.T) {
	cfg := collectorFile(t, `
store: {dir: /data, interval: 30s, retention: 20d, retention_size: 1GB, series: judged, query: {timeout: 10s, max_samples: 7, concurrency: 3}}
external_labels: {cluster: c1}
rule_files: [rules/*.yaml, /etc/rules.yaml]
alerting: {alertmanagers: [{static_configs: [{targets: ['a:9093']}]}]}
`)
	o, err := storeOptions(cfg, "/etc/evenkeel", "http://c:9837")
	if err != nil {
		t.Fatal(err)
	}
	want := store.QueryLimits{Timeout: 10 * time.Second, MaxSamples: 7, Concurrency: 3}
	if o.Dir != "/data" || o.Interval != 30*time.Second || o.Retention != 20*24*time.Hour || o.RetentionBytes != 1<<30 || o.Series != store.Judged ||
		o.Folder != "/etc/evenkeel" || o.ExternalURL != "http://c:9837" || o.Rules == nil || o.Query != want {
		t.Errorf("%+v", o)
	}
	for _, part := range []string{"cluster: c1", "rules/*.yaml", "a:9093"} {
		if !strings.Contains(string(o.Prometheus), part) {
			t.Errorf("no %s in\n%s", part, o.Prometheus)
		}
	}
	if o, err := storeOptions(collectorFile(t, "default_rules: false"), ".", ""); err != nil || o.Rules != nil {
		t.Errorf("%+v, %v", o, err)
	}
	if o, err := storeOptions(collectorFile(t, "store: {enabled: false, retention_size: much}"), ".", ""); err != nil || o != nil {
		t.Errorf("%+v, %v", o, err)
	}
}

func TestRetentionSize(t *testing.T) {
	for text, want := range map[string]int64{"": 0, "0": 0, "64MB": 64 << 20, "10GB": 10 << 30, "1.5GB": 3 << 29, "2TB": 2 << 40, "1GiB": 1 << 30} {
		if got, err := retentionSize(text); err != nil || got != want {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"10", "GB", "much", "-1GB", "63MB", "1kb", "10 GB", "99999999EB"} {
		if got, err := retentionSize(text); err == nil || !strings.Contains(err.Error(), "store.retention_size is ") {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
}

func TestPageURL(t *testing.T) {
	named := func() (string, error) { return "gpu-1.example", nil }
	nameless := func() (string, error) { return "", errors.New("no name") }
	for _, c := range []struct {
		addr net.Addr
		host func() (string, error)
		want string
	}{
		{&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9837}, named, "https://127.0.0.1:9837"},
		{&net.TCPAddr{IP: net.IPv4zero, Port: 9837}, named, "https://gpu-1.example:9837"},
		{&net.TCPAddr{IP: net.IPv6unspecified, Port: 9837}, named, "https://gpu-1.example:9837"},
		{&net.TCPAddr{IP: net.IPv6loopback, Port: 1}, named, "https://[::1]:1"},
		{&net.TCPAddr{IP: net.IPv6unspecified, Port: 9837}, nameless, "https://[::]:9837"},
		{&net.UnixAddr{Name: "/run/x"}, named, "https:///run/x"},
	} {
		if got := pageURL("https", c.addr, c.host); got != c.want {
			t.Errorf("%s: %s, want %s", c.addr, got, c.want)
		}
	}
}

// TestCheckCollector: what Prometheus's packages refuse is said before use, and
// relative names start at the file's folder, wherever the process runs.
func TestCheckCollector(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("mine.yaml", "groups: [{name: g, rules: [{alert: A, expr: 'gpu_up == 0'}]}]")
	write("bad.yaml", "groups: [{name: g, rules: [{alert: A, expr: 'gpu_up =='}]}]")
	write("password", "x")
	write("no.pem", "x")
	file := filepath.Join(dir, "collector.yaml")
	alertmanager := func(more string) string {
		return "alerting: {alertmanagers: [{" + more + ", static_configs: [{targets: ['127.0.0.1:9093']}]}]}"
	}
	for _, text := range []string{
		"", "rule_files: [mine.yaml]", "rule_files: ['m*.yaml', 'none*.yaml']", "rule_files: [" + filepath.Join(dir, "mine.yaml") + "]",
		alertmanager("basic_auth: {username: u, password_file: password}"), "external_labels: {cluster: c1}", "store: {enabled: false}",
	} {
		if err := CheckCollector(collectorFile(t, text), file); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	for text, want := range map[string]string{
		"rule_files: [none.yaml]":                             "rule_files: " + filepath.Join(dir, "none.yaml") + ": no such file",
		"rule_files: [bad.yaml]":                              "rule file " + filepath.Join(dir, "bad.yaml") + ": ",
		"rule_files: ['[']":                                   "syntax error in pattern",
		"rule_files: ['']":                                    "rule_files",
		"alerting: {alertmangers: []}":                        "field alertmangers not found",
		"alerting: 7":                                         "alerting",
		alertmanager("api_version: v7"):                       "expected Alertmanager api version",
		alertmanager("tls_config: {ca_file: no.pem}"):         "alerting: ",
		alertmanager("kubernetes_sd_configs: [{role: pod}]"):  "kubernetes_sd_configs",
		"alerting: {alert_relabel_configs: [{action: turn}]}": "unknown relabel action",
		"remote_write: [{queue_config: {}}]":                  "url",
		"external_labels: {'': x}":                            "not a valid label name",
		"store: {retention_size: 10}":                         "store.retention_size is \"10\"",
	} {
		if err := CheckCollector(collectorFile(t, text), file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v\nwant: %s", text, err, want)
		} else if strings.Contains(err.Error(), "line ") {
			t.Errorf("a line of no file: %v", err)
		}
	}
}
