package attribution

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/evenkeel-gpu/evenkeel/exporter/attribution/kubelet"
)

const (
	// askEvery is how often a scheduler is asked what it has given away, askWait
	// how long it may take.
	askEvery, askWait = 10 * time.Second, 5 * time.Second
	// keepGrants is how long its last word stays in force when it is silent: long
	// enough for a restart, short enough that nobody is charged for an ended pod.
	keepGrants = 10 * time.Minute
	// maxGrants bounds what is kept of a source, maxNamed what is named of a device.
	maxGrants, maxNamed = 4096, 64
)

// grant is a device, or a part of it, that a scheduler has given away.
type grant struct {
	found
	kind, holder, owner string
	workload            string // which members are of it: ns/pod, or a job's number
}

// granter is a scheduler's word on what it has given away.
type granter struct {
	name string
	// here says whether the node has it at all; one that never was is no fault.
	here func() bool
	ask  func(ctx context.Context, d *devices) (list []grant, unmatched int, err error)

	// Under Attribution.mu.
	seen      bool // it was here at some time
	list      []grant
	at        time.Time // of the list
	unmatched int
	err       error
	took      time.Duration
}

// granters are the systems that give devices away on this node.
func (a *Attribution) granters() []*granter {
	var list []*granter
	if socket := a.opt.Kubelet; socket != "" {
		list = append(list, &granter{
			name: "kubelet",
			here: func() bool {
				_, err := os.Stat(socket)
				return err == nil
			},
			ask: func(ctx context.Context, d *devices) ([]grant, int, error) { return askKubelet(ctx, socket, d) },
		})
	}
	if dir := a.opt.JobFiles; dir != "" {
		list = append(list, &granter{
			name: "job_files",
			here: func() bool { return true }, // somebody named it
			ask:  func(_ context.Context, d *devices) ([]grant, int, error) { return readJobFiles(dir, d) },
		})
	}
	return list
}

// follow asks one source again and again. A source that hangs costs its own
// goroutine and nothing else.
func (a *Attribution) follow(ctx context.Context, g *granter) {
	timer := time.NewTicker(askEvery)
	defer timer.Stop()
	for {
		a.ask(ctx, g, time.Now())
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
	}
}

// Ask asks every source once, for who does not wait for Run.
func (a *Attribution) Ask(ctx context.Context) {
	for _, g := range a.sources {
		a.ask(ctx, g, time.Now())
	}
}

func (a *Attribution) ask(ctx context.Context, g *granter, now time.Time) {
	here := g.here()
	a.mu.Lock()
	g.seen = g.seen || here
	skip := !g.seen
	a.mu.Unlock()
	if skip {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, askWait)
	defer cancel()
	var instances []Instance
	if a.opt.Instances != nil {
		instances = a.opt.Instances()
	}
	d := readDevices(a.opt.Proc.Folder(), a.opt.MDev, instances)
	began := time.Now()
	list, unmatched, err := g.ask(ctx, d)
	took := time.Since(began)
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case err != nil && (g.err == nil || g.err.Error() != err.Error()):
		a.opt.Log.Warn("it is not known what is allocated; the last word stays for a while", "source", g.name, "err", err)
	case err == nil && g.err != nil:
		a.opt.Log.Info("it is known again what is allocated", "source", g.name)
	}
	if g.err, g.took = err, took; err == nil {
		g.list, g.unmatched, g.at = list, unmatched, now
		a.gpus = d
	}
}

// gpuResource says whether a resource, or a claim's driver, is one of GPUs: ids
// of anything else are no riddle.
func gpuResource(name string) bool {
	return strings.Contains(name, "nvidia.com") || strings.Contains(name, "gpu")
}

func askKubelet(ctx context.Context, socket string, d *devices) (list []grant, unmatched int, err error) {
	err = kubelet.List(ctx, socket, func(g *kubelet.Grant) {
		f, ok := d.resolve(g.Device)
		if !ok {
			if gpuResource(g.Resource) {
				unmatched++
			}
			return
		}
		list = append(list, grant{
			found: f, kind: kindPod, holder: g.Namespace + "/" + g.Pod + "/" + g.Container,
			owner: g.Namespace, workload: g.Namespace + "/" + g.Pod,
		})
	})
	return tidy(list), unmatched, err
}

// tidy sorts, and leaves one of several replicas that one holder has.
func tidy(list []grant) []grant {
	slices.SortFunc(list, func(a, b grant) int {
		return cmp.Or(strings.Compare(a.uuid, b.uuid), strings.Compare(a.gi, b.gi), strings.Compare(a.holder, b.holder))
	})
	list = slices.CompactFunc(list, func(a, b grant) bool { return a.uuid == b.uuid && a.gi == b.gi && a.holder == b.holder })
	return slices.Clip(list[:min(len(list), maxGrants)])
}

const (
	maxJobFiles, maxJobFile = 1024, 4096 // files, bytes
)

// jobID: 4711, 4711_3, 4711+1, 4711.batch; other schedulers' numbers too.
var jobID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.+\-]{0,63}$`)

// readJobFiles reads what a prolog writes and an epilog removes: a file for each
// GPU, named by its place on the bus or its id, of an instance 0.3; a job to a
// line.
func readJobFiles(dir string, d *devices) (list []grant, unmatched int, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, 0, fmt.Errorf("job files: %w", err)
	}
	var trouble error
	for i, e := range entries {
		if i == maxJobFiles {
			trouble = fmt.Errorf("job files: %s has more than %d files; the rest is left out", dir, maxJobFiles)
			break
		}
		f, ok := d.place(e.Name())
		if !ok {
			unmatched++
			continue
		}
		text, err := readBounded(filepath.Join(dir, e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // an epilog came by
		}
		if err != nil {
			trouble = cmp.Or(trouble, fmt.Errorf("job files: %w", err))
			continue
		}
		for line := range strings.Lines(text) {
			line = strings.TrimSpace(line)
			switch {
			case line == "":
			case !jobID.MatchString(line):
				unmatched++
			default:
				job, _, _ := strings.Cut(line, ".")
				list = append(list, grant{found: f, kind: kindStep, holder: line, workload: job})
			}
		}
	}
	if trouble != nil {
		return nil, 0, trouble
	}
	return tidy(list), unmatched, nil
}

// readBounded reads the beginning of a plain file. A pipe in its place would
// block for ever, a link lead elsewhere.
func readBounded(path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is no plain file", path)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxJobFile))
	return string(data), err
}
