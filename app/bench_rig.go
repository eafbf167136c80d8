package app

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/evenkeel-gpu/evenkeel/bench"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus"
)

// benchPassword is the environment variable that hands the secret of a run to
// the processes that are started for it.
const benchPassword = "EVENKEEL_BENCH_PASSWORD"

// benchRig is a bus, a collector and, where nodes get hot, a rebalancer, each in
// a process of its own.
type benchRig struct {
	log      *slog.Logger
	self     string // this program
	dir      string
	url      string
	password string // of every user; empty: there are none
	signer   *telemetry.Signer
	children []benchChild
}

type benchChild struct {
	name  string
	cmd   *exec.Cmd
	ended <-chan error
}

// startBenchRig returns when the processes answer, and puts into the options
// where they are.
func startBenchRig(ctx context.Context, o *BenchOptions, log *slog.Logger) (_ *benchRig, err error) {
	r := &benchRig{log: log, password: rand.Text()}
	defer func() {
		if err != nil {
			r.stop()
		}
	}()
	if r.dir, err = os.MkdirTemp("", "evenkeel-bench-"); err != nil {
		return nil, err
	}
	if r.self, err = os.Executable(); err != nil {
		return nil, err
	}
	run := &o.Run
	users := run.Nodes
	if run.Connections != 0 && run.Connections < run.Nodes {
		users, r.password = 0, "" // several nodes on one connection prove nothing
	}
	if err := r.startBus(users, o.Hot, run.Prefix); err != nil {
		return nil, err
	}
	run.Bus.URLs, run.Bus.Password, run.Password = []string{r.url}, r.password, r.password
	if run.Collector, err = r.startPart("collector", bus.UserCollector, fmt.Sprintf("max_nodes: %d\nstore: {enabled: false}\n", max(run.Nodes, 1))); err != nil {
		return nil, err
	}
	if o.Hot > 0 {
		if err := r.startRebalancer(); err != nil {
			return nil, err
		}
	}
	for _, c := range r.children {
		run.Watch = append(run.Watch, bench.Watched{Name: c.name, PID: c.cmd.Process.Pid})
	}
	log.Debug("bus and collector of the run started", "bus", r.url, "collector", run.Collector)
	return r, r.await(ctx, "collector", run.Collector)
}

func (r *benchRig) startBus(users, agents int, prefix string) error {
	cmd := exec.Command(r.self, "bench", "bus", "--store", filepath.Join(r.dir, "bus"), "--nodes", strconv.Itoa(users), "--agents", strconv.Itoa(agents),
		"--prefix", prefix, "--log-level", "error")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := r.start("bus", cmd); err != nil {
		return err
	}
	url, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return fmt.Errorf("bus of the run did not start: %w", cmp.Or(<-r.children[0].ended, err))
	}
	r.url = strings.TrimSpace(url)
	return nil
}

// startPart starts a process of the product with a file of its own, and returns
// its address.
func (r *benchRig) startPart(name, user, more string) (string, error) {
	// A port that was free a moment ago: the process says itself if it is not.
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	address := ln.Addr().String()
	_ = ln.Close()
	text := fmt.Sprintf("apiVersion: evenkeel/v1\nkind: %s\ncluster: bench\nname: bench\nlisten: %s\nnats:\n  url: %s\n", strings.ToUpper(name[:1])+name[1:], address, r.url)
	if r.password != "" {
		text += fmt.Sprintf("  user: %s\n  password: {env: %s}\n", user, benchPassword)
	}
	file := filepath.Join(r.dir, name+".yaml")
	if err := os.WriteFile(file, []byte(text+more), 0o600); err != nil {
		return "", err
	}
	return address, r.start(name, exec.Command(r.self, name, "-c", file, "--log-level", "error"))
}

// startRebalancer starts one that carries out what the thermal policy wants, all
// at once: what is measured is acts, not their refusal.
func (r *benchRig) startRebalancer() error {
	key := filepath.Join(r.dir, "rebalancer.nk")
	var err error
	if r.signer, _, err = signingKey(key); err != nil {
		return err
	}
	text := string(DefaultPolicies())
	for _, change := range [][2]string{{"mode: recommend", "mode: enforce"}, {"budget: {percent: 50, max: 2000, per: fleet}", "budget: {percent: 100, max: 100000, per: fleet}"}} {
		if !strings.Contains(text, change[0]) {
			return fmt.Errorf("the embedded policies have no %q any more", change[0])
		}
		text = strings.Replace(text, change[0], change[1], 1)
	}
	policy := filepath.Join(r.dir, "thermal.yaml")
	if err := os.WriteFile(policy, []byte(text), 0o600); err != nil {
		return err
	}
	_, err = r.startPart("rebalancer", bus.UserRebalancer, fmt.Sprintf("signing_key: %s\nmode: enforce\npolicies: [%s]\n", key, policy))
	return err
}

func (r *benchRig) start(name string, cmd *exec.Cmd) error {
	cmd.Env, cmd.Stderr = append(os.Environ(), benchPassword+"="+r.password), os.Stderr
	ended, err := startChild(cmd, true) // ^C ends the run, and the report still asks them
	if err != nil {
		return fmt.Errorf("%s of the run: %w", name, err)
	}
	r.children = append(r.children, benchChild{name, cmd, ended})
	return nil
}

// await waits until a process answers, which it does once it is on the bus.
func (r *benchRig) await(ctx context.Context, name, address string) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	var ended <-chan error
	for _, c := range r.children {
		if c.name == name {
			ended = c.ended
		}
	}
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/-/healthy", nil)
		if err != nil {
			return err
		}
		if resp, err := http.DefaultClient.Do(req); err == nil {
			_ = resp.Body.Close()
			return nil
		}
		select {
		case err := <-ended:
			return fmt.Errorf("%s of the run ended: %w", name, cmp.Or(err, errors.New("by itself")))
		case <-ctx.Done():
			return fmt.Errorf("%s of the run does not answer: %w", name, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// stop ends the processes, the bus last.
func (r *benchRig) stop() {
	for i := len(r.children) - 1; i >= 0; i-- {
		c := r.children[i]
		_ = c.cmd.Process.Signal(os.Interrupt)
		select {
		case err := <-c.ended:
			r.log.Debug("ended", "process", c.name, "err", err)
		case <-time.After(10 * time.Second):
			_ = c.cmd.Process.Kill()
		}
	}
	_ = os.RemoveAll(r.dir)
}
