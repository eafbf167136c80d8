package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

const (
	// probeWait is how long a mount may take to answer.
	probeWait = 5 * time.Second
	maxMounts = 64
)

// mount is a network file system.
type mount struct{ path, fstype string }

// mountsOf reads the kernel's list: the fifth field is the path, and behind the
// dash comes the type.
func mountsOf(text string, types []string) []mount {
	var list []mount
	for line := range strings.Lines(text) {
		before, after, ok := strings.Cut(line, " - ")
		f, g := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 5 || len(g) < 1 || !typeIn(g[0], types) {
			continue
		}
		m := mount{unescape(f[4]), g[0]}
		if !slices.Contains(list, m) && len(list) < maxMounts {
			list = append(list, m)
		}
	}
	return list
}

func typeIn(fstype string, types []string) bool {
	for _, t := range types {
		if begin, ok := strings.CutSuffix(t, "*"); t == fstype || ok && strings.HasPrefix(fstype, begin) {
			return true
		}
	}
	return false
}

// unescape undoes what the kernel writes for blanks and the like: \040.
func unescape(s string) string {
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				out.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		out.WriteByte(s[i])
	}
	return out.String()
}

// prober asks mounts whether they answer, each by a process of its own: who
// touches a dead one may never come back, and nothing can end him.
type prober struct {
	list    string // the kernel's list of mounts
	command []string
	types   []string
	wait    time.Duration

	mu    sync.Mutex
	stuck map[mount]bool // a probe is still out there
}

// probe asks all of them at once.
func (p *prober) probe(ctx context.Context, to *samples) error {
	text, err := os.ReadFile(p.list)
	if err != nil {
		return fmt.Errorf("mounts: %w", err)
	}
	list := mountsOf(string(text), p.types)
	stalled, errs := make([]bool, len(list)), make([]error, len(list))
	var all sync.WaitGroup
	for i, m := range list {
		all.Go(func() { stalled[i], errs[i] = p.one(ctx, m) })
	}
	all.Wait()
	for i, m := range list {
		if errs[i] == nil {
			to.put(telemetry.NodeHostMountStalled, "", boolean(stalled[i]), m.path, m.fstype)
		}
	}
	return errors.Join(errs...)
}

// one asks a mount. While its last probe has not come back it is stalled, and is
// not asked again.
func (p *prober) one(ctx context.Context, m mount) (stalled bool, err error) {
	p.mu.Lock()
	if p.stuck[m] {
		p.mu.Unlock()
		return true, nil
	}
	if p.stuck == nil {
		p.stuck = map[mount]bool{}
	}
	p.stuck[m] = true
	p.mu.Unlock()
	cmd := exec.Command(p.command[0], append(slices.Clone(p.command[1:]), m.path)...) //nolint:noctx // it may outlive every context
	if err := cmd.Start(); err != nil {
		p.free(m)
		return false, fmt.Errorf("mount %s cannot be probed: %w", m.path, err)
	}
	done := make(chan error, 1)
	go func() {
		done <- cmd.Wait()
		p.free(m)
	}()
	timer := time.NewTimer(p.wait)
	defer timer.Stop()
	select {
	case err := <-done:
		// Permission to look is no matter: somebody answered.
		if exit, ok := errors.AsType[*exec.ExitError](err); ok && !exit.Exited() {
			return false, fmt.Errorf("the probe of mount %s was ended: %w", m.path, err)
		}
		return false, nil
	case <-timer.C:
	case <-ctx.Done():
	}
	_ = cmd.Process.Kill() // where the kernel lets it
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	return true, nil
}

func (p *prober) free(m mount) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.stuck, m)
}

// Probe is what the process of a probe does: it asks one mount, and ends.
func Probe(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	// The root alone may come from the client's memory.
	_, err = d.Readdirnames(1)
	return err
}
