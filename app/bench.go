package app

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/evenkeel-gpu/evenkeel/bench"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus/embedded"
)

// BenchOptions are the flags of `evenkeel bench`.
type BenchOptions struct {
	Run bench.Options
	// URL of the bus; empty for a bus and a collector of its own.
	URL string
	// TLS of that bus: who signs its certificate, and what this side shows.
	CAFile, CertFile, KeyFile string
	// Hot is how many nodes get hot, so that a rebalancer of the run's own caps
	// their devices through agents.
	Hot    int
	Output string // text, json, or row: of the table in docs/results.md
}

// hotDuration is how long a run with hot nodes must be: until every act is over
// and none is due again.
const hotDuration = 15 * time.Second

// Check refuses what cannot be run, before anything is started.
func (o *BenchOptions) Check() error {
	switch {
	case o.Hot < 0 || o.Hot > o.Run.Nodes:
		return fmt.Errorf("%d hot nodes of %d: want at most all of them", o.Hot, o.Run.Nodes)
	case o.Hot > 0 && (o.URL != "" || o.Run.Connections != 0):
		return errors.New("hot nodes need a bus and a rebalancer of the run's own, and a connection each; leave out --nats and --connections")
	case o.Hot > 0 && (o.Run.Duration < hotDuration || o.Run.Period != time.Second):
		return fmt.Errorf("hot nodes need a frame a second for at least %s, so that every act is over", hotDuration)
	case o.URL == "" && (o.Run.Collector != "" || o.Run.Credentials != "" || o.CAFile != "" || o.CertFile != ""):
		return errors.New("--collector, --creds, --ca and --cert go with --nats; without it the run starts a bus and a collector of its own")
	}
	return o.Run.Check()
}

// benchReport is what a run found, and with hot nodes how long the acts took.
type benchReport struct {
	*bench.Report
	Acts *actsReport `json:"acts,omitempty"`
}

// errBench is a run that did not meet what was expected of it.
var errBench = errors.New("not as expected, see the report")

// Bench loads a collector and reports. Without a bus it starts one, and a
// collector, as processes of their own, so that each one's figures are apart.
func Bench(ctx context.Context, o BenchOptions, out io.Writer, log *slog.Logger) error {
	report, err := runBench(ctx, o, log)
	if err != nil {
		return err
	}
	switch o.Output {
	case "json":
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		err = enc.Encode(report)
	case "row":
		err = report.Row(out)
	default:
		if err = report.Text(out); err == nil && report.Acts != nil {
			_, err = io.WriteString(out, report.Acts.Text)
		}
	}
	if err == nil && (report.Failed() || report.Acts != nil && len(report.Acts.Wrong) > 0) {
		err = errBench
	}
	return err
}

func runBench(ctx context.Context, o BenchOptions, log *slog.Logger) (*benchReport, error) {
	o.Run.Bus.User, o.Run.Bus.Log = bus.UserReader, log.With("component", "bus")
	if o.URL != "" {
		o.Run.Bus.URLs = []string{o.URL}
		var err error
		if o.Run.Bus.TLS, err = o.tls(); err != nil {
			return nil, err
		}
		report, err := bench.Run(ctx, o.Run, log)
		return &benchReport{Report: report}, err
	}
	rig, err := startBenchRig(ctx, &o, log)
	if err != nil {
		return nil, err
	}
	defer rig.stop()
	if o.Hot == 0 {
		report, err := bench.Run(ctx, o.Run, log)
		return &benchReport{Report: report}, err
	}
	return benchActs(ctx, o, rig, log)
}

// tls is nil where the flags name nothing: then the server and its URL decide.
func (o *BenchOptions) tls() (*tls.Config, error) {
	if o.CAFile == "" && o.CertFile == "" && o.KeyFile == "" {
		return nil, nil
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.CAFile != "" {
		data, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, err
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(data) {
			return nil, fmt.Errorf("%s holds no certificate in PEM", o.CAFile)
		}
	}
	if o.CertFile != "" || o.KeyFile != "" {
		pair, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("--cert and --key: %w", err)
		}
		conf.Certificates = []tls.Certificate{pair}
	}
	return conf, nil
}

// BenchBus is the bus of a run: a server with the users of its nodes, of the
// agents of the first of them, and of who hears them, on any free port of this
// machine, until ctx ends. It prints where it is.
func BenchBus(ctx context.Context, store, prefix string, nodes, agents int, out io.Writer, log *slog.Logger) error {
	o := embedded.Options{StoreDir: store, Port: embedded.Random, Log: log}
	if nodes > 0 {
		password := os.Getenv(benchPassword)
		if password == "" {
			return fmt.Errorf("%s is not set; users need a password", benchPassword)
		}
		add := func(user string) { o.Users = append(o.Users, bus.User{Name: user, Password: password}) }
		add(bus.UserCollector)
		add(bus.UserReader)
		add(bus.UserRebalancer)
		for i := range nodes {
			add(telemetry.ExporterUser(bench.NodeName(prefix, i)))
		}
		for i := range agents {
			add(telemetry.AgentUser(bench.NodeName(prefix, hotIndex(i, nodes, agents))))
		}
	}
	server, err := embedded.Start(o)
	if err != nil {
		return err
	}
	defer server.Shutdown()
	if _, err := fmt.Fprintln(out, server.URL()); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}
